"""Compare two tensors by their numbers, read in pieces of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ckptstore.fetch.cast import FLOATS, as_float32, require_numpy
from ckptstore.fetch.diff import Change, Difference, Piece
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.types import MIB

WINDOW_BYTES: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class Compared:
    """A difference that the bytes settled, and how large it is.

    ``relative_norm`` is the norm of the change over that of what was before; ``None`` for what
    are no floating-point numbers, or if there was nothing before.
    """

    difference: Difference
    bytes_verified: int = 0
    relative_norm: float | None = None


async def compare_values(
    before: CheckedReader, after: CheckedReader, difference: Difference
) -> Compared:
    """Read both sides and settle what the checksums left open.

    Takes twice ``WINDOW_BYTES`` of memory. What is sharded in another way on either side stays
    unknown. Raises ``IntegrityError`` if a side is damaged.
    """
    old, new = difference.before, difference.after
    comparable = old and new and old.pieces.keys() == new.pieces.keys()
    if not (old and new and comparable) or (old.dtype, old.shape) != (new.dtype, new.shape):
        return Compared(difference)
    sums = _Sums(old.dtype)
    verified = 0
    for place, piece in old.pieces.items():
        other = new.pieces[place]
        if piece.size_bytes != other.size_bytes:
            return Compared(replace(difference, change=Change.CHANGED))
        for start, size_bytes in _windows(piece):
            one, two = bytearray(size_bytes), bytearray(size_bytes)
            verified += await before.read_wanted([_wanted(piece, start, one)])
            verified += await after.read_wanted([_wanted(other, start, two)])
            sums.add(one, two)
    change = Change.CHANGED if sums.differs else Change.SAME
    return Compared(replace(difference, change=change), verified, sums.relative_norm)


def _windows(piece: Piece) -> Iterator[tuple[int, int]]:
    for start in range(0, piece.size_bytes, WINDOW_BYTES):
        yield start, min(WINDOW_BYTES, piece.size_bytes - start)


def _wanted(piece: Piece, start: int, memory: bytearray) -> Wanted:
    return Wanted(piece.shard, piece.span.start + start, memoryview(memory))


class _Sums:
    """Squares of what was, and of what changed."""

    def __init__(self, dtype: str | None) -> None:
        self.differs = False
        self._dtype = dtype if dtype in FLOATS else None
        self._was = 0.0
        self._changed = 0.0

    def add(self, one: bytearray, two: bytearray) -> None:
        self.differs = self.differs or one != two
        if self._dtype is not None:
            was, now = self._numbers(one), self._numbers(two)
            self._was += float((was * was).sum())
            self._changed += float(((now - was) ** 2).sum())

    def _numbers(self, data: bytearray) -> Any:  # noqa: ANN401
        assert self._dtype is not None
        return as_float32(require_numpy(), memoryview(data), self._dtype).astype("<f8")

    @property
    def relative_norm(self) -> float | None:
        if self._dtype is None or not (self._was or not self._changed):
            return None
        norm = math.sqrt(self._changed / self._was) if self._was else 0.0
        return norm if math.isfinite(norm) else None
