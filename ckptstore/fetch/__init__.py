"""From a committed checkpoint to files on this machine, verified on the way."""
