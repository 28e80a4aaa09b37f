"""What to write where: files, and which bytes of which shard go into them. Pure: no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from ckptstore.fetch.cast import Cast
from ckptstore.manifest.model import ShardEntry

BATCH_EXTENTS_MAX: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """A file to create, ``head`` standing at its start; the rest comes from shards."""

    path: str
    size_bytes: int
    head: bytes = b""
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes that stay together: ``size`` of them, from here in the span to there in the file."""

    source: int
    target: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the bytes of a span belong: a box inside a row-major array that a file holds.

    The array begins at byte ``base`` of the file; ``shape``, ``offsets`` and ``sizes`` count
    items of ``item_bytes`` bytes. Bytes that just follow each other are an array of one axis.
    """

    path: str
    base: int
    item_bytes: int
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def flat(cls, path: str, base: int, size_bytes: int) -> Placement:
        return cls(
            path=path,
            base=base,
            item_bytes=1,
            shape=(size_bytes,),
            offsets=(0,),
            sizes=(size_bytes,),
        )

    @property
    def size_bytes(self) -> int:
        return math.prod(self.sizes) * self.item_bytes

    def runs(self, start: int, stop: int) -> Iterator[Run]:
        """Yield where the bytes ``[start, stop)`` of the box go, in as few pieces as possible."""
        split = self._rows_end()
        strides = _strides(self.shape, self.item_bytes)
        row_bytes = math.prod(self.sizes[split:]) * self.item_bytes
        inner = sum(o * s for o, s in zip(self.offsets[split:], strides[split:], strict=True))
        at = start
        while at < stop:
            row, skipped = divmod(at, row_bytes)
            target = self.base + inner + skipped
            for axis in reversed(range(split)):
                row, place = divmod(row, self.sizes[axis])
                target += (self.offsets[axis] + place) * strides[axis]
            size = min(row_bytes - skipped, stop - at)
            yield Run(at, target, size)
            at += size

    def _rows_end(self) -> int:
        """Return the first axis from which on the box lies in one piece in the array."""
        axis = len(self.shape)
        while axis and self.sizes[axis:] == self.shape[axis:]:
            axis -= 1
        return axis


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes ``[start, stop)`` of a shard: those of ``placement`` from its byte ``skip`` on.

    With a ``cast``, ``skip`` counts bytes as the shard has them, the placement as they become.
    """

    shard: ShardEntry
    start: int
    stop: int
    placement: Placement
    skip: int = 0
    cast: Cast | None = None

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start

    def placed(self, data: memoryview) -> memoryview:
        """Return the bytes to write for the bytes that the shard has."""
        return self.cast(data) if self.cast else data

    def runs(self) -> Iterator[Run]:
        """Yield where the placed bytes go; sources count from the start of the extent."""
        start, stop = self.skip, self.skip + self.size_bytes
        if self.cast:
            start, stop = self.cast.placed_bytes(start), self.cast.placed_bytes(stop)
        for run in self.placement.runs(start, stop):
            yield replace(run, source=run.source - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """All files of a restored directory and where their bytes come from."""

    files: tuple[OutputFile, ...]
    extents: tuple[Extent, ...]
    left_out: tuple[str, ...] = ()  # Names that the chosen format cannot hold.

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def plan_batches(extents: Iterable[Extent], batch_bytes: int) -> list[tuple[Extent, ...]]:
    """Cut and gather extents into batches of at most ``batch_bytes`` (or of one block).

    Small ones come together, up to ``BATCH_EXTENTS_MAX``, for others have to get work as well.
    The cuts are on whole blocks, at the same places for all extents of a shard, and what lies
    between two cuts stays in one batch if it fits: so a block is seldom read twice.
    """
    windows = sorted(
        (window for extent in extents for window in _cut(extent, batch_bytes)),
        key=lambda extent: (extent.shard.key, extent.start),
    )
    batches: list[tuple[Extent, ...]] = []
    batch: list[Extent] = []
    room = batch_bytes
    for _, group in groupby(windows, key=lambda extent: _window_of(extent, batch_bytes)):
        together = tuple(group)
        for unit in [together] if _size(together) <= batch_bytes else [(e,) for e in together]:
            if batch and (_size(unit) > room or len(batch) >= BATCH_EXTENTS_MAX):
                batches.append(tuple(batch))
                batch, room = [], batch_bytes
            batch += unit
            room -= _size(unit)
    return [*batches, tuple(batch)] if batch else batches


def _cut(extent: Extent, batch_bytes: int) -> Iterator[Extent]:
    window_bytes = _window_bytes(extent.shard, batch_bytes)
    start = extent.start
    while start < extent.stop:
        stop = min((start // window_bytes + 1) * window_bytes, extent.stop)
        yield replace(extent, start=start, stop=stop, skip=extent.skip + start - extent.start)
        start = stop


def _window_of(extent: Extent, batch_bytes: int) -> tuple[str, int]:
    return extent.shard.key, extent.start // _window_bytes(extent.shard, batch_bytes)


def _window_bytes(shard: ShardEntry, batch_bytes: int) -> int:
    return max(batch_bytes // shard.block_size_bytes, 1) * shard.block_size_bytes


def _size(extents: Sequence[Extent]) -> int:
    return sum(extent.size_bytes for extent in extents)


def _strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) * item_bytes for axis in range(len(shape)))
