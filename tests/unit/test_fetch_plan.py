"""Which bytes of a shard go where in a file."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.fetch.plan import BATCH_EXTENTS_MAX, Extent, Placement, plan_batches
from ckptstore.integrity import block_crcs, pack_crcs, whole_crc
from ckptstore.manifest.model import ShardEntry
from ckptstore.types import Key

BLOCK_BYTES = 4


def shard_of(size_bytes: int, name: str = "s") -> ShardEntry:
    crcs = block_crcs([memoryview(bytes(size_bytes))], BLOCK_BYTES)
    return ShardEntry(
        key=Key(f"data/{name}"),
        size_bytes=size_bytes,
        block_size_bytes=BLOCK_BYTES,
        part_size_bytes=BLOCK_BYTES,
        crc64nvme=pack_crcs([whole_crc(crcs, BLOCK_BYTES, size_bytes)]),
        block_crcs=pack_crcs(crcs),
    )


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    shape = draw(st.lists(st.integers(1, 5), max_size=4))
    offsets = [draw(st.integers(0, size - 1)) for size in shape]
    sizes = [draw(st.integers(1, n - o)) for n, o in zip(shape, offsets, strict=True)]
    return Placement(
        path="f",
        base=draw(st.integers(0, 9)),
        item_bytes=draw(st.integers(1, 8)),
        shape=tuple(shape),
        offsets=tuple(offsets),
        sizes=tuple(sizes),
    )


def places(placement: Placement) -> list[int]:
    """Return where each byte of the box goes, one by one, by the definition of row-major."""
    axes = zip(placement.offsets, placement.sizes, strict=True)
    found: list[int] = []
    for index in itertools.product(*(range(o, o + s) for o, s in axes)):
        flat = 0
        for place, size in zip(index, placement.shape, strict=True):
            flat = flat * size + place
        start = placement.base + flat * placement.item_bytes
        found += range(start, start + placement.item_bytes)
    return found


@given(placements(), st.data())
def test_every_byte_of_a_box_goes_where_row_major_order_puts_it(
    placement: Placement, data: st.DataObject
) -> None:
    expected = places(placement)
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    found = [run.target + i for run in placement.runs(start, stop) for i in range(run.size)]
    assert found == expected[start:stop]


@given(placements())
def test_a_box_is_cut_no_more_often_than_it_has_to_be(placement: Placement) -> None:
    bytes_in_order = places(placement)
    pieces = 1 + sum(b != a + 1 for a, b in itertools.pairwise(bytes_in_order))
    assert len(list(placement.runs(0, len(bytes_in_order)))) == pieces


def test_a_row_block_of_a_matrix_is_one_run() -> None:
    rows = Placement(path="f", base=8, item_bytes=2, shape=(8, 4), offsets=(2, 0), sizes=(3, 4))
    assert [(run.target, run.size) for run in rows.runs(0, 24)] == [(8 + 16, 24)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 30)), max_size=12),
    st.integers(1, 20),
)
def test_batches_hold_every_byte_once_and_stay_within_their_size(
    spans: list[tuple[int, int, int]], batch_bytes: int
) -> None:
    shards = [shard_of(64, str(number)) for number in range(3)]
    extents = [
        Extent(shards[n], start, start + size, Placement.flat(f"f{i}", 0, size))
        for i, (n, start, size) in enumerate(spans)
    ]
    batches = plan_batches(extents, batch_bytes)
    for batch in batches:
        assert sum(e.size_bytes for e in batch) <= max(batch_bytes, BLOCK_BYTES) or len(batch) == 1
    moved = sorted(
        (extent.placement.path, run.target + i, extent.shard.key, extent.start + run.source + i)
        for batch in batches
        for extent in batch
        for run in extent.runs()
        for i in range(run.size)
    )
    assert moved == sorted(
        (f"f{i}", at, shards[n].key, start + at)
        for i, (n, start, size) in enumerate(spans)
        for at in range(size)
    )


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3, 3, 3, 3, 3), (1, 7, 5, 11), (24,)])
def test_no_block_of_a_fully_wanted_shard_is_in_two_batches(sizes: tuple[int, ...]) -> None:
    shard = shard_of(24)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    extents = [
        Extent(shard, start, start + size, Placement.flat(f"f{start}", 0, size))
        for start, size in zip(starts, sizes, strict=True)
    ]
    small = Extent(shard_of(3, "before"), 0, 3, Placement.flat("before", 0, 3))
    batches = plan_batches([small, *extents], 2 * BLOCK_BYTES)
    blocks = [
        {at // BLOCK_BYTES for e in batch if e.shard == shard for at in range(e.start, e.stop)}
        for batch in batches
    ]
    assert sum(map(len, blocks)) == math.ceil(24 / BLOCK_BYTES)


def test_many_small_files_are_shared_out() -> None:
    extents = [Extent(shard_of(1, f"{n}"), 0, 1, Placement.flat(f"{n}", 0, 1)) for n in range(1000)]
    batches = plan_batches(extents, 1 << 20)
    assert max(map(len, batches)) == BATCH_EXTENTS_MAX
