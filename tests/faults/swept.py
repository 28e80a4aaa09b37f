"""How much was tried, for the end of the report."""

from __future__ import annotations

from collections import Counter

SWEPT: Counter[str] = Counter()
