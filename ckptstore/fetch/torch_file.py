"""A checkpoint as one file that ``torch.load`` reads. All of it passes through memory."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ckptstore.errors import SettingsError, UntrustedCodeError
from ckptstore.fetch.assembled import WholeTensor
from ckptstore.fetch.selection import Selection
from ckptstore.manifest.model import Ready, TensorEntry
from ckptstore.restore.reader import CheckedReader, Wanted

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

FILE_NAME: Final = "checkpoint.pt"


def require_torch() -> ModuleType:
    """Return torch, or raise ``SettingsError`` saying how to get it."""
    try:
        import torch
    except ImportError as error:
        raise SettingsError(
            "--format torch needs torch, which is not installed: pip install 'ckptstore[torch]'"
        ) from error
    return torch


async def read_state(
    reader: CheckedReader,
    tensors: Sequence[WholeTensor],
    records: Sequence[Ready],
    selection: Selection,
) -> tuple[dict[str, object], int]:
    """Return the state dict, nested as it was, and how many bytes were verified for it.

    Raises ``IntegrityError``, and ``UntrustedCodeError`` for an item that is not safe to load.
    """
    torch = require_torch()
    reads = [_TensorReads(torch, tensor) for tensor in tensors]
    items = _item_reads(records, selection)
    verified = await reader.read_wanted(
        [want for read in reads for want in read.wanted] + list(items.values())
    )
    flat: dict[str, object] = {read.name: read.joined() for read in reads}
    flat |= {name: _loaded(torch, name, want.target) for name, want in items.items()}
    paths: dict[str, tuple[str | int, ...]] = {}
    for record in records:
        paths |= record.paths or {}
    return nested(flat, paths), verified


def write_state(state: dict[str, object], root: Path) -> int:
    """Write the state under ``root`` and return how many bytes that took."""
    location = root / FILE_NAME
    require_torch().save(state, location)
    return location.stat().st_size


def nested(
    flat: Mapping[str, object], paths: Mapping[str, tuple[str | int, ...]]
) -> dict[str, object]:
    """Return the values where their paths lead; one without a path stays under its own name.

    Numbers in a path are places in a list, as long as all places of the list are there.
    """
    root: dict[str | int, Any] = {}
    for name, value in flat.items():
        *way, last = paths.get(name) or (name,)
        at = root
        for step in way:
            at = at.setdefault(step, _Branch())
        at[last] = value
    return {str(key): _settled(value) for key, value in root.items()}


class _Branch(dict[str | int, Any]):
    """A container on the way to values; a dict that is itself a value is none."""


def _settled(value: object) -> object:
    if not isinstance(value, _Branch):
        return value
    settled = {key: _settled(inner) for key, inner in value.items()}
    if settled.keys() == set(range(len(settled))):
        return [settled[place] for place in range(len(settled))]
    return settled


class _TensorReads:
    """A tensor in the making: memory for each chunk, its own where a chunk is all of it."""

    def __init__(self, torch: ModuleType, tensor: WholeTensor) -> None:
        self.name = tensor.slot.name
        dtype = getattr(torch, tensor.slot.dtype)
        self._whole: Tensor = torch.empty(tensor.slot.shape, dtype=dtype)
        self._parts: list[tuple[TensorEntry, Tensor]] = []
        self.wanted: list[Wanted] = []
        for chunk in tensor.chunks:
            entry = chunk.entry
            part = self._whole
            if entry.sizes != entry.shape:
                part = torch.empty(entry.sizes, dtype=dtype)
                self._parts.append((entry, part))
            memory = part.reshape(-1).view(torch.uint8).numpy().data
            self.wanted.append(Wanted(chunk.shard, entry.start, memory))

    def joined(self) -> Tensor:
        for entry, part in self._parts:
            ends = zip(entry.offsets, entry.sizes, strict=True)
            self._whole[tuple(slice(offset, offset + size) for offset, size in ends)] = part
        return self._whole


def _item_reads(records: Sequence[Ready], selection: Selection) -> dict[str, Wanted]:
    reads: dict[str, Wanted] = {}
    for record in records:
        for item in record.items:
            if item.name in selection and item.name not in reads:
                memory = memoryview(bytearray(item.stop - item.start))
                reads[item.name] = Wanted(record.shards[item.shard], item.start, memory)
    return reads


def _loaded(torch: ModuleType, name: str, data: memoryview) -> object:
    try:
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # Whatever a pickle may raise.
        raise UntrustedCodeError(
            f"item {name!r} is no plain data that could be loaded without running code out of "
            "the checkpoint; leave it out with --only, or use --format native"
        ) from error
