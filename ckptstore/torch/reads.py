"""Decide which bytes of a saved chunk a load must read. Pure: no I/O, no tensors.

A chunk lies in its shard in row-major order. A box of it is one run of bytes only if it is
whole in all dimensions but the first in which it has an extent; else it is read with its
neighbours, or run by run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

RUN_BYTES_MIN: Final = 1 << 20  # Runs at least this long are read one by one.

Extent = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a chunk, in elements. It is never empty."""

    offsets: Extent
    lengths: Extent


@dataclass(frozen=True, slots=True)
class Piece:
    """A box and the bytes ``[start, stop)`` of the chunk that hold it.

    Read as an array of shape ``shape``, these bytes hold the box at ``at``. ``exact`` says
    that they hold nothing else.
    """

    box: Box
    start: int
    stop: int
    shape: Extent
    at: Extent

    @property
    def exact(self) -> bool:
        return self.shape == self.box.lengths


def plan_pieces(sizes: Extent, box: Box, item_size_bytes: int) -> list[Piece]:
    """Return pieces that together hold the box: one, or one a run where runs are long."""
    piece = _spanning(sizes, box, item_size_bytes)
    dim = _first_extent(box)
    if piece.exact or math.prod(box.lengths[dim + 1 :]) * item_size_bytes < RUN_BYTES_MIN:
        return [piece]
    return [
        part
        for row in _rows(box, dim, rows_max=1)
        for part in plan_pieces(sizes, row, item_size_bytes)
    ]


def cut_piece(sizes: Extent, piece: Piece, item_size_bytes: int, bytes_max: int) -> Iterator[Piece]:
    """Yield pieces of at most ``bytes_max`` bytes (or one item) that hold the same box."""
    dim = _first_extent(piece.box)
    if piece.stop - piece.start <= bytes_max or dim == len(sizes):
        yield piece
        return
    row_bytes = math.prod(sizes[dim + 1 :]) * item_size_bytes
    for box in _rows(piece.box, dim, rows_max=max(bytes_max // row_bytes, 1)):
        yield from cut_piece(
            sizes, _spanning(sizes, box, item_size_bytes), item_size_bytes, bytes_max
        )


def _first_extent(box: Box) -> int:
    """Return the first dimension in which the box is longer than 1, or how many there are."""
    return next((dim for dim, length in enumerate(box.lengths) if length > 1), len(box.lengths))


def _rows(box: Box, dim: int, *, rows_max: int) -> Iterator[Box]:
    for row in range(0, box.lengths[dim], rows_max):
        offsets, lengths = list(box.offsets), list(box.lengths)
        offsets[dim] += row
        lengths[dim] = min(rows_max, lengths[dim] - row)
        yield Box(tuple(offsets), tuple(lengths))


def _spanning(sizes: Extent, box: Box, item_size_bytes: int) -> Piece:
    """Return the piece that reads whole rows of the first dimension that has an extent."""
    dim = _first_extent(box)
    start, stride = 0, math.prod(sizes)
    for size, offset in zip(sizes[: dim + 1], box.offsets[: dim + 1], strict=True):
        stride //= size
        start += offset * stride
    shape = (*box.lengths[: dim + 1], *sizes[dim + 1 :])
    at = (*(0 for _ in shape[: dim + 1]), *box.offsets[dim + 1 :])
    start_bytes = start * item_size_bytes
    return Piece(box, start_bytes, start_bytes + math.prod(shape) * item_size_bytes, shape, at)
