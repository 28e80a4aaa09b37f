"""The lab as a test sees it: a process of its own, because it forks and must have no threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from tests.crashes.plan import Kind

START_S_MAX: Final = 30.0  # A machine that others use as well gets through fewer trials.
LAB_S_MAX: Final = 110.0


def run_lab(
    url: str, *, trials: int, seed: int, at_once: int, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run the lab and return its summary, or fail with what it said of the trials that failed."""
    options = {"--store": url, "--trials": trials, "--seed": seed, "--at-once": at_once}
    options["--start-within"] = START_S_MAX
    command = [sys.executable, "-m", "tests.crashes.lab"]
    command += [str(word) for pair in options.items() for word in pair]
    done = subprocess.run(
        command,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=LAB_S_MAX,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    failed = [json.dumps(line) for line in lines if line["violations"]]
    assert done.returncode == 0, "\n".join([*failed, done.stderr])
    summary: dict[str, Any] = lines[-1]
    return summary


def check_summary(summary: dict[str, Any]) -> None:
    """Every kind of fault must have hit saves, and those must have ended both ways."""
    for kind in Kind:
        assert summary["kinds"][kind.value]["hit_in_save"] > 0, kind
    for ending in ("committed", "aborted"):
        assert sum(kind.get(ending, 0) for kind in summary["kinds"].values()) > 0, ending
    assert "silent" not in summary["zombies"]
    assert summary["in_doubt"] <= summary["trials"] // 10  # That takes a very busy machine.
