"""Let failed assertions inside the shipped contract explain themselves too; count faults."""

from __future__ import annotations

from collections import Counter

import pytest

from ckptstore.settings import COMPRESS_VARIABLE

pytest.register_assert_rewrite("ckptstore.testing.conformance")


@pytest.fixture
def stored_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of where bytes lie in the store and how many they are."""
    monkeypatch.delenv(COMPRESS_VARIABLE, raising=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many faults were tried: a sweep of nothing also passes."""
    swept: Counter[str] = Counter()
    for report in terminalreporter.stats.get("", []):  # The ends of tests are among these.
        for name, count in report.user_properties if report.when == "teardown" else ():
            if name.startswith("faults swept: "):
                swept[name.removeprefix("faults swept: ")] += count
    if swept:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(swept.items()))
        terminalreporter.write_line(f"faults swept: {swept.total()} ({counts})")
