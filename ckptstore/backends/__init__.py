"""Where bytes end up: one module a provider, each keeping the contract of ``store.py``."""
