"""The records: how ranks vote and what is decided. A commit and its rank records are the manifest.

Each class refuses, when it is made, whatever would make it a lie, also when it is made from
bytes. Two states are two classes, so there is no third one by accident. The format note,
``design/0001-store-format.md``, describes every field.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

import msgspec

from ckptstore.integrity import pack_crcs, unpack_crcs, whole_crc
from ckptstore.manifest.layout import ShardKind, check_run, check_tag, check_uid, parse_uid
from ckptstore.packing import block_sizes
from ckptstore.types import Key, parse_key

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Crc: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
Sha256: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all that is written as a record: immutable, and strict about what it reads."""


class StoreRecord(Record, frozen=True, kw_only=True, tag="STORE", tag_field="type"):
    """``ckptstore.json``: written once, when the store is first written to."""

    store_id: str
    fan_out: Annotated[int, msgspec.Meta(ge=1, le=256)]
    create_only: bool  # Proved by two conditional puts of one key, not taken from a data sheet.
    created_unix_s: float
    created_by: str
    checksums: bool | None = None  # Proved by a part with a wrong one; None in older stores.


class Incarnation(Record, frozen=True, kw_only=True, tag="INCARNATION", tag_field="type"):
    """One start of the job on a run. ``parent_uid`` is what it went on from."""

    run: str
    number: Annotated[int, msgspec.Meta(ge=1)]
    nonce: str  # Whose claim this is: the answer to it may have been lost.
    parent_uid: str | None
    claimed_unix_s: float
    facts: dict[str, str] = {}

    def __post_init__(self) -> None:
        check_run(self.run)
        if self.parent_uid is not None:
            check_uid(self.parent_uid)


class Attempt(Record, frozen=True, kw_only=True, tag="BEGIN", tag_field="type"):
    """One try at saving one step: ``begin.json``, and the head of its decision.

    The participants are the ranks from 0 to ``world_size`` - 1.
    """

    uid: str
    run: str
    step: Count
    world_size: Annotated[int, msgspec.Meta(ge=1)]
    begun_unix_s: float
    deadline_unix_s: float

    def __post_init__(self) -> None:
        check_run(self.run)
        if parse_uid(self.uid).step != self.step:
            raise ValueError(f"attempt {self.uid} is not one at step {self.step}")


class Packed(Record, frozen=True, kw_only=True):
    """What a compressed shard was before: its size, and the checksum of each of its blocks.

    ``stored_sizes`` says how many bytes each block takes in the store; as many as it has means
    that it lies there as it is, and fewer, as a frame of ``codec``. ``widths`` holds a digit a
    block: how long the numbers are whose bytes were sorted before (1 where none were).
    """

    codec: Literal["zstd"] = "zstd"
    kind: ShardKind
    size_bytes: Count
    block_crcs: str
    stored_sizes: tuple[Count, ...]
    widths: Annotated[str, msgspec.Meta(pattern="^[1248]*$")]

    def __post_init__(self) -> None:
        if self.kind is ShardKind.PACKED:
            raise ValueError("what was packed cannot have been packed before")


