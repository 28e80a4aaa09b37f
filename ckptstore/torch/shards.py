"""Shards that are staged out of the trainer's own memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NoReturn

import torch

from ckptstore.errors import CkptStoreError
from ckptstore.manifest.layout import ShardKind
from ckptstore.torch.safetensors import Chunk
from ckptstore.torch.tensors import bytes_between, dtype_name
from ckptstore.torch.threads import in_thread
from ckptstore.types import Buffer, ByteRange


class Segments:
    """A shard made of segments, end to end; a segment hands out any of its bytes.

    Staging runs in a thread, so that neither a copy from a device nor a planner that converts
    on the way keeps the loop from watching deadlines.
    """

    def __init__(
        self,
        kind: ShardKind,
        sizes: Sequence[int],
        cut: Callable[[int, int, int], Sequence[Buffer]],
    ) -> None:
        self.kind = kind
        self.starts = list(accumulate(sizes, initial=0))
        self._cut = cut

    def __repr__(self) -> str:
        return f"{self.kind.name} shard of {len(self.starts) - 1} segments"

    @property
    def size_bytes(self) -> int:
        return self.starts[-1]

    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        return await in_thread(lambda: self._stage(byte_range))

    def _stage(self, byte_range: ByteRange) -> list[Buffer]:
        pieces: list[Buffer] = []
        index = bisect_right(self.starts, byte_range.start) - 1
        while index < len(self.starts) - 1 and self.starts[index] < byte_range.stop:
            start = max(byte_range.start, self.starts[index])
            stop = min(byte_range.stop, self.starts[index + 1])
            if start < stop:
                origin = self.starts[index]
                pieces += self._cut(index, start - origin, stop - origin)
            index += 1
        return pieces


def bytes_segments(kind: ShardKind, pieces: Sequence[Buffer]) -> Segments:
    """Return a shard of bytes that lie in memory already."""
    views = [memoryview(piece).cast("B") for piece in pieces]
    return Segments(
        kind, [len(view) for view in views], lambda index, start, stop: [views[index][start:stop]]
    )


def tensor_segments(
    header: bytes, chunks: Sequence[Chunk], resolve: Callable[[int], object]
) -> Segments:
    """Return a shard of a header and then the chunks' tensors, as ``resolve`` finds them.

    A tensor is resolved when its bytes are wanted, for a planner may have to make it first,
    and kept only until the next one is: at most one of them is held between two parts.
    """
    held: tuple[int, torch.Tensor] | None = None

    def cut(index: int, start: int, stop: int) -> Sequence[Buffer]:
        nonlocal held
        if index == 0:
            return [memoryview(header)[start:stop]]
        chunk = chunks[index - 1]
        mine = held  # Parts are staged in several threads: another may replace it meanwhile.
        if mine is None or mine[0] != index:
            mine = (index, _resolved(chunk, resolve, index - 1))
        held = mine if stop < chunk.size_bytes else None
        return bytes_between(mine[1], start, stop)

    sizes = [len(header), *(chunk.size_bytes for chunk in chunks)]
    return Segments(ShardKind.TENSORS, sizes, cut)


class BrokenShard:
    """Stands for what a rank could not even lay out, so that it votes FAILED, and says why."""

    kind = ShardKind.ITEMS
    size_bytes = 1

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def stage(self, byte_range: ByteRange) -> NoReturn:
        raise self._error


def _resolved(chunk: Chunk, resolve: Callable[[int], object], index: int) -> torch.Tensor:
    try:
        tensor = resolve(index)
    except Exception as error:
        raise CkptStoreError(f"tensor {chunk.name}: its data failed: {error!r}") from error
    if not isinstance(tensor, torch.Tensor):
        raise CkptStoreError(f"tensor {chunk.name}: the planner gave {type(tensor).__name__}")
    found = (dtype_name(tensor.dtype), tuple(tensor.shape))
    if found != (chunk.dtype, chunk.sizes):
        raise CkptStoreError(
            f"tensor {chunk.name}: the plan says {chunk.dtype} {list(chunk.sizes)}, "
            f"the planner gave {found[0]} {list(found[1])}"
        )
    return tensor
