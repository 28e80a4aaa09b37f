"""Checks that a backend makes itself where its store does not."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from ckptstore.errors import (
    SettingsError,
    StoreError,
    TransientStoreError,
    TruncatedObjectError,
    WriteOutcomeUnknownError,
)
from ckptstore.integrity import joined_crc64nvme
from ckptstore.types import ByteRange, Key, Part, UploadId

_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_NOTE: Final = re.compile(r"(\d+)-(\d+)-(\d+)-([0-9a-f]{16}) (.*)")


class UploadGoneError(StoreError):
    """The multipart upload was completed or aborted, or never was; start the object over."""


def check_process(owner_pid: int, what: str) -> None:
    """Refuse to go on in a forked child: threads and connections stay behind in its parent."""
    if os.getpid() != owner_pid:
        raise SettingsError(
            f"{what} was opened by process {owner_pid} and cannot be used by {os.getpid()}, "
            "which was forked from it; open the store again there"
        )


def check_target(byte_range: ByteRange, target: memoryview) -> None:
    """Refuse memory that is not as long as the range: a bug of the caller, not of the store."""
    if target.nbytes != byte_range.size_bytes or target.readonly:
        raise ValueError(
            f"the target must be writable memory of {byte_range.size_bytes} bytes, "
            f"not {target.nbytes}{' read-only ones' if target.readonly else ''}"
        )


def check_pieces(part: Part, pieces: Sequence[memoryview]) -> None:
    """Refuse pieces that do not add up to the part: a bug of the caller, not of the store."""
    size_bytes = sum(len(piece) for piece in pieces)
    if size_bytes != part.byte_range.size_bytes:
        raise ValueError(
            f"part {part.index} is {part.byte_range.size_bytes} bytes, its pieces {size_bytes}"
        )


def past_the_end(key: Key, byte_range: ByteRange, size_bytes: int | None) -> TruncatedObjectError:
    size = "shorter" if size_bytes is None else f"{size_bytes} bytes"
    return TruncatedObjectError(
        f"bytes {byte_range.start} to {byte_range.stop} were asked for, the object is {size}",
        verb="get_into",
        key=key,
    )


def check_range(
    key: Key, byte_range: ByteRange, text: str | None, length: int | str | None
) -> None:
    """Refuse an answer that is not for exactly the bytes that were asked for.

    ``text`` is its ``Content-Range``, ``length`` its ``Content-Length``.
    """
    if text is None:  # The store sent the whole object; that may be what was wanted.
        size_bytes = byte_range.stop if length is None else int(length)
        if (byte_range.start, byte_range.stop) == (0, size_bytes):
            return
        if byte_range.stop > size_bytes:
            raise past_the_end(key, byte_range, size_bytes)
        raise StoreError("the store ignores ranges", verb="get_into", key=key)
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        raise TransientStoreError(f"not a range: {text!r}", verb="get_into", key=key)
    start, last, total = match.groups()
    if total != "*" and byte_range.stop > int(total):
        raise past_the_end(key, byte_range, int(total))
    if (int(start), int(last) + 1) != (byte_range.start, byte_range.stop):
        raise TransientStoreError(f"other bytes came: {text!r}", verb="get_into", key=key)


def no_such_upload(verb: str, key: Key, upload_id: UploadId) -> StoreError:
    """Say that an upload is gone. For a completion, that may be our own success."""
    if verb == "multipart_complete":
        return WriteOutcomeUnknownError(
            f"upload {upload_id} is gone: completed before, or aborted; see what is under the key",
            verb=verb,
            key=key,
        )
    return UploadGoneError(f"upload {upload_id} is gone: start the object over", verb=verb, key=key)


def refused_completion(key: Key, what: str) -> StoreError:
    return StoreError(f"the upload was not completed: {what}", verb="multipart_complete", key=key)


def noted_part(part: Part, crc64nvme: int, etag: str = "") -> str:
    """Return, in place of a store's etag, one that says what was sent as well.

    So completing can be checked by itself, whatever the store checks, and nobody in between
    has to remember anything.
    """
    start, size_bytes = part.byte_range.start, part.byte_range.size_bytes
    return f"{part.index}-{start}-{size_bytes}-{crc64nvme:016x} {etag}"


def check_parts(
    key: Key, noted: Sequence[str], *, size_bytes: int, crc64nvme: int
) -> list[tuple[int, str]]:
    """Return checksum and etag of each part; refuse parts that are not all of the object."""
    parts: list[tuple[int, str]] = []
    pieces: list[tuple[int, int]] = []
    at = 0
    for index, note in enumerate(noted):
        part = read_note(key, index, note)
        if (part.number, part.start) != (index, at):
            raise refused_completion(key, f"part {index} is missing or another one")
        parts.append((part.crc64nvme, part.etag))
        pieces.append((part.crc64nvme, part.size_bytes))
        at += part.size_bytes
    if at != size_bytes:
        raise refused_completion(key, f"its parts have {at} bytes, not {size_bytes}")
    if joined_crc64nvme(pieces) != crc64nvme:
        raise refused_completion(key, "its checksum is not that of its parts")
    return parts


class NotedPart(NamedTuple):
    """What ``noted_part`` noted."""

    number: int  # From 0, like ``Part.index``.
    start: int
    size_bytes: int
    crc64nvme: int
    etag: str


def read_note(key: Key, index: int, note: str) -> NotedPart:
    """Undo ``noted_part``, or say that part ``index`` of the object is none of ours."""
    match = _NOTE.fullmatch(note)
    if match is None:
        raise refused_completion(key, f"part {index} is missing or another one")
    return NotedPart(int(match[1]), int(match[2]), int(match[3]), int(match[4], 16), match[5])
