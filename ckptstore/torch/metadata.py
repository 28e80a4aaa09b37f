"""Turn a manifest into DCP's metadata."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ckptstore.errors import CkptStoreError
from ckptstore.manifest.model import ItemEntry, Manifest, ShardEntry, TensorEntry
from ckptstore.torch.tensors import dtype_named


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a chunk or an item lies. DCP keeps this for us in ``Metadata.storage_data``."""

    shard: ShardEntry
    entry: TensorEntry | ItemEntry


def metadata_of(manifest: Manifest, checkpoint_id: str) -> Metadata:
    """Return what DCP wants to know of a checkpoint.

    Where several ranks saved the same chunk or item, as they do when they plan alone, the
    lowest rank's is taken.
    """
    described: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    stored: dict[MetadataIndex, Stored] = {}
    paths: dict[str, tuple[str | int, ...]] | None = None
    for record in manifest.records:
        if record.paths is not None:
            paths = {**record.paths, **(paths or {})}
        for entry in record.tensors:
            index = MetadataIndex(entry.name, entry.offsets)
            if index not in stored:
                stored[index] = Stored(record.shards[entry.shard], entry)
                _add_chunk(described, entry, record.rank)
        for item in record.items:
            index = MetadataIndex(item.name)
            if index not in stored:
                stored[index] = Stored(record.shards[item.shard], item)
                _add_item(described, item, record.rank)
    return Metadata(
        state_dict_metadata=dict(described),
        planner_data=paths,
        storage_data=stored,
        storage_meta=StorageMeta(checkpoint_id=checkpoint_id, save_id=manifest.attempt.uid),
    )


def _add_chunk(
    described: dict[str, TensorStorageMetadata | BytesStorageMetadata],
    entry: TensorEntry,
    rank: int,
) -> None:
    dtype, size = dtype_named(entry.dtype), torch.Size(entry.shape)
    tensor = described.setdefault(
        entry.name,
        TensorStorageMetadata(
            TensorProperties(dtype=dtype, requires_grad=entry.requires_grad), size, []
        ),
    )
    if not isinstance(tensor, TensorStorageMetadata):
        raise _conflict(entry.name, rank, "a tensor", "no tensor")
    if (tensor.properties.dtype, tensor.size) != (dtype, size):
        found = f"{tensor.properties.dtype} {list(tensor.size)}"
        raise _conflict(entry.name, rank, f"{dtype} {list(size)}", found)
    tensor.chunks.append(ChunkStorageMetadata(torch.Size(entry.offsets), torch.Size(entry.sizes)))


def _add_item(
    described: dict[str, TensorStorageMetadata | BytesStorageMetadata], item: ItemEntry, rank: int
) -> None:
    if not isinstance(
        described.setdefault(item.name, BytesStorageMetadata()), BytesStorageMetadata
    ):
        raise _conflict(item.name, rank, "no tensor", "a tensor")


def _conflict(name: str, rank: int, there: str, before: str) -> CkptStoreError:
    return CkptStoreError(
        f"{name} is {there} on rank {rank} and {before} on a lower rank: they saved different "
        "things under one name; give them different names"
    )
