"""Whole tensors are made of chunks that fit together, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import IntegrityError
from ckptstore.fetch.assembled import whole_tensors
from ckptstore.fetch.selection import Selection
from ckptstore.integrity import block_crcs, pack_crcs, whole_crc
from ckptstore.manifest.layout import ShardKind, data_key
from ckptstore.manifest.model import Ready, ShardEntry, TensorEntry
from tests.cli.tensors import Array, Box

UID = "i000001-s000000000001-a00-0000abcd"
SIZE_BYTES = 4096


def ready(entries: list[TensorEntry], rank: int = 0) -> Ready:
    crcs = block_crcs([memoryview(bytes(SIZE_BYTES))], SIZE_BYTES)
    shard = ShardEntry(
        key=data_key("net", UID, rank, 0, ShardKind.TENSORS, fan_out=1),
        size_bytes=SIZE_BYTES,
        block_size_bytes=SIZE_BYTES,
        part_size_bytes=SIZE_BYTES,
        crc64nvme=pack_crcs([whole_crc(crcs, SIZE_BYTES, SIZE_BYTES)]),
        block_crcs=pack_crcs(crcs),
    )
    return Ready(uid=UID, rank=rank, world_size=2, shards=(shard,), tensors=tuple(entries))


def chunk(
    array: Array, box: Box, *, name: str = "w", dtype: str | None = None, extra_bytes: int = 0
) -> TensorEntry:
    return TensorEntry(
        shard=0,
        start=0,
        stop=len(array.part(box)) + extra_bytes,
        name=name,
        dtype=dtype or array.dtype,
        shape=array.shape,
        offsets=box.offsets,
        sizes=box.sizes,
    )


@st.composite
def tilings(draw: st.DrawFn) -> tuple[Array, list[Box]]:
    """Draw an array and a way to cut it, again and again, into boxes."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    boxes = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 5))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, box.sizes[axis]))
        low, high = list(box.sizes), list(box.sizes)
        low[axis], high[axis] = cut, box.sizes[axis] - cut
        offsets = list(box.offsets)
        offsets[axis] += cut
        boxes += [Box(box.offsets, tuple(low)), Box(tuple(offsets), tuple(high))]
    return Array("int16", shape), draw(st.permutations(boxes))


@given(tilings())
def test_chunks_that_tile_a_tensor_make_it_up(tiling: tuple[Array, list[Box]]) -> None:
    array, boxes = tiling
    (tensor,) = whole_tensors([ready([chunk(array, box) for box in boxes])], Selection())
    filled = {box for box in boxes if all(box.sizes)}
    assert {Box(c.entry.offsets, c.entry.sizes) for c in tensor.chunks} == filled


@given(tilings(), st.data())
def test_a_tensor_with_a_hole_is_refused(
    tiling: tuple[Array, list[Box]], data: st.DataObject
) -> None:
    array, boxes = tiling
    missing = data.draw(st.sampled_from([box for box in boxes if all(box.sizes)]))
    left = [box for box in boxes if box != missing] or [
        Box((0,) * len(array.shape), (0,) * len(array.shape))
    ]
    with pytest.raises(IntegrityError, match="its chunks hold"):
        whole_tensors([ready([chunk(array, box) for box in left])], Selection())


def test_chunks_that_overlap_are_refused_even_if_their_sizes_add_up() -> None:
    array = Array("int16", (4,))
    boxes = [Box((0,), (2,)), Box((1,), (2,))]
    with pytest.raises(IntegrityError, match="overlap"):
        whole_tensors([ready([chunk(array, box) for box in boxes])], Selection())


def test_a_chunk_that_two_ranks_saved_is_taken_once() -> None:
    array = Array("int16", (4,))
    records = [ready([chunk(array, array.whole)], rank) for rank in (0, 1)]
    (tensor,) = whole_tensors(records, Selection())
    assert [c.shard.key for c in tensor.chunks] == [records[0].shards[0].key]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (chunk(Array("int16", (4,)), Box((2,), (2,)), dtype="uint16"), "int16 .* in one chunk"),
        (chunk(Array("int16", (5,)), Box((2,), (2,))), r"\[4\] in one chunk and int16 \[5\]"),
        (chunk(Array("int16", (4,)), Box((2,), (2,)), extra_bytes=2), "takes 6 bytes"),
    ],
)
def test_chunks_that_contradict_each_other_are_refused(other: TensorEntry, said: str) -> None:
    with pytest.raises(IntegrityError, match=said):
        whole_tensors([ready([chunk(Array("int16", (4,)), Box((0,), (2,))), other])], Selection())


def test_a_type_that_safetensors_does_not_have_is_kept_as_bytes() -> None:
    array = Array("float64", (2, 3))
    (tensor,) = whole_tensors(
        [ready([chunk(array, array.whole, dtype="complex_of_the_future")])], Selection()
    )
    assert tensor.slot.item_bytes == 8
    assert tensor.slot.entry(0) == {"dtype": "U8", "shape": (2, 3, 8), "data_offsets": (0, 48)}
