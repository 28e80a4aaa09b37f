"""Say at the end how many faults were tried: a sweep of nothing also passes."""

from __future__ import annotations

import pytest

from tests.faults.swept import SWEPT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if SWEPT:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(SWEPT.items()))
        terminalreporter.write_line(f"faults swept: {SWEPT.total()} ({counts})")
