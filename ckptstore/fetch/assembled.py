"""Whole tensors out of the chunks that the ranks saved. Pure."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from ckptstore.errors import IntegrityError, UsageError
from ckptstore.fetch.cast import Cast, cast_of
from ckptstore.fetch.plan import Extent, FetchPlan, OutputFile, Placement
from ckptstore.fetch.safetensors import Slot, chunk_slot, file_head
from ckptstore.fetch.selection import Selection
from ckptstore.manifest.dtypes import SAFETENSORS
from ckptstore.manifest.model import Ready, ShardEntry, TensorEntry

MODEL_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a tensor, and the shard it lies in."""

    shard: ShardEntry
    entry: TensorEntry


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """A tensor, the chunks that exactly make it up, and what becomes of its numbers."""

    slot: Slot
    chunks: tuple[Chunk, ...]
    cast: Cast | None = None

    def as_type(self, target: str | None) -> WholeTensor:
        """Return the tensor as it is once its numbers are of that type, if they are floats."""
        cast = cast_of(self.slot.name, self.slot.dtype, target)
        if cast is None:
            return self
        for chunk in self.chunks:
            if chunk.entry.start % cast.source_bytes or (
                chunk.shard.block_size_bytes % cast.source_bytes
            ):  # A cut between blocks would split a number.
                raise UsageError(
                    f"{self.slot.name} does not lie on whole numbers in {chunk.shard.key}, so "
                    "its type cannot be changed; restore it without --dtype"
                )
        item_bytes = SAFETENSORS[cast.target].item_size_bytes
        slot = replace(self.slot, dtype=cast.target, item_bytes=item_bytes)
        return WholeTensor(slot, self.chunks, cast)

    def extents(self, path: str, base: int) -> list[Extent]:
        """Return where the chunks go if the tensor begins at byte ``base`` of a file."""
        return [
            Extent(
                chunk.shard,
                chunk.entry.start,
                chunk.entry.stop,
                Placement(
                    path=path,
                    base=base,
                    item_bytes=self.slot.item_bytes,
                    shape=chunk.entry.shape,
                    offsets=chunk.entry.offsets,
                    sizes=chunk.entry.sizes,
                ),
                cast=self.cast,
            )
            for chunk in self.chunks
        ]


def plan_assembled(
    records: Sequence[Ready],
    selection: Selection,
    *,
    dtype: str | None = None,
    file_bytes_max: int | None = None,
) -> FetchPlan:
    """Plan ``model.safetensors`` with all wanted tensors in full, as ``dtype`` if they are floats.

    If they take more than ``file_bytes_max``, they come in several files, in the order of their
    names, with the index that Hugging Face's readers look for; a larger tensor has a file of
    its own. Items that are not tensors cannot be in them; they are ``left_out``.
    """
    tensors = [tensor.as_type(dtype) for tensor in whole_tensors(records, selection)]
    if not tensors:
        raise UsageError("there are no tensors among what is to be restored; use --format native")
    groups = _grouped(tensors, file_bytes_max)
    names = [MODEL_NAME]
    if len(groups) > 1:
        names = [f"model-{n:05d}-of-{len(groups):05d}.safetensors" for n in _from_1(groups)]
    parts = [_one_file(name, group) for name, group in zip(names, groups, strict=True)]
    files = [file for file, _ in parts]
    if len(groups) > 1:
        files.append(_index(names, groups))
    left_out = {item.name for record in records for item in record.items if item.name in selection}
    return FetchPlan(
        files=tuple(files),
        extents=tuple(extent for _, extents in parts for extent in extents),
        left_out=tuple(sorted(left_out)),
    )


def _grouped(tensors: Sequence[WholeTensor], file_bytes_max: int | None) -> list[list[WholeTensor]]:
    groups: list[list[WholeTensor]] = [[]]
    size_bytes = 0
    for tensor in tensors:
        size_bytes += tensor.slot.size_bytes
        if groups[-1] and file_bytes_max is not None and size_bytes > file_bytes_max:
            groups.append([])
            size_bytes = tensor.slot.size_bytes
        groups[-1].append(tensor)
    return groups


