"""How an attempt is begun, voted on and decided."""
