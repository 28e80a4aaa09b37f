"""Whole tensors out of the chunks that the ranks saved. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from ckptstore.errors import IntegrityError, UsageError
from ckptstore.fetch.plan import Extent, FetchPlan, OutputFile, Placement
from ckptstore.fetch.safetensors import Slot, chunk_slot, file_head
from ckptstore.fetch.selection import Selection
from ckptstore.manifest.model import Ready, ShardEntry, TensorEntry

MODEL_NAME: Final = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a tensor, and the shard it lies in."""

    shard: ShardEntry
    entry: TensorEntry


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """A tensor, and the chunks that exactly make it up."""

    slot: Slot
    chunks: tuple[Chunk, ...]

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
            )
            for chunk in self.chunks
        ]


def plan_assembled(records: Sequence[Ready], selection: Selection) -> FetchPlan:
    """Plan one ``model.safetensors`` with all wanted tensors in full.

    Wide types come first, so that every tensor is aligned to its items, as readers expect.
    Items that are not tensors cannot be in it; they are ``left_out``.
    """
    tensors = whole_tensors(records, selection)
    tensors.sort(key=lambda tensor: -tensor.slot.item_bytes)
    if not tensors:
        raise UsageError("there are no tensors among what is to be restored; use --format native")
    slots = [tensor.slot for tensor in tensors]
    head, starts = file_head(slots, {"format": "pt"})
    extents = [
        extent
        for tensor, start in zip(tensors, starts, strict=True)
        for extent in tensor.extents(MODEL_NAME, start)
    ]
    size_bytes = starts[-1] + slots[-1].size_bytes
    left_out = {item.name for record in records for item in record.items if item.name in selection}
    return FetchPlan(
        files=(OutputFile(path=MODEL_NAME, size_bytes=size_bytes, head=head),),
        extents=tuple(extents),
        left_out=tuple(sorted(left_out)),
    )


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
