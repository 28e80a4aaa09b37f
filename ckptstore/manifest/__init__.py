"""The records of a checkpoint, as bytes and as names. No I/O."""
