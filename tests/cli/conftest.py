"""Run the command line in this process, and see what it said and ended with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckptstore.cli.main import execute


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What ``--json`` said, having checked that it begins and ends as promised."""
        lines: list[dict[str, Any]] = [json.loads(line) for line in self.out.splitlines()]
        assert (lines[0]["v"], lines[0]["type"]) == (1, "header")
        assert lines[-1]["type"] == "summary"
        assert lines[-1]["exit_code"] == self.code
        return lines

    @property
    def summary(self) -> dict[str, Any]:
        return self.lines[-1]

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == kind]


Cli = Callable[..., Ended]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        code = execute([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory to push."""
    directory = tmp_path / "source"
    (directory / "sub").mkdir(parents=True)
    (directory / "weights.bin").write_bytes(bytes(range(256)) * 1000)
    (directory / "sub" / "config.json").write_text("{}")
    (directory / "empty").touch()
    return directory


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "store"


@pytest.fixture
def run(cli: Cli, source: Path, store: Path) -> str:
    """A run with two committed checkpoints, at steps 100 and 200."""
    for step in (100, 200):
        assert cli("push", source, f"{store}/llama@{step}").code == 0
    return f"{store}/llama"
