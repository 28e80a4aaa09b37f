"""Records to bytes and back. The bytes are the contract; the classes are only ours.

A record is two lines of JSON: a document, and the SHA-256 of that line. So every record can
be checked by itself, and a half-written one cannot be mistaken for a whole one.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
import zstandard

from ckptstore.errors import Damage, FormatVersionError, IntegrityError
from ckptstore.integrity import sha256_hex
from ckptstore.manifest.model import (
    Attempt,
    Decision,
    Incarnation,
    Pin,
    RankRecord,
    Record,
    Sampled,
    StoreRecord,
    Tag,
)

FORMAT_VERSION: Final = 1
RANK_RECORD_BYTES_MAX: Final = 1 << 30  # Decompressed. A hostile record must not fill memory.

T = TypeVar("T")

_STORES: Final = msgspec.json.Decoder(StoreRecord)
_INCARNATIONS: Final = msgspec.json.Decoder(Incarnation)
_ATTEMPTS: Final = msgspec.json.Decoder(Attempt)
_RANK_RECORDS: Final[msgspec.json.Decoder[RankRecord]] = msgspec.json.Decoder(RankRecord)
_DECISIONS: Final[msgspec.json.Decoder[Decision]] = msgspec.json.Decoder(Decision)
_PINS: Final = msgspec.json.Decoder(Pin)
_SAMPLED: Final = msgspec.json.Decoder(Sampled)
_TAGS: Final = msgspec.json.Decoder(Tag)


class _Document(msgspec.Struct, frozen=True):
    format_version: int
    record: msgspec.Raw


def encode_record(record: Record) -> bytes:
    document = _Document(FORMAT_VERSION, msgspec.Raw(msgspec.json.encode(record, order="sorted")))
    line = msgspec.json.encode(document)
    return line + b"\n" + _seal(line)


def encode_rank_record(record: RankRecord) -> bytes:
    """Like ``encode_record``, compressed: it has one line a tensor and 16 digits a block."""
    return zstandard.ZstdCompressor(level=3).compress(encode_record(record))


def decode_store(data: bytes, name: str) -> StoreRecord:
    return _decode(data, _STORES, name)


def decode_incarnation(data: bytes, name: str) -> Incarnation:
    return _decode(data, _INCARNATIONS, name)


def decode_attempt(data: bytes, name: str) -> Attempt:
    return _decode(data, _ATTEMPTS, name)


def decode_decision(data: bytes, name: str) -> Decision:
    return _decode(data, _DECISIONS, name)


def decode_pin(data: bytes, name: str) -> Pin:
    return _decode(data, _PINS, name)


def decode_sampled(data: bytes, name: str) -> Sampled:
    return _decode(data, _SAMPLED, name)


def decode_tag(data: bytes, name: str) -> Tag:
    return _decode(data, _TAGS, name)


def decode_rank_record(data: bytes, name: str) -> RankRecord:
    """Return the record; ``name`` is what to call it if it is not whole.

    Raises ``IntegrityError`` saying what is wrong, or ``FormatVersionError``.
    """
    try:
        size_bytes = zstandard.frame_content_size(data)
        if not 0 <= size_bytes <= RANK_RECORD_BYTES_MAX:
            raise _damaged(name, f"a record of {size_bytes} bytes is not one of ours")
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=size_bytes)
    except zstandard.ZstdError as error:
        raise _damaged(name, f"record does not decompress: {error}") from error
    return _decode(plain, _RANK_RECORDS, name)


def _decode(data: bytes, records: msgspec.json.Decoder[T], name: str) -> T:
    line, _, seal = data.partition(b"\n")
    if seal != _seal(line):
        raise _damaged(name, "record does not match its own digest")
    try:
        document = msgspec.json.decode(line, type=_Document)
        if document.format_version != FORMAT_VERSION:
            raise FormatVersionError(
                f"{name}: format version {document.format_version} was written by another release "
                f"of ckptstore; this one reads version {FORMAT_VERSION}: upgrade it"
            )
        return records.decode(document.record)
    except (msgspec.DecodeError, ValueError) as error:
        raise _damaged(name, f"record is malformed: {error}") from error


def _seal(line: bytes) -> bytes:
    return msgspec.json.encode({"sha256": sha256_hex(line)}) + b"\n"


def _damaged(name: str, what: str) -> IntegrityError:
    return IntegrityError(f"{name}: {what}", damage=(Damage(name, 0, 0, "a sound record", what),))