class ShardEntry(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One data object: its size, the checksum of each of its blocks and of the whole.

    ``block_crcs`` holds 16 hexadecimal digits a block, one block after the other. All this is
    about the object as it lies in the store. What ``packed`` says is about what went into it,
    and so is every span that points into a shard; blocks are as large there as here.
    """

    key: Key
    size_bytes: Count
    block_size_bytes: Annotated[int, msgspec.Meta(ge=1)]
    part_size_bytes: Annotated[int, msgspec.Meta(ge=1)]
    crc64nvme: Crc
    block_crcs: str
    packed: Packed | None = None

    def __post_init__(self) -> None:
        parse_key(self.key)
        blocks = -(-self.size_bytes // self.block_size_bytes)
        if len(self.block_crcs) != 16 * blocks:
            raise ValueError(f"{self.key} has {blocks} blocks and another number of checksums")
        whole = whole_crc(unpack_crcs(self.block_crcs), self.block_size_bytes, self.size_bytes)
        if pack_crcs([whole]) != self.crc64nvme:
            raise ValueError(f"checksums of the blocks of {self.key} do not make up that of it all")
        if self.packed is not None:
            self._check_packed(self.packed)

    def _check_packed(self, packed: Packed) -> None:
        sizes = tuple(block_sizes(packed.size_bytes, self.block_size_bytes))
        counts = {len(packed.block_crcs) / 16, len(packed.stored_sizes), len(packed.widths)}
        if counts != {len(sizes)}:
            raise ValueError(f"{self.key} was packed from {len(sizes)} blocks and says otherwise")
        unpack_crcs(packed.block_crcs)
        pairs = zip(packed.stored_sizes, sizes, strict=True)
        if any(not 0 < stored <= raw for stored, raw in pairs):
            raise ValueError(f"a block of {self.key} is empty, or larger packed than it was")
        if sum(packed.stored_sizes) != self.size_bytes:
            raise ValueError(f"the packed blocks of {self.key} do not make up all of it")

    @property
    def stored(self) -> ShardEntry:
        """This object as it lies in the store, whatever went into it."""
        return self if self.packed is None else msgspec.structs.replace(self, packed=None)

    @property
    def content_bytes(self) -> int:
        """How many bytes there are for spans to point into."""
        return self.size_bytes if self.packed is None else self.packed.size_bytes

    @property
    def content_crcs(self) -> str:
        return self.block_crcs if self.packed is None else self.packed.block_crcs

    @property
    def content_suffix(self) -> str:
        """How the name of a file with the content should end."""
        return self.key.rpartition(".")[2] if self.packed is None else self.packed.kind.value


class Span(Record, frozen=True, kw_only=True):
    """Bytes ``[start, stop)`` of one of the rank's shards."""

    shard: Count
    start: Count
    stop: Count

    def __post_init__(self) -> None:
        if self.stop < self.start:
            raise ValueError(f"span ends before it starts: [{self.start}, {self.stop})")


class TensorEntry(Span, frozen=True, kw_only=True):
    """One chunk of one tensor, where it lies in the tensor and in the shard.

    ``dtype`` is torch's name for it (``bfloat16``); ``shape`` is the whole tensor's, ``sizes``
    the chunk's, and ``offsets`` where the chunk starts in the tensor, all in elements.
    """

    name: str
    dtype: str
    shape: tuple[Count, ...]
    offsets: tuple[Count, ...]
    sizes: tuple[Count, ...]
    requires_grad: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.shape) == len(self.offsets) == len(self.sizes):
            raise ValueError(f"chunk of {self.name} has another rank than the tensor")
        for whole, offset, size in zip(self.shape, self.offsets, self.sizes, strict=True):
            if offset + size > whole:
                raise ValueError(f"chunk of {self.name} reaches past the tensor")


class ItemEntry(Span, frozen=True, kw_only=True):
    """A non-tensor item of a state dict, serialized. It is read only after it was verified."""

    name: str


class FileEntry(Span, frozen=True, kw_only=True):
    """A file of a pushed directory, by its path relative to that directory."""

    path: str
    executable: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_key(self.path)


class Ready(Record, frozen=True, kw_only=True, tag="READY", tag_field="type"):
    """A rank's yes: these shards are durable, and this is what is in them."""

    uid: str
    rank: Count
    world_size: Annotated[int, msgspec.Meta(ge=1)]
    shards: tuple[ShardEntry, ...] = ()
    tensors: tuple[TensorEntry, ...] = ()
    items: tuple[ItemEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()
    paths: dict[str, tuple[str | int, ...]] | None = None  # DCP's flat keys, and where they lead.
    versions: dict[str, str] = {}
    metrics: dict[str, float] = {}  # What the training says of this step; retention may use it.

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in self.metrics.values()):
            raise ValueError("a metric must be finite, because JSON has no other numbers")
        for shard in self.shards:
            if self.uid not in shard.key.split("/"):
                raise ValueError(f"key does not hold the uid {self.uid}: {shard.key}")
        for entry in (*self.tensors, *self.items, *self.files):
            if entry.shard >= len(self.shards):
                raise ValueError(f"entry points at shard {entry.shard} of {len(self.shards)}")
            if entry.stop > self.shards[entry.shard].content_bytes:
                raise ValueError(f"entry reaches past {self.shards[entry.shard].key}")


