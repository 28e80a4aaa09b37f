"""What moving checkpoints costs, next to everybody else who moves them."""
