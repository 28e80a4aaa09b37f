"""Azure Blob Storage, or the emulator that stands in for it."""