class Failed(Record, frozen=True, kw_only=True, tag="FAILED", tag_field="type"):
    """A rank's no, and why."""

    uid: str
    rank: Count
    world_size: Annotated[int, msgspec.Meta(ge=1)]
    reason: str


RankRecord: TypeAlias = Ready | Failed


class RecordRef(Record, frozen=True, kw_only=True):
    """Points at one rank record and at nothing but exactly these bytes of it."""

    key: Key
    sha256: Sha256
    size_bytes: Count

    def __post_init__(self) -> None:
        parse_key(self.key)


class Commit(Record, frozen=True, kw_only=True, tag="COMMIT", tag_field="type"):
    """The attempt is a checkpoint, made of these rank records, in the order of ranks."""

    attempt: Attempt
    records: tuple[RecordRef, ...]
    data_bytes: Count
    objects: Count
    decided_unix_s: float
    decided_by: str

    def __post_init__(self) -> None:
        if len(self.records) != self.attempt.world_size:
            raise ValueError(f"{len(self.records)} records for {self.attempt.world_size} ranks")


class Abort(Record, frozen=True, kw_only=True, tag="ABORT", tag_field="type"):
    """The attempt is nothing, and never will be."""

    attempt: Attempt
    reason: str
    decided_unix_s: float
    decided_by: str


Decision: TypeAlias = Commit | Abort


class Retired(Record, frozen=True, kw_only=True, tag="RETIRED", tag_field="type"):
    """Retention has let go of this checkpoint. That the mark is there counts, not what it says."""

    run: str
    uid: str
    reason: str
    retired_unix_s: float

    def __post_init__(self) -> None:
        check_run(self.run)
        check_uid(self.uid)


class Verified(Record, frozen=True, kw_only=True, tag="VERIFIED", tag_field="type"):
    """All of this checkpoint was read back at that time, and every byte was right."""

    run: str
    uid: str
    verified_unix_s: float
    verified_by: str
    objects: Count
    bytes_verified: Count

    def __post_init__(self) -> None:
        check_run(self.run)
        check_uid(self.uid)


class Sampled(Record, frozen=True, kw_only=True, tag="SAMPLED", tag_field="type"):
    """A part of this checkpoint was read back at that time, and all of that was right.

    Parts lie on a circle of a million places; these were all that begin in [start, stop).
    """

    run: str
    uid: str
    sample: str  # What was asked for: 5%, 50G, 2/7.
    sampled_unix_s: float
    sampled_by: str
    start_ppm: Count
    stop_ppm: Count
    bytes_verified: Count
    bytes_total: Count

    def __post_init__(self) -> None:
        check_run(self.run)
        check_uid(self.uid)


class Pin(Record, frozen=True, kw_only=True, tag="PIN", tag_field="type"):
    """Somebody reads or copies this checkpoint, and will until it unpins or the pin expires."""

    run: str
    uid: str
    holder: str
    pinned_unix_s: float
    expires_unix_s: float

    def __post_init__(self) -> None:
        check_run(self.run)
        check_uid(self.uid)


class Tag(Record, frozen=True, kw_only=True, tag="TAG", tag_field="type"):
    """A name that somebody gave a checkpoint. Retention keeps what has one."""

    run: str
    name: str
    uid: str
    tagged_unix_s: float

    def __post_init__(self) -> None:
        check_run(self.run)
        check_tag(self.name)
        check_uid(self.uid)


class Manifest(msgspec.Struct, frozen=True):
    """A committed checkpoint, all of it: not a record, but what its records say together."""

    commit: Commit
    records: tuple[Ready, ...]

    def __post_init__(self) -> None:
        attempt = self.commit.attempt
        if [record.rank for record in self.records] != list(range(attempt.world_size)):
            raise ValueError("a committed checkpoint has one record per rank, in order")
        for record in self.records:
            if (record.uid, record.world_size) != (attempt.uid, attempt.world_size):
                raise ValueError(f"record of rank {record.rank} belongs to another attempt")
        keys = [shard.key for shard in self.shards]
        if len(set(keys)) != len(keys):
            raise ValueError("two shards share a key")

    @property
    def attempt(self) -> Attempt:
        return self.commit.attempt

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        return tuple(shard for record in self.records for shard in record.shards)
