"""Which directories are checkpoints that somebody finished writing, by what lies in them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from ckptstore.errors import LocalResourceError

State: TypeAlias = tuple[tuple[str, int, int], ...]

INDEXES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WHOLE_MODELS: Final = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors")
_UNFINISHED: Final = re.compile(r"(?i)\..*|tmp.*|.*[._-](tmp|partial|incomplete)")
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Local:
    """A checkpoint on this machine: its step, and every file's path, size and time."""

    path: Path
    step: int
    state: State


def find_finished(root: Path) -> list[Local]:
    """Return the checkpoints right under ``root`` that look finished, in the order of steps.

    A directory is one if its name has a number, the last of which is the step, and it holds
    what its writer writes last or names all it wrote: DCP's ``.metadata``; a model of Hugging
    Face with every file of its index; or if DeepSpeed's ``latest`` beside it has come to it.
    Whether it still changes is for the caller to see, by its ``state``. Raises
    ``LocalResourceError`` if ``root`` is gone.
    """
    found = []
    try:
        paths = sorted(root.iterdir())
    except OSError as error:
        raise LocalResourceError(f"{root} cannot be listed: {error.strerror}") from error
    for path in paths:
        numbers = _NUMBER.findall(path.name)
        if not numbers or _UNFINISHED.fullmatch(path.name) or path.is_symlink():
            continue
        if path.is_dir() and _looks_finished(path, int(numbers[-1])):
            found.append(Local(path, int(numbers[-1]), _state_of(path)))
    return sorted(found, key=lambda local: (local.step, local.path))


def _looks_finished(path: Path, step: int) -> bool:
    if (path / ".metadata").is_file():
        return True
    for name in INDEXES:
        if (path / name).is_file():
            return all((path / file).is_file() for file in _files_of_index(path / name))
    if any((path / name).is_file() for name in WHOLE_MODELS):
        return True
    return any(path.glob("*model_states.pt")) and _deepspeed_came_to(path, step)


def _files_of_index(index: Path) -> set[str]:
    """Return the files that an index names, or one that is never there if it is being written."""
    try:
        files = json.loads(index.read_bytes())["weight_map"].values()
        return {str(file) for file in files}
    except (ValueError, KeyError, AttributeError, TypeError):
        return {"/nowhere/at-all"}


def _deepspeed_came_to(path: Path, step: int) -> bool:
    try:
        latest = (path.parent / "latest").read_text().strip()
    except (OSError, ValueError):
        return False
    numbers = _NUMBER.findall(latest)
    return latest == path.name or bool(numbers and int(numbers[-1]) >= step)


def _state_of(path: Path) -> State:
    state = []
    for directory, _, names in os.walk(path):
        for name in names:
            file = Path(directory, name)
            try:
                status = file.lstat()
            except FileNotFoundError:  # It goes away under us: it is not finished.
                state.append((str(file), -1, -1))
                continue
            state.append((str(file), status.st_size, status.st_mtime_ns))
    return tuple(sorted(state))
