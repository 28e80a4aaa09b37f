from __future__ import annotations

import asyncio
import threading
import weakref

import pytest
import torch

from ckptstore.errors import CkptStoreError
from ckptstore.manifest.layout import ShardKind
from ckptstore.torch.safetensors import Chunk
from ckptstore.torch.shards import BrokenShard, Segments, bytes_segments, tensor_segments
from ckptstore.types import ByteRange

HEADER = b"header"


def chunks_of(*tensors: torch.Tensor) -> list[Chunk]:
    return [
        Chunk(
            name=str(index),
            dtype="uint8",
            item_size_bytes=1,
            shape=tuple(tensor.shape),
            offsets=(0,),
            sizes=tuple(tensor.shape),
        )
        for index, tensor in enumerate(tensors)
    ]


TENSORS = [torch.full((size,), size, dtype=torch.uint8) for size in (5, 0, 3, 9)]
WHOLE = HEADER + b"\x05" * 5 + b"\x03" * 3 + b"\x09" * 9


async def staged(shard: Segments, start: int, stop: int) -> bytes:
    return b"".join(await shard.stage(ByteRange(start, stop)))


async def test_any_range_is_staged_across_header_and_tensors() -> None:
    shard = tensor_segments(HEADER, chunks_of(*TENSORS), lambda index: TENSORS[index])
    assert shard.size_bytes == len(WHOLE)
    for start in range(len(WHOLE)):
        for stop in range(start + 1, len(WHOLE) + 1):
            assert await staged(shard, start, stop) == WHOLE[start:stop]


async def test_pieces_in_memory_are_staged_as_they_are() -> None:
    shard = bytes_segments(ShardKind.ITEMS, [b"ab", b"", memoryview(b"cdef")])
    assert await staged(shard, 1, 5) == b"bcde"


async def test_a_tensor_that_is_sent_in_parts_is_made_once() -> None:
    """A planner may have to convert it each time; between two parts one tensor is kept."""
    made: list[int] = []

    def make(index: int) -> torch.Tensor:
        made.append(index)
        return TENSORS[index]

    shard = tensor_segments(HEADER, chunks_of(*TENSORS), make)
    for start in range(0, len(WHOLE), 2):
        await staged(shard, start, min(start + 2, len(WHOLE)))
    assert made == [0, 2, 3]


async def test_a_tensor_is_let_go_of_once_it_was_sent() -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def make(index: int) -> torch.Tensor:
        tensor = TENSORS[index].clone()
        made.append(weakref.ref(tensor))
        return tensor

    shard = tensor_segments(HEADER, chunks_of(*TENSORS), make)
    assert await staged(shard, 0, len(WHOLE)) == WHOLE
    assert [ref() for ref in made] == [None] * 3


async def test_parts_of_different_tensors_do_not_mix_while_they_are_made() -> None:
    together = threading.Barrier(2, timeout=30)

    def make(index: int) -> torch.Tensor:
        if index != 1:
            together.wait()
        return TENSORS[index]

    shard = tensor_segments(HEADER, chunks_of(*TENSORS), make)
    both = await asyncio.gather(staged(shard, 6, 9), staged(shard, 14, 17))
    assert list(both) == [b"\x05" * 3, b"\x09" * 3]


async def test_a_tensor_that_is_not_one_is_named() -> None:
    shard = tensor_segments(HEADER, chunks_of(*TENSORS), lambda _: "no tensor")
    with pytest.raises(CkptStoreError, match="tensor 0: the planner gave str"):
        await staged(shard, 6, 7)


async def test_a_broken_shard_says_why() -> None:
    with pytest.raises(ZeroDivisionError):
        await BrokenShard(ZeroDivisionError()).stage(ByteRange(0, 1))
