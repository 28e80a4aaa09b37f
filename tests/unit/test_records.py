"""Records: strict, sealed, and no lie can be told with one."""

from __future__ import annotations

import json

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import FormatVersionError, IntegrityError
from ckptstore.integrity import block_crcs, pack_crcs, sha256_hex, unpack_crcs, whole_crc
from ckptstore.manifest.codec import (
    decode_attempt,
    decode_decision,
    decode_incarnation,
    decode_rank_record,
    encode_rank_record,
    encode_record,
)
from ckptstore.manifest.model import (
    Abort,
    Attempt,
    Commit,
    FileEntry,
    Incarnation,
    Manifest,
    Ready,
    RecordRef,
    ShardEntry,
    TensorEntry,
)
from ckptstore.types import Key

UID = "i000001-s000000000007-a00-00c0ffee"
OTHER_UID = "i000001-s000000000008-a00-00c0ffee"
ATTEMPT = Attempt(uid=UID, run="llama", step=7, world_size=1, begun_unix_s=1.5, deadline_unix_s=2.5)
REF = RecordRef(key=Key("runs/llama/x"), sha256="0" * 64, size_bytes=3)
COMMIT = Commit(
    attempt=ATTEMPT, records=(REF,), data_bytes=10, objects=1, decided_unix_s=2.0, decided_by="me"
)
ABORT = Abort(attempt=ATTEMPT, reason="rank 3: disk full", decided_unix_s=2.0, decided_by="me")


def a_shard(
    data: bytes = b"0123456789", key: str = f"data/00/llama/{UID}/000000-0000.file"
) -> ShardEntry:
    crcs = block_crcs([memoryview(data)], 4)
    return ShardEntry(
        key=Key(key),
        size_bytes=len(data),
        block_size_bytes=4,
        part_size_bytes=8,
        crc64nvme=pack_crcs([whole_crc(crcs, 4, len(data))]),
        block_crcs=pack_crcs(crcs),
    )


def a_ready(**changes: object) -> Ready:
    fields: dict[str, object] = {"uid": UID, "rank": 0, "world_size": 1, "shards": (a_shard(),)}
    return Ready(**(fields | changes))  # type: ignore[arg-type]


READY = a_ready(files=(FileEntry(path="a/b", shard=0, start=0, stop=10),))


def test_records_read_back() -> None:
    assert decode_attempt(encode_record(ATTEMPT), "x") == ATTEMPT
    for decision in (COMMIT, ABORT):
        assert decode_decision(encode_record(decision), "x") == decision
    assert decode_rank_record(encode_rank_record(READY), "x") == READY


@pytest.mark.parametrize("at", range(0, len(encode_record(COMMIT)), 7))
def test_a_flipped_bit_anywhere_in_a_record_is_found(at: int) -> None:
    data = bytearray(encode_record(COMMIT))
    data[at] ^= 0x10
    with pytest.raises((IntegrityError, FormatVersionError), match="runs/llama/decision"):
        decode_decision(bytes(data), "runs/llama/decision")


@pytest.mark.parametrize("at", range(len(encode_rank_record(READY))))
def test_a_flipped_bit_anywhere_in_a_compressed_record_is_found(at: int) -> None:
    data = bytearray(encode_rank_record(READY))
    data[at] ^= 0x10
    try:
        record = decode_rank_record(bytes(data), "rank-000003")
    except (IntegrityError, FormatVersionError):
        return
    assert record == READY  # The frame header has a bit or two that mean nothing.


@pytest.mark.parametrize("keep", [0, 1, 100, -2, -1])
def test_a_record_that_was_cut_short_is_found(keep: int) -> None:
    with pytest.raises(IntegrityError):
        decode_decision(encode_record(COMMIT)[:keep], "x")
    with pytest.raises(IntegrityError):
        decode_rank_record(encode_rank_record(READY)[:keep], "x")


@given(st.binary())
def test_no_bytes_crash_the_decoders(data: bytes) -> None:
    for decode in (decode_attempt, decode_decision, decode_incarnation, decode_rank_record):
        with pytest.raises((IntegrityError, FormatVersionError)):
            decode(data, "x")


