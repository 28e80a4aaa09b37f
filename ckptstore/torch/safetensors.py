"""Lay chunks of tensors out as safetensors files. Pure: names, numbers and a header.

A shard is a safetensors file that any reader of the format opens, and it carries the sharding
metadata that torch's ``HuggingFaceStorageReader`` looks for, so a checkpoint needs no program
of ours to be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ckptstore.errors import UsageError
from ckptstore.manifest.dtypes import SAFETENSORS

SHARD_SIZE_BYTES_MAX: Final = 4 << 30  # Cut between tensors; a larger tensor has its own shard.
HEADER_SIZE_BYTES_MAX: Final = 64 << 20  # The format's readers refuse headers above 100 MB.
# Tensor data starts on a page, so that a shard can be memory-mapped or read past the page
# cache; it costs at most as much a shard, and a rank writes few of them.
DATA_ALIGNMENT_BYTES: Final = 4096

_METADATA: Final = "__metadata__"
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One chunk of one tensor: sizes and offsets in elements, ``dtype`` by torch's name."""

    name: str
    dtype: str
    item_size_bytes: int
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.sizes) * self.item_size_bytes


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """One file: its header, then these chunks (by their place in the plan), end to end."""

    header: bytes
    chunks: tuple[int, ...]


def lay_out(
    chunks: Sequence[Chunk], *, shard_size_bytes_max: int = SHARD_SIZE_BYTES_MAX
) -> list[ShardLayout]:
    """Return the files that hold all chunks.

    A file names a tensor once, so chunks of one tensor go to different files. Within a file
    wide items come first: every tensor is then aligned to its items, as readers expect.
    """
    layouts: list[ShardLayout] = []
    for layer in _layers(chunks):
        layer.sort(key=lambda index: -chunks[index].item_size_bytes)
        layouts += [
            ShardLayout(_header([chunks[index] for index in file]), tuple(file))
            for file in _cut(chunks, layer, shard_size_bytes_max)
        ]
    return layouts


def _layers(chunks: Sequence[Chunk]) -> list[list[int]]:
    """Spread chunks over as many layers as it takes for no layer to name a tensor twice."""
    layers: list[list[int]] = []
    seen: dict[str, int] = {}
    for index, chunk in enumerate(chunks):
        depth = seen.get(chunk.name, 0)
        seen[chunk.name] = depth + 1
        if depth == len(layers):
            layers.append([])
        layers[depth].append(index)
    return layers


def _cut(chunks: Sequence[Chunk], order: Iterable[int], size_max: int) -> Iterator[list[int]]:
    file: list[int] = []
    size_bytes = header_bytes = 0
    for index in order:
        chunk = chunks[index]
        size_bytes += chunk.size_bytes
        header_bytes += _header_bytes_max(chunk)
        if file and (size_bytes > size_max or header_bytes > HEADER_SIZE_BYTES_MAX):
            yield file
            file = []
            size_bytes, header_bytes = chunk.size_bytes, _header_bytes_max(chunk)
        file.append(index)
    if file:
        yield file


def _header_bytes_max(chunk: Chunk) -> int:
    """Bound what a chunk adds: its name, once more inside a string, and its numbers."""
    return 3 * len(msgspec.json.encode(chunk.name)) + 42 * len(chunk.sizes) + 256


def _header(chunks: Sequence[Chunk]) -> bytes:
    offsets = {chunk.name: {"saved_offsets": _stored(chunk)[2]} for chunk in chunks}
    entries: dict[str, object] = {
        _METADATA: {"format": "pt", "DCP_SHARDING_INFO": msgspec.json.encode(offsets).decode()}
    }
    start = 0
    for chunk in chunks:
        if chunk.name == _METADATA:
            raise UsageError(f"no tensor can be saved as {_METADATA!r}; rename it")
        stop = start + chunk.size_bytes
        dtype, shape, _ = _stored(chunk)
        entries[chunk.name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, stop)}
        start = stop
    text = msgspec.json.encode(entries)
    text += b" " * (-(_LENGTH_BYTES + len(text)) % DATA_ALIGNMENT_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _stored(chunk: Chunk) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return dtype, shape and offsets as the file gives them.

    A dtype that the format has no name for is stored as raw bytes, with one dimension more,
    so that no reader can take them for numbers of another type; our own index knows it.
    """
    dtype = SAFETENSORS.get(chunk.dtype)
    if dtype is not None:
        return dtype.name, chunk.sizes, chunk.offsets
    return "U8", (*chunk.sizes, chunk.item_size_bytes), (*chunk.offsets, 0)
