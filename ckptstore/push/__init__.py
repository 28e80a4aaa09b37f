"""From a directory of any files to a committed checkpoint."""
