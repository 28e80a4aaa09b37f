"""A save that runs out of disk, inodes or descriptors, for real, says so and harms nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ckptstore.cli.exit_codes import LOCAL_RESOURCE

ROOT = Path(__file__).parents[2]
TIME_S = 120
SAID = {
    "full": "the disk is full",
    "no_inodes": "no inodes are left (200 in use)",
    "deleted_but_open": "1 deleted files that are still open pin",
    "no_descriptors": "too few file descriptors to work with",
    "small_files_only": "RLIMIT_FSIZE: 2097152 bytes",
}


def _namespace(directory: Path) -> list[str]:
    """Return how this machine lets us mount a disk that nobody else sees, or skip."""
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(directory)]
    said = []
    for unshare in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        try:
            tried = subprocess.run(
                [*unshare, *mount], capture_output=True, text=True, timeout=TIME_S
            )
        except FileNotFoundError as error:
            pytest.skip(f"a disk of its own needs util-linux: {error}")
        if tried.returncode == 0:
            return unshare
        said.append(tried.stderr.strip())
    pytest.skip(f"this machine lets nobody mount a disk of its own: {'; '.join(said)}")


@pytest.mark.parametrize("face", ["writer", "push"])
def test_a_save_that_runs_out_names_the_true_cause_and_the_next_one_works(
    face: str, tmp_path: Path
) -> None:
    child = [sys.executable, "-m", "tests.full.child", str(tmp_path), face]
    done = subprocess.run(
        [*_namespace(tmp_path), *child], cwd=ROOT, capture_output=True, text=True, timeout=TIME_S
    )
    assert done.returncode == 0, done.stderr
    cases = {case["scenario"]: case for case in map(json.loads, done.stdout.splitlines())}
    assert cases.keys() == SAID.keys()
    for scenario, case in cases.items():
        assert case["first"] == 0
        assert case["code"] == LOCAL_RESOURCE, case
        assert SAID[scenario] in case["said"], case
        assert case["half_written"] == [], case
        assert case["restored_before"] == [True, False], case
        assert case["again"] == 0, case
        assert case["restored_after"] == [False, True], case
