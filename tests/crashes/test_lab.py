"""Real processes, killed and stopped while they save into a local directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crashes.laboratory import check_summary, run_lab

pytestmark = pytest.mark.distributed


def test_whoever_is_killed_or_stopped_no_promise_is_broken(tmp_path: Path) -> None:
    summary = run_lab(str(tmp_path / "store"), trials=40, seed=222, at_once=8)
    check_summary(summary)
    assert summary["uploads_of_killed"] > 0
