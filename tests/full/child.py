"""Saves onto a small disk of its own, which runs out of something.

``unshare --mount python -m tests.full.child DIRECTORY (writer | push)`` prints one JSON object
for each scenario.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from ckptstore.cli.exit_codes import code_of
from ckptstore.settings import Settings, TransferSettings
from ckptstore.torch import StorageReader, StorageWriter
from ckptstore.types import MIB
from tests.torch.worlds import load

DISK_BYTES: Final = 16 * MIB
STATE_BYTES: Final = 4 * MIB
DISK: Final = f"size={DISK_BYTES},nr_inodes=200"
SETTINGS: Final = Settings(
    transfer=TransferSettings(block_size_bytes=MIB // 4, part_size_bytes=MIB)
)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Leave room for half of a checkpoint."""
    other = disk / "other"
    space = os.statvfs(disk)
    other.write_bytes(bytes(space.f_bavail * space.f_frsize - STATE_BYTES // 2))
    yield
    other.unlink()


@contextmanager
def no_inodes(disk: Path) -> Iterator[None]:
    """Leave not one, in case of plenty of room."""
    others = [disk / f"other-{number}" for number in range(os.statvfs(disk).f_favail)]
    for other in others:
        other.touch()
    yield
    for other in others:
        other.unlink()


@contextmanager
def deleted_but_open(disk: Path) -> Iterator[None]:
    """No listing shows what takes up the room."""
    with full(disk), (disk / "other").open("rb"):
        (disk / "other").unlink()
        (disk / "other").touch()  # For ``full`` to remove.
        yield


@contextmanager
def no_descriptors(disk: Path) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def small_files_only(disk: Path) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (STATE_BYTES // 2, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


SCENARIOS: Final = (full, no_inodes, deleted_but_open, no_descriptors, small_files_only)
ON_DISK: Final = (full, no_inodes, deleted_but_open)  # Reading goes on meanwhile.
Save = Callable[[Path, int], tuple[int, str]]


def state_of(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    data = torch.randint(0, 256, (STATE_BYTES,), dtype=torch.uint8, generator=generator)
    return {"weights": data}


def save_by_writer(disk: Path, step: int) -> tuple[int, str]:
    """Return the exit code of what was raised, and what was said; 0 if all is well."""
    writer = StorageWriter(disk / "store" / "run", step=step, deadline_s=20, settings=SETTINGS)
    try:
        dcp_save(state_of(step), storage_writer=writer, no_dist=True)
    except CheckpointException as error:
        failure = error.failures[0][0]
        return code_of(failure), str(failure)
    return 0, ""


def save_by_push(disk: Path, step: int) -> tuple[int, str]:
    return command(
        "push", source_of(disk, step), f"{disk / 'store' / 'run'}@{step}", "--deadline", "20s"
    )


def source_of(disk: Path, step: int) -> Path:
    """Return the directory to push, which is not on the small disk."""
    return disk.with_name(f"source-{step}")


def command(*arguments: object) -> tuple[int, str]:
    words = [sys.executable, "-m", "ckptstore.cli.main", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def restored_by_writer(disk: Path) -> list[bool]:
    """Return, for the steps 1 and 2, whether the latest is that, bit for bit."""
    state = {"weights": torch.zeros(STATE_BYTES, dtype=torch.uint8)}
    load(state, StorageReader(disk / "store" / "run"))
    return [torch.equal(state["weights"], state_of(step)["weights"]) for step in (1, 2)]


def restored_by_push(disk: Path) -> list[bool]:
    there = disk.parent / f"restored-{len(os.listdir(disk.parent))}"
    code, said = command("restore", disk / "store" / "run", there)
    assert code == 0, said
    found = (there / "weights").read_bytes()
    return [found == state_of(step)["weights"].numpy().tobytes() for step in (1, 2)]


FACES: Final[dict[str, tuple[Save, Callable[[Path], list[bool]]]]] = {
    "writer": (save_by_writer, restored_by_writer),
    "push": (save_by_push, restored_by_push),
}


def tried(scenario: Callable[[Path], Any], face: str, disk: Path) -> dict[str, Any]:
    save_step, restored = FACES[face]
    first, _ = save_step(disk, 1)
    with scenario(disk):
        code, said = save_step(disk, 2)
        if scenario in ON_DISK:
            before = restored(disk)
    if scenario not in ON_DISK:
        before = restored(disk)
    half_written = os.listdir(disk / "store" / ".uploads")
    again, _ = save_step(disk, 2)
    return {
        "scenario": scenario.__name__,
        "first": first,
        "code": code,
        "said": said,
        "half_written": half_written,
        "restored_before": before,
        "again": again,
        "restored_after": restored(disk),
    }


def main() -> None:
    disk = Path(sys.argv[1]) / "disk"
    disk.mkdir()
    for step in (1, 2):
        source_of(disk, step).mkdir()
        weights = state_of(step)["weights"].numpy().tobytes()
        (source_of(disk, step) / "weights").write_bytes(weights)
    for scenario in SCENARIOS:
        subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", disk], check=True)
        print(json.dumps(tried(scenario, sys.argv[2], disk)), flush=True)
        subprocess.run(["umount", disk], check=True)


if __name__ == "__main__":
    main()
