"""The shards of a checkpoint as files, and a list of what is in them. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from ckptstore.fetch.plan import Extent, FetchPlan, OutputFile, Placement
from ckptstore.fetch.safetensors import chunk_slot, file_head
from ckptstore.fetch.selection import Selection
from ckptstore.manifest.dtypes import SAFETENSORS
from ckptstore.manifest.model import Attempt, ItemEntry, Ready, ShardEntry, Span, TensorEntry

MANIFEST_NAME: Final = "ckptstore-manifest.json"
FORMAT_VERSION: Final = 1

S = TypeVar("S", bound=Span)


def plan_native(attempt: Attempt, records: Sequence[Ready], selection: Selection) -> FetchPlan:
    """Plan every shard of tensors and items as a file ``<rank>-<n>.safetensors`` or ``.bytes``.

    ``ckptstore-manifest.json`` beside them holds what the rank records say. The shards are
    copied as they are; with patterns, they are written anew with only the wanted entries.
    Torch's ``HuggingFaceStorageReader`` reads either.
    """
    draft = _Draft()
    plain = [
        _add_wanted(draft, record, selection) if selection.narrows else _add_whole(draft, record)
        for record in records
    ]
    if draft.files:
        draft.files.append(_manifest_file(attempt, plain))
    return FetchPlan(files=tuple(draft.files), extents=tuple(draft.extents))


@dataclass
class _Draft:
    files: list[OutputFile] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)

    def add_span(self, path: str, base: int, shard: ShardEntry, start: int, stop: int) -> None:
        placement = Placement.flat(path, base, stop - start)
        self.extents.append(Extent(shard, start, stop, placement))


def _add_whole(draft: _Draft, record: Ready) -> dict[str, Any]:
    pushed = {entry.shard for entry in record.files}
    plain = msgspec.to_builtins(record)
    for index, shard in enumerate(record.shards):
        if index not in pushed:
            path = _name(record, index)
            draft.files.append(OutputFile(path=path, size_bytes=shard.content_bytes))
            draft.add_span(path, 0, shard, 0, shard.content_bytes)
            plain["shards"][index]["file"] = path
    return dict(plain)


def _add_wanted(draft: _Draft, record: Ready, selection: Selection) -> dict[str, Any]:
    tensors = [entry for entry in record.tensors if entry.name in selection]
    items = [entry for entry in record.items if entry.name in selection]
    written = {entry.shard for entry in (*tensors, *items)}
    shards = [
        {"file": _name(record, index) if index in written else None}
        for index in range(len(record.shards))
    ]
    return {
        **msgspec.to_builtins(record),
        "shards": shards,
        "files": [],
        "tensors": msgspec.to_builtins(_add_tensors(draft, record, tensors)),
        "items": msgspec.to_builtins(_add_items(draft, record, items)),
    }


def _add_tensors(draft: _Draft, record: Ready, wanted: list[TensorEntry]) -> list[TensorEntry]:
    """Plan safetensors files with the wanted chunks, and return the chunks as they lie there."""
    moved: list[TensorEntry] = []
    for index, chunks in _by_shard(wanted):
        path, shard = _name(record, index), record.shards[index]
        slots = [chunk_slot(chunk) for chunk in chunks]
        head, starts = file_head(slots, _sharding(chunks))
        end = len(head)
        for chunk, slot, start in zip(chunks, slots, starts, strict=True):
            end = start + slot.size_bytes
            draft.add_span(path, start, shard, chunk.start, chunk.stop)
            moved.append(msgspec.structs.replace(chunk, start=start, stop=end))
        draft.files.append(OutputFile(path=path, size_bytes=end, head=head))
    return moved


def _add_items(draft: _Draft, record: Ready, wanted: list[ItemEntry]) -> list[ItemEntry]:
    """Plan files with the wanted items, end to end, and return the items as they lie there."""
    moved: list[ItemEntry] = []
    for index, entries in _by_shard(wanted):
        path, at = _name(record, index), 0
        for entry in entries:
            end = at + entry.stop - entry.start
            draft.add_span(path, at, record.shards[index], entry.start, entry.stop)
            moved.append(msgspec.structs.replace(entry, start=at, stop=end))
            at = end
        draft.files.append(OutputFile(path=path, size_bytes=at))
    return moved


def _by_shard(entries: list[S]) -> list[tuple[int, list[S]]]:
    ordered = sorted(entries, key=attrgetter("shard", "start"))
    return [(index, list(group)) for index, group in groupby(ordered, key=attrgetter("shard"))]


def _name(record: Ready, index: int) -> str:
    return f"{record.rank:06d}-{index:04d}.{record.shards[index].content_suffix}"


def _sharding(chunks: Sequence[TensorEntry]) -> dict[str, str]:
    """Return the metadata by which torch finds out that the tensors in a file are chunks."""
    offsets = {
        chunk.name: {
            "saved_offsets": [*chunk.offsets, *([] if chunk.dtype in SAFETENSORS else [0])]
        }
        for chunk in chunks
    }
    return {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}


def _manifest_file(attempt: Attempt, records: Sequence[dict[str, Any]]) -> OutputFile:
    facts = {
        "format_version": FORMAT_VERSION,
        "run": attempt.run,
        "step": attempt.step,
        "uid": attempt.uid,
        "world_size": attempt.world_size,
        "records": list(records),
    }
    head = json.dumps(facts, indent=1).encode() + b"\n"
    return OutputFile(path=MANIFEST_NAME, size_bytes=len(head), head=head)
