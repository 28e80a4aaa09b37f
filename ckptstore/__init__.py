"""Checkpoint storage for object stores: complete and provably intact, or not there."""
