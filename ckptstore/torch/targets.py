"""Where bytes that are read end up: in a tensor's own memory, or beside it and then copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch

from ckptstore.manifest.model import ShardEntry, TensorEntry
from ckptstore.restore.reader import Wanted
from ckptstore.torch.metadata import Stored
from ckptstore.torch.reads import Box, Piece, cut_piece, plan_pieces
from ckptstore.torch.tensors import byte_view, is_plain


class Target(Protocol):
    """Bytes of a shard that are wanted.

    ``scratch_bytes`` is what ``want`` allocates and ``take``, called once the bytes were read
    and verified, lets go of.
    """

    @property
    def shard(self) -> ShardEntry: ...
    @property
    def start(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...
    def want(self) -> Wanted: ...
    def take(self) -> None: ...


class InPlace:
    """A tensor whose own memory is filled."""

    scratch_bytes = 0

    def __init__(self, shard: ShardEntry, start: int, tensor: torch.Tensor) -> None:
        self.shard = shard
        self.start = start
        self._tensor = tensor

    def want(self) -> Wanted:
        return Wanted(self.shard, self.start, byte_view(self._tensor))

    def take(self) -> None:
        """Nothing to do: the bytes are where they belong."""


class Beside:
    """A tensor that is strided or on a device, or whose bytes lie among others in the shard."""

    def __init__(self, shard: ShardEntry, start: int, tensor: torch.Tensor, piece: Piece) -> None:
        self.shard = shard
        self.start = start
        self.scratch_bytes = piece.stop - piece.start
        self._tensor = tensor
        self._piece = piece
        self._scratch: torch.Tensor | None = None

    def want(self) -> Wanted:
        self._scratch = torch.empty(self._piece.shape, dtype=self._tensor.dtype)
        return Wanted(self.shard, self.start, byte_view(self._scratch))

    def take(self) -> None:
        assert self._scratch is not None
        box = Box(self._piece.at, self._piece.box.lengths)
        self._tensor.copy_(narrowed(self._scratch, box))
        self._scratch = None


class Item:
    """A non-tensor item, kept until it can be looked into."""

    scratch_bytes = 0  # It is kept, so it is no memory that a wave gives back.

    def __init__(self, stored: Stored) -> None:
        self.shard = stored.shard
        self.start = stored.entry.start
        self._size_bytes = stored.entry.stop - stored.entry.start
        self.data = bytearray()

    def want(self) -> Wanted:
        self.data = bytearray(self._size_bytes)
        return Wanted(self.shard, self.start, memoryview(self.data))

    def take(self) -> None:
        """Nothing to do yet."""


def tensor_targets(
    shard: ShardEntry,
    entry: TensorEntry,
    box: Box,
    tensor: torch.Tensor,
    *,
    scratch_bytes_max: int,
) -> Iterator[Target]:
    """Yield what fills ``tensor`` with a box of the chunk; both have the same size and dtype."""
    if tensor.numel() == 0:
        return
    item_bytes = tensor.element_size()
    for piece in plan_pieces(entry.sizes, box, item_bytes):
        part = _part_for(piece, box, tensor)
        if piece.exact and is_plain(part):
            yield InPlace(shard, entry.start + piece.start, part)
            continue
        for small in cut_piece(entry.sizes, piece, item_bytes, scratch_bytes_max):
            yield Beside(shard, entry.start + small.start, _part_for(small, box, tensor), small)


def waves(targets: Iterable[Target], *, scratch_bytes_max: int) -> Iterator[list[Target]]:
    """Yield the targets in the order of the store, in groups within the scratch memory allowed."""
    wave: list[Target] = []
    scratch_bytes = 0
    for target in sorted(targets, key=lambda target: (target.shard.key, target.start)):
        if wave and scratch_bytes + target.scratch_bytes > scratch_bytes_max:
            yield wave
            wave, scratch_bytes = [], 0
        wave.append(target)
        scratch_bytes += target.scratch_bytes
    if wave:
        yield wave


def narrowed(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    if tensor.shape == box.lengths:  # All of it; to make a view costs more than to look.
        return tensor
    for dim, (offset, length) in enumerate(zip(box.offsets, box.lengths, strict=True)):
        tensor = tensor.narrow(dim, offset, length)
    return tensor


def _part_for(piece: Piece, box: Box, tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of ``tensor``, which is as large as ``box``, that the piece fills."""
    within = tuple(
        inner - outer for inner, outer in zip(piece.box.offsets, box.offsets, strict=True)
    )
    return narrowed(tensor, Box(within, piece.box.lengths))
