"""Turn DCP's plan of a save into shards, and into what the rank record says of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from ckptstore.clock import Deadline
from ckptstore.errors import CkptStoreError, UsageError
from ckptstore.manifest.layout import ShardKind
from ckptstore.manifest.model import ItemEntry, Span, TensorEntry
from ckptstore.save import Contents
from ckptstore.torch.safetensors import SHARD_SIZE_BYTES_MAX, Chunk, ShardLayout, lay_out
from ckptstore.torch.shards import BrokenShard, Segments, bytes_segments, tensor_segments
from ckptstore.torch.tensors import dtype_name
from ckptstore.torch.threads import in_thread
from ckptstore.types import Buffer
from ckptstore.upload.source import ShardSource


@dataclass(frozen=True)
class RankPlan:
    """All that a rank writes: shards, what is in them, and where each item of the plan is."""

    sources: tuple[ShardSource, ...]
    contents: Contents
    spans: tuple[Span, ...]


def lay_out_plan(
    plan: SavePlan, planner: SavePlanner, *, shard_size_bytes_max: int = SHARD_SIZE_BYTES_MAX
) -> RankPlan:
    """Return what to write for this plan. Tensors are only looked at when they are sent.

    Non-tensor items are serialized here and now, and held until they are written.
    """
    tensors = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
    others = [item for item in plan.items if item.type == WriteItemType.BYTE_IO]
    layouts = lay_out(
        chunks := [_chunk(item) for item in tensors], shard_size_bytes_max=shard_size_bytes_max
    )
    sources = [_tensor_shard(layout, chunks, tensors, planner) for layout in layouts]
    tensor_entries = _tensor_entries(layouts, sources, chunks, tensors)
    item_entries: list[ItemEntry] = []
    if others:
        sources.append(bytes_segments(ShardKind.ITEMS, [_serialized(i, planner) for i in others]))
        item_entries = _item_entries(len(sources) - 1, sources[-1], others)
    remaining_tensors, remaining_items = iter(tensor_entries), iter(item_entries)
    return RankPlan(
        tuple(sources),
        Contents(
            tensors=tuple(tensor_entries),
            items=tuple(item_entries),
            paths=_paths(plan),
            versions={"ckptstore": version("ckptstore"), "torch": str(torch.__version__)},
        ),
        tuple(
            next(remaining_items if item.type == WriteItemType.BYTE_IO else remaining_tensors)
            for item in plan.items
        ),
    )


async def laid_out(lay_out: Callable[[], RankPlan], until: Deadline) -> RankPlan:
    """Return what ``lay_out`` returns; if it fails or hangs, a plan that says so.

    Even a bug is a vote: the other ranks are waiting to hear it.
    """
    try:
        async with until.enforce("serialize what is to be saved"):
            return await in_thread(lay_out)
    except Exception as error:
        return broken_plan(error)


def broken_plan(error: Exception) -> RankPlan:
    """Return what a rank writes that cannot write: a vote that says so."""
    return RankPlan((BrokenShard(error),), Contents(), ())


def _chunk(item: WriteItem) -> Chunk:
    data = item.tensor_data
    if data is None:
        raise CkptStoreError(f"the planner's item for tensor {item.index.fqn} has no tensor data")
    return Chunk(
        name=item.index.fqn,
        dtype=dtype_name(data.properties.dtype),
        item_size_bytes=data.properties.dtype.itemsize,
        shape=tuple(data.size),
        offsets=tuple(data.chunk.offsets),
        sizes=tuple(data.chunk.sizes),
    )


def _tensor_shard(
    layout: ShardLayout, chunks: Sequence[Chunk], items: Sequence[WriteItem], planner: SavePlanner
) -> Segments:
    return tensor_segments(
        layout.header,
        [chunks[index] for index in layout.chunks],
        lambda place: planner.resolve_data(items[layout.chunks[place]]),
    )


def _tensor_entries(
    layouts: Sequence[ShardLayout],
    sources: Sequence[Segments],
    chunks: Sequence[Chunk],
    items: Sequence[WriteItem],
) -> list[TensorEntry]:
    """Return the entries in the order of the chunks."""
    entries: dict[int, TensorEntry] = {}
    for shard, (layout, source) in enumerate(zip(layouts, sources, strict=True)):
        for place, index in enumerate(layout.chunks, start=1):  # The header is the first segment.
            chunk, data = chunks[index], items[index].tensor_data
            entries[index] = TensorEntry(
                shard=shard,
                start=source.starts[place],
                stop=source.starts[place + 1],
                name=chunk.name,
                dtype=chunk.dtype,
                shape=chunk.shape,
                offsets=chunk.offsets,
                sizes=chunk.sizes,
                requires_grad=data is not None and data.properties.requires_grad,
            )
    return [entries[index] for index in range(len(chunks))]


def _item_entries(shard: int, source: Segments, items: Sequence[WriteItem]) -> list[ItemEntry]:
    return [
        ItemEntry(
            shard=shard,
            start=source.starts[place],
            stop=source.starts[place + 1],
            name=item.index.fqn,
        )
        for place, item in enumerate(items)
    ]


def _serialized(item: WriteItem, planner: SavePlanner) -> Buffer:
    try:
        data = planner.resolve_data(item)
    except Exception as error:
        raise CkptStoreError(f"item {item.index.fqn}: its data failed: {error!r}") from error
    if not isinstance(data, io.BytesIO):
        raise CkptStoreError(f"item {item.index.fqn}: the planner gave {type(data).__name__}")
    return data.getbuffer()


def _paths(plan: SavePlan) -> dict[str, tuple[str | int, ...]] | None:
    """Return where the flat names of this rank's items lead, as the planner noted it.

    A planner may put anything into a plan, but a record holds no pickle: what is not a path of
    strings and integers is refused here, where it can still be changed.
    """
    noted = plan.planner_data
    if noted is None:
        return None
    if not isinstance(noted, dict):
        raise UsageError(
            f"the planner attaches a {type(noted).__name__} to its plan; only a dict of paths, "
            "as DefaultSavePlanner does, can be saved"
        )
    names = {item.index.fqn for item in plan.items}
    return {name: _path(name, path) for name, path in noted.items() if name in names}


def _path(name: object, path: Any) -> tuple[str | int, ...]:  # noqa: ANN401
    if not isinstance(name, str) or not isinstance(path, Iterable):
        raise UsageError(f"the planner's path of {name!r} is {path!r}: not a path")
    steps = tuple(path)
    if any(type(step) not in (str, int) for step in steps):
        raise UsageError(
            f"{name!r} lies under the key {steps!r} of the state dict; keys must be strings or "
            "integers to be saved"
        )
    return steps
