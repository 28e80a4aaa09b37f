"""Checks that a backend makes itself where its store does not."""

from __future__ import annotations

from collections.abc import Sequence

from ckptstore.errors import StoreError, TruncatedObjectError, WriteOutcomeUnknownError
from ckptstore.types import ByteRange, Key, Part, UploadId


class UploadGoneError(StoreError):
    """The multipart upload was completed or aborted, or never was; start the object over."""


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
