"""Compressed blocks: what comes out is what went in, and nothing larger is believed."""

from __future__ import annotations

from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import UsageError
from ckptstore.packing import (
    Numbers,
    UnpackError,
    block_sizes,
    block_widths,
    pack_block,
    unpack_block,
)
from ckptstore.settings import Compression, TransferSettings, compression_wished

WIDTHS = st.sampled_from([1, 2, 4, 8])
# Some that a compressor makes smaller, and some that it does not.
DATA = st.binary(min_size=1, max_size=300) | st.builds(
    lambda piece, count: piece * count, st.binary(min_size=1, max_size=9), st.integers(1, 200)
)


def unpacked(stored: bytes, width: int, size_bytes: int) -> bytes:
    target = bytearray(size_bytes)
    unpack_block(memoryview(stored), width, memoryview(target))
    return bytes(target)


@given(DATA, WIDTHS, st.lists(st.integers(0, 300), max_size=4))
def test_a_block_comes_out_as_it_went_in_however_it_was_cut(
    data: bytes, width: int, cuts: list[int]
) -> None:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [memoryview(data)[a:b] for a, b in pairwise(ends) if b > a]
    stored = bytes(pack_block(pieces, width, 1))
    assert len(stored) <= len(data)
    assert unpacked(stored, width, len(data)) == data


def test_sorted_numbers_take_less_room() -> None:
    numbers = b"".join(bytes([n * 7919 % 256, n * 104729 % 256, 63, 128]) for n in range(5000))
    sizes = [len(pack_block([memoryview(numbers)], width, 1)) for width in (1, 4)]
    assert sizes[1] < 0.8 * sizes[0]


@given(st.binary(max_size=100), st.integers(0, 100))
def test_other_bytes_are_refused_or_have_the_right_size(stored: bytes, size_bytes: int) -> None:
    try:
        assert len(unpacked(stored, 1, size_bytes)) == size_bytes
    except UnpackError:
        assert len(stored) != size_bytes


@pytest.mark.parametrize("size_bytes", [999, 1001, 1 << 20])
def test_a_frame_of_another_size_than_the_block_is_refused_unread(size_bytes: int) -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(size_bytes))
    with pytest.raises(UnpackError, match=f"a frame of {size_bytes} bytes"):
        unpacked(frame, 1, 1000)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), WIDTHS), max_size=8),
    st.integers(0, 50),
    st.integers(1, 30),
)
def test_a_block_is_sorted_by_what_most_of_it_is(
    spans: list[tuple[int, int, int]], rest_bytes: int, block_size_bytes: int
) -> None:
    numbers, at = [], 0
    for gap, length, width in spans:
        numbers.append(Numbers(at + gap, at + gap + length, width))
        at += gap + length
    size_bytes = at + rest_bytes
    of = [1] * size_bytes
    for span in numbers:
        of[span.start : span.stop] = [span.width] * (span.stop - span.start)
    widths = block_widths(numbers, size_bytes, block_size_bytes)
    assert len(widths) == len(list(block_sizes(size_bytes, block_size_bytes)))
    for index, width in enumerate(widths):
        block = of[index * block_size_bytes : (index + 1) * block_size_bytes]
        assert block.count(width) == max(block.count(other) for other in (1, 2, 4, 8))


def test_the_environment_asks_for_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, wished in (("1", Compression()), ("yes", Compression()), ("0", None), ("", None)):
        monkeypatch.setenv("CKPTSTORE_COMPRESS", text)
        assert TransferSettings().compression == compression_wished() == wished
    monkeypatch.setenv("CKPTSTORE_COMPRESS", "maybe")
    with pytest.raises(UsageError, match="must be 1 or 0: 'maybe'"):
        TransferSettings()


@pytest.mark.parametrize("level", [0, 20])
def test_a_level_that_makes_no_sense_is_refused(level: int) -> None:
    with pytest.raises(UsageError, match="from 1 to 19"):
        Compression(level=level)
