"""The command line: one module a verb, all of them thin."""