def _from_1(groups: Sequence[object]) -> range:
    return range(1, len(groups) + 1)


def _one_file(name: str, tensors: Sequence[WholeTensor]) -> tuple[OutputFile, list[Extent]]:
    """Plan one file. Wide types come first, so that every tensor is aligned to its items."""
    tensors = sorted(tensors, key=lambda tensor: -tensor.slot.item_bytes)
    slots = [tensor.slot for tensor in tensors]
    head, starts = file_head(slots, {"format": "pt"})
    extents = [
        extent
        for tensor, start in zip(tensors, starts, strict=True)
        for extent in tensor.extents(name, start)
    ]
    size_bytes = starts[-1] + slots[-1].size_bytes
    return OutputFile(path=name, size_bytes=size_bytes, head=head), extents


def _index(names: Sequence[str], groups: Sequence[Sequence[WholeTensor]]) -> OutputFile:
    slots = {t.slot.name: (name, t.slot) for name, g in zip(names, groups, strict=True) for t in g}
    facts = {
        "metadata": {"total_size": sum(slot.size_bytes for _, slot in slots.values())},
        "weight_map": {tensor: name for tensor, (name, _) in slots.items()},
    }
    head = json.dumps(facts, indent=2).encode() + b"\n"
    return OutputFile(path=INDEX_NAME, size_bytes=len(head), head=head)


def whole_tensors(records: Sequence[Ready], selection: Selection) -> list[WholeTensor]:
    """Return the wanted tensors, sorted by name, each with chunks that exactly make it up.

    A chunk that several ranks saved is taken once. Raises ``IntegrityError`` if chunks
    overlap, contradict each other or leave a hole.
    """
    chunks: dict[str, dict[tuple[int, ...], Chunk]] = {}
    for record in records:
        for entry in record.tensors:
            if entry.name in selection:
                box = (*entry.offsets, *entry.sizes)
                chunk = Chunk(record.shards[entry.shard], entry)
                chunks.setdefault(entry.name, {}).setdefault(box, chunk)
    return [_whole(name, list(boxes.values())) for name, boxes in sorted(chunks.items())]


def _whole(name: str, chunks: Sequence[Chunk]) -> WholeTensor:
    first = chunks[0].entry
    item_bytes = 0  # Of an empty tensor of a type we do not know.
    for chunk in chunks:
        entry = chunk.entry
        if (entry.dtype, entry.shape) != (first.dtype, first.shape):
            raise IntegrityError(
                f"{name} is {first.dtype} {list(first.shape)} in one chunk and {entry.dtype} "
                f"{list(entry.shape)} in another"
            )
        item_bytes = max(item_bytes, chunk_slot(entry).item_bytes)
    slot = Slot(name=name, dtype=first.dtype, item_bytes=item_bytes, shape=first.shape)
    filled = [chunk for chunk in chunks if math.prod(chunk.entry.sizes)]
    _check_partition(name, first.shape, [chunk.entry for chunk in filled])
    return WholeTensor(slot, tuple(filled))


def _check_partition(name: str, shape: Sequence[int], entries: Sequence[TensorEntry]) -> None:
    """Raise unless every element of the tensor is in exactly one chunk.

    The chunks' edges cut the tensor into cells; regular sharding gives each chunk one cell.
    """
    edges = [
        sorted({edge for entry in entries for edge in _ends(entry, axis)})
        for axis in range(len(shape))
    ]
    seen: set[tuple[int, ...]] = set()
    covered = 0
    for entry in entries:
        spans = []
        for axis, places in enumerate(edges):
            start, stop = _ends(entry, axis)
            spans.append(range(bisect_left(places, start), bisect_left(places, stop)))
        for cell in product(*spans):
            if cell in seen:
                raise IntegrityError(f"two chunks of {name} overlap at {list(entry.offsets)}")
            seen.add(cell)
        covered += math.prod(entry.sizes)
    if covered != math.prod(shape):
        raise IntegrityError(f"{name}: its chunks hold {covered} of {math.prod(shape)} elements")


def _ends(entry: TensorEntry, axis: int) -> tuple[int, int]:
    return entry.offsets[axis], entry.offsets[axis] + entry.sizes[axis]
