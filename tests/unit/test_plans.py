"""The pure planners: parts of an upload, reads of a restore."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import UsageError
from ckptstore.restore.plan import DirectRead, plan_reads
from ckptstore.types import MIB, ByteRange, Capabilities
from ckptstore.upload.plan import plan_part_size, plan_parts

S3 = Capabilities(
    part_size_bytes_min=5 * MIB, part_size_bytes_max=5 * 1024 * MIB, part_count_max=10_000
)


@given(
    size=st.integers(0, 10_000),
    wish=st.integers(1, 50),
    block=st.integers(1, 20),
    count_max=st.integers(1, 40),
)
def test_parts_cover_the_object_in_whole_blocks(
    size: int, wish: int, block: int, count_max: int
) -> None:
    limits = Capabilities(part_count_max=count_max)
    step = plan_part_size(size, part_size_bytes=wish, block_size_bytes=block, capabilities=limits)
    parts = plan_parts(size, step)
    assert step % block == 0
    assert len(parts) <= count_max
    assert [part.index for part in parts] == list(range(len(parts)))
    assert sum(part.byte_range.size_bytes for part in parts) == size
    assert all(part.byte_range.size_bytes == step for part in parts[:-1])
    assert all(a.byte_range.stop == b.byte_range.start for a, b in pairwise(parts))


def test_a_shard_of_5_tib_fits_s3() -> None:
    size = 5 * 1024 * 1024 * MIB
    step = plan_part_size(size, part_size_bytes=16 * MIB, block_size_bytes=4 * MIB, capabilities=S3)
    assert len(plan_parts(size, step)) <= 10_000
    assert step < 600 * MIB


def test_a_shard_that_no_part_count_can_hold_is_refused() -> None:
    limits = Capabilities(part_size_bytes_max=10, part_count_max=10)
    with pytest.raises(UsageError, match="shard the state over more ranks"):
        plan_part_size(101, part_size_bytes=1, block_size_bytes=1, capabilities=limits)


@st.composite
def some_reads(draw: st.DrawFn) -> tuple[int, int, int, list[ByteRange]]:
    size = draw(st.integers(1, 200))
    ranges = draw(
        st.lists(
            st.tuples(st.integers(0, size - 1), st.integers(1, size)).map(
                lambda pair: ByteRange(pair[0], min(pair[0] + pair[1], size))
            ),
            max_size=8,
        )
    )
    return size, draw(st.integers(1, 16)), draw(st.integers(1, 64)), ranges


@given(some_reads())
def test_reads_fill_every_wanted_byte_out_of_whole_blocks(
    case: tuple[int, int, int, list[ByteRange]],
) -> None:
    size, block, read_size, wanted = case
    data = bytes(index % 251 for index in range(size))
    targets = [bytearray(byte_range.size_bytes) for byte_range in wanted]
    reads = plan_reads(wanted, size_bytes=size, block_size_bytes=block, read_size_bytes=read_size)
    for read in reads:
        start, stop = read.byte_range.start, read.byte_range.stop
        assert start % block == 0
        assert stop % block == 0 or stop == size
        assert stop - start <= max(read_size, block)
        if isinstance(read, DirectRead):
            targets[read.wanted][read.target : read.target + stop - start] = data[start:stop]
        else:
            for copy in read.copies:
                assert start <= copy.source
                assert copy.source + copy.size <= stop
                piece = data[copy.source : copy.source + copy.size]
                targets[copy.wanted][copy.target : copy.target + copy.size] = piece
    assert targets == [data[r.start : r.stop] for r in wanted]
    assert [read.byte_range.start for read in reads] == sorted(r.byte_range.start for r in reads)


def test_twenty_thousand_small_tensors_are_one_read() -> None:
    wanted = [ByteRange(64 * index, 64 * index + 64) for index in range(20_000)]
    reads = plan_reads(
        wanted, size_bytes=64 * 20_000, block_size_bytes=4 * MIB, read_size_bytes=16 * MIB
    )
    assert len(reads) == 1


def test_a_large_tensor_is_read_straight_into_place() -> None:
    wanted = [ByteRange(100, 100 + 40 * MIB)]
    reads = plan_reads(
        wanted, size_bytes=64 * MIB, block_size_bytes=4 * MIB, read_size_bytes=16 * MIB
    )
    direct = sum(r.byte_range.size_bytes for r in reads if isinstance(r, DirectRead))
    assert direct == 36 * MIB