def test_a_record_that_claims_to_be_enormous_is_not_decompressed() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    assert zstandard.frame_content_size(frame) == 1 << 20
    bomb = bytearray(frame)
    bomb[5:9] = (0xFF, 0xFF, 0xFF, 0x7F)  # The content size, right behind the frame header.
    with pytest.raises(IntegrityError):
        decode_rank_record(bytes(bomb), "x")


def sealed(document: object) -> bytes:
    line = json.dumps(document).encode()
    return (
        line
        + b"\n"
        + json.dumps({"sha256": sha256_hex(line)}, separators=(",", ":")).encode()
        + b"\n"
    )


def test_a_newer_format_version_is_named_and_not_guessed_at() -> None:
    with pytest.raises(FormatVersionError, match="format version 2 .* upgrade"):
        decode_attempt(sealed({"format_version": 2, "record": {"anything": 1}}), "begin.json")


def test_unknown_fields_are_refused() -> None:
    record = msgspec.to_builtins(ATTEMPT) | {"surprise": 1}
    with pytest.raises(IntegrityError, match="surprise"):
        decode_attempt(sealed({"format_version": 1, "record": record}), "x")


@pytest.mark.parametrize(
    "changes",
    [
        {"shards": (a_shard(key=f"data/00/llama/{OTHER_UID}/000000-0000.file"),)},
        {"files": (FileEntry(path="a", shard=1, start=0, stop=1),)},
        {"files": (FileEntry(path="a", shard=0, start=0, stop=11),)},
    ],
)
def test_a_ready_record_cannot_lie_about_its_shards(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="uid|shard|past"):
        a_ready(**changes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_crcs", ""),
        ("block_crcs", pack_crcs([1, 2, 3])),
        ("crc64nvme", "0" * 16),
        ("size_bytes", 13),
        ("key", "../../etc/passwd"),
    ],
)
def test_a_shard_entry_cannot_lie_about_its_blocks(field: str, value: object) -> None:
    fields = {name: getattr(a_shard(), name) for name in ShardEntry.__struct_fields__}
    with pytest.raises(ValueError, match="blocks|key"):
        ShardEntry(**(fields | {field: value}))


@pytest.mark.parametrize(("offsets", "sizes"), [((0,), (2, 2)), ((3, 0), (2, 2)), ((0, 3), (2, 2))])
def test_a_chunk_cannot_reach_past_its_tensor(
    offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="chunk of w"):
        TensorEntry(
            name="w",
            dtype="float32",
            shape=(4, 4),
            offsets=offsets,
            sizes=sizes,
            shard=0,
            start=0,
            stop=16,
        )


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a//b", "a\0"])
def test_a_file_path_cannot_lead_out_of_the_destination(path: str) -> None:
    with pytest.raises(ValueError, match="key"):
        FileEntry(path=path, shard=0, start=0, stop=1)


def test_a_commit_needs_a_record_of_every_rank() -> None:
    with pytest.raises(ValueError, match="0 records for 1 ranks"):
        Commit(
            attempt=ATTEMPT, records=(), data_bytes=0, objects=0, decided_unix_s=0, decided_by=""
        )


def test_an_attempt_knows_the_step_that_its_uid_says() -> None:
    with pytest.raises(ValueError, match="not one at step 8"):
        Attempt(uid=UID, run="llama", step=8, world_size=1, begun_unix_s=0, deadline_unix_s=0)


@pytest.mark.parametrize(
    "records",
    [
        (a_ready(rank=1),),
        (a_ready(world_size=2),),
        (a_ready(shards=(a_shard(), a_shard())),),
    ],
)
def test_a_manifest_is_refused_if_its_records_do_not_fit(records: tuple[Ready, ...]) -> None:
    with pytest.raises(ValueError, match="rank|attempt|key"):
        Manifest(COMMIT, records)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_checksums_read_back(crcs: list[int]) -> None:
    assert list(unpack_crcs(pack_crcs(crcs))) == crcs


def test_an_incarnation_may_have_no_parent() -> None:
    claim = Incarnation(run="llama", number=1, nonce="x", parent_uid=None, claimed_unix_s=0.0)
    assert decode_incarnation(encode_record(claim), "x") == claim
