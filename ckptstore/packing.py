"""Blocks as they lie in a compressed shard, each by itself, so that any range stays readable.

A block is stored as one zstd frame, or as it is where that would not be smaller: the two are
told apart by the length, which the rank record holds. The bytes of floating-point numbers are
first sorted by their place in the number, for the exponents of neighbours resemble each other
and the mantissas do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import zstandard

from ckptstore.types import Buffer

INLINE_BYTES_MAX: Final = 64 * 1024  # Packed in less time than handing it to a thread takes.


class UnpackError(ValueError):
    """The stored bytes are not what a block was packed into."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Bytes ``[start, stop)`` of a shard that are numbers of ``width`` bytes each."""

    start: int
    stop: int
    width: int


def block_widths(
    numbers: Sequence[Numbers], size_bytes: int, block_size_bytes: int
) -> tuple[int, ...]:
    """Return by which width to sort each block: that of most of its bytes. Pure.

    ``numbers`` do not overlap; what lies between them counts as width 1.
    """
    shares: list[dict[int, int]] = [{} for _ in range(0, size_bytes, block_size_bytes)]
    for span in numbers:
        at = span.start
        while at < span.stop:
            block = at // block_size_bytes
            end = min((block + 1) * block_size_bytes, span.stop)
            shares[block][span.width] = shares[block].get(span.width, 0) + end - at
            at = end
    return tuple(
        _prevailing(share, size)
        for share, size in zip(shares, block_sizes(size_bytes, block_size_bytes), strict=True)
    )


def block_sizes(size_bytes: int, block_size_bytes: int) -> Iterator[int]:
    """Yield the sizes of the blocks of ``size_bytes`` bytes; the last may be short."""
    for start in range(0, size_bytes, block_size_bytes):
        yield min(block_size_bytes, size_bytes - start)


def pack_block(pieces: Sequence[memoryview], width: int, level: int) -> Buffer:
    """Return a block, given as pieces to be laid end to end, as it is to be stored."""
    raw = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
    frame = zstandard.ZstdCompressor(level=level).compress(_sorted(raw, width))
    if len(frame) >= len(raw):
        return raw
    # A copy, for the frame was shrunk from the largest that it might have become, and many of
    # those, each at the head of a free stretch, take as much room as what they were made of.
    return bytes(memoryview(frame))


def unpack_block(stored: memoryview, width: int, target: memoryview) -> None:
    """Fill ``target``, which is as large as the block was, or raise ``UnpackError``.

    Nothing larger than the block is ever allocated, whatever the stored bytes say.
    """
    if len(stored) == len(target):
        target[:] = stored
        return
    try:
        promised = zstandard.frame_content_size(stored)
        if promised != len(target):
            raise UnpackError(f"a frame of {promised} bytes")
        raw = zstandard.ZstdDecompressor().decompress(
            stored, max_output_size=len(target), allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise UnpackError(f"no zstd frame: {error}") from error
    if len(raw) != len(target):
        raise UnpackError(f"{len(raw)} bytes")
    target[:] = _unsorted(raw, width)


def _prevailing(share: dict[int, int], size_bytes: int) -> int:
    share = {**share, 1: size_bytes - sum(n for width, n in share.items() if width > 1)}
    return max(share, key=lambda width: share[width])


def _sorted(raw: memoryview, width: int) -> Buffer:
    """Bring together the first bytes of all numbers, then the second ones, and so on."""
    if width == 1:
        return raw
    data = bytes(raw)
    return b"".join(data[place::width] for place in range(width))


def _unsorted(data: bytes, width: int) -> Buffer:
    if width == 1:
        return data
    raw, at = bytearray(len(data)), 0
    for place in range(width):
        size = len(range(place, len(data), width))
        raw[place::width] = data[at : at + size]
        at += size
    return raw
