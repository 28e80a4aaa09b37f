"""Plain values shared by every module: keys, ranges, parts, versions, modes, capabilities."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NewType, TypeAlias

Key = NewType("Key", str)
UploadId = NewType("UploadId", str)
Buffer: TypeAlias = bytes | bytearray | memoryview

KIB: Final = 1024
MIB: Final = 1024 * 1024
_DOTTED: Final = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")
_UNPRINTABLE: Final = re.compile(r"[\\\x00-\x1f\x7f]")
KEY_BYTES_MAX: Final = 1024  # The S3 limit, and the smallest among the stores we know.


def parse_key(text: str) -> Key:
    """Return ``text`` as a key, or raise ``ValueError`` if some store would mangle it.

    A key is relative, never empty, and holds no segment that a file system or an HTTP client
    would resolve, so it can never lead out of the place it is used in.
    """
    # A decision names a record of every rank, so this runs ten thousand times in a row.
    if _DOTTED.search(text):
        raise ValueError(f"key must be relative, without empty or dotted segments: {text!r}")
    if _UNPRINTABLE.search(text):
        raise ValueError(f"key has a backslash or a control character: {text!r}")
    if len(text.encode()) > KEY_BYTES_MAX:
        raise ValueError(f"key is longer than {KEY_BYTES_MAX} bytes: {text[:80]!r}...")
    return Key(text)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Half-open range ``[start, stop)``; HTTP's inclusive form never leaves a backend."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"range starts before the object: {self.start}")
        if self.stop <= self.start:
            raise ValueError(f"range is empty: [{self.start}, {self.stop})")

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Part:
    """One request's share of an object: its number, from 0, and its bytes."""

    index: int
    byte_range: ByteRange


@dataclass(frozen=True, slots=True)
class Version:
    """What a store calls this incarnation of an object; keep both halves."""

    etag: str | None = None
    generation: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: Key
    size_bytes: int
    version: Version
    crc64nvme: int | None = None  # Of the whole object, where the store keeps one.
    modified_unix_s: float | None = None  # When it was written, by the store's clock.


@dataclass(frozen=True, slots=True)
class UploadInfo:
    """A multipart upload that was neither completed nor aborted."""

    key: Key
    upload_id: UploadId
    begun_unix_s: float | None = None  # By the store's clock.


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Write whatever is there now."""


@dataclass(frozen=True, slots=True)
class CreateOnly:
    """Write only if nothing is there."""


PutMode: TypeAlias = Overwrite | CreateOnly


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store can promise. Every flag is positive, so the default promises nothing."""

    create_only: bool = False
    part_size_bytes_min: int = 1
    part_size_bytes_max: int = 1 << 40
    part_count_max: int = 1 << 20
    fan_out: int = 1  # Over how many leading directories a new store should spread its data.

    def __post_init__(self) -> None:
        if self.part_size_bytes_max < self.part_size_bytes_min:
            raise ValueError("part_size_bytes_max is below part_size_bytes_min")
        if not 1 <= self.fan_out <= 256:
            raise ValueError(f"fan_out must be from 1 to 256: {self.fan_out}")


@dataclass(frozen=True, slots=True)
class Access:
    """Who we are to a store and where it is, in words; never a secret among them.

    ``facts`` name a thing and tell it; ``doubts`` are what a user may not have meant.
    """

    facts: tuple[tuple[str, str], ...] = ()
    doubts: tuple[str, ...] = ()


def views(pieces: Iterable[Buffer]) -> tuple[memoryview, ...]:
    """Return the pieces as flat, non-empty byte views of the same memory, in order."""
    return tuple(view for piece in pieces if len(view := memoryview(piece).cast("B")))
