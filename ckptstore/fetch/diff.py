"""What differs between two checkpoints, as far as their manifests tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ckptstore.manifest.model import Manifest, Ready, ShardEntry, Span, TensorEntry


class Change(Enum):
    """What became of a tensor, an item or a file from the one checkpoint to the other."""

    SAME = "same"
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    UNKNOWN = "unknown"  # The checksums do not tell: they cover other bytes as well.


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a shard that belong to an entry: one chunk of a tensor, or all of an item."""

    shard: ShardEntry
    span: Span

    @property
    def size_bytes(self) -> int:
        return self.span.stop - self.span.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something that has a name in a checkpoint; ``pieces`` by where they lie in the tensor."""

    kind: str  # tensor, item or file
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    pieces: Mapping[tuple[int, ...], Piece]

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A name, and what is under it on either side."""

    name: str
    change: Change
    before: Entry | None
    after: Entry | None


def diff(before: Manifest, after: Manifest) -> list[Difference]:
    """Return what became of every name, sorted."""
    old, new = _entries(before.records), _entries(after.records)
    return [
        Difference(
            name=name,
            change=_change(old.get(name), new.get(name)),
            before=old.get(name),
            after=new.get(name),
        )
        for name in sorted(old.keys() | new.keys())
    ]


def _entries(records: Sequence[Ready]) -> dict[str, Entry]:
    pieces: dict[str, dict[tuple[int, ...], Piece]] = {}
    facts: dict[str, tuple[str, str | None, tuple[int, ...] | None]] = {}

    def add(name: str, place: tuple[int, ...], record: Ready, span: Span, kind: str) -> None:
        dtype, shape = None, None
        if isinstance(span, TensorEntry):
            dtype, shape = span.dtype, span.shape
        facts.setdefault(name, (kind, dtype, shape))
        piece = Piece(record.shards[span.shard], span)
        pieces.setdefault(name, {}).setdefault(place, piece)

    for record in records:
        for entry in record.tensors:
            add(entry.name, (*entry.offsets, *entry.sizes), record, entry, "tensor")
        for item in record.items:
            add(item.name, (), record, item, "item")
        for file in record.files:
            add(file.path, (), record, file, "file")
    return {
        name: Entry(kind=kind, dtype=dtype, shape=shape, pieces=pieces[name])
        for name, (kind, dtype, shape) in facts.items()
    }


def _change(before: Entry | None, after: Entry | None) -> Change:
    if before is None:
        return Change.ADDED
    if after is None:
        return Change.REMOVED
    facts = [(e.kind, e.dtype, e.shape, e.size_bytes) for e in (before, after)]
    if before.pieces.keys() != after.pieces.keys():
        # Sharded in another way, or a replica more: the sizes are no news then.
        return Change.UNKNOWN if facts[0][:3] == facts[1][:3] else Change.CHANGED
    if facts[0] != facts[1]:
        return Change.CHANGED
    found = [_piece_change(piece, after.pieces[place]) for place, piece in before.pieces.items()]
    for change in (Change.CHANGED, Change.UNKNOWN):
        if change in found:
            return change
    return Change.SAME


def _piece_change(before: Piece, after: Piece) -> Change:
    """Compare by the checksums of the blocks in which the bytes lie.

    Blocks that hold nothing else tell that something changed; those at the edges may differ
    for what is beside it.
    """
    if before.size_bytes != after.size_bytes:
        return Change.CHANGED
    if not before.size_bytes:
        return Change.SAME
    block_size_bytes = before.shard.block_size_bytes
    if (block_size_bytes, before.span.start) != (after.shard.block_size_bytes, after.span.start):
        return Change.UNKNOWN
    blocks = range(before.span.start // block_size_bytes, -(-before.span.stop // block_size_bytes))
    changed = [block for block in blocks if _crc(before, block) != _crc(after, block)]
    if not changed:
        return Change.SAME
    inside = any(_is_inside(before, block) and _is_inside(after, block) for block in changed)
    return Change.CHANGED if inside else Change.UNKNOWN


def _crc(piece: Piece, block: int) -> str:
    return piece.shard.content_crcs[16 * block : 16 * (block + 1)]


def _is_inside(piece: Piece, block: int) -> bool:
    """Tell whether a block holds bytes of this piece only."""
    size_bytes = piece.shard.block_size_bytes
    stop = min((block + 1) * size_bytes, piece.shard.content_bytes)
    return piece.span.start <= block * size_bytes and stop <= piece.span.stop
