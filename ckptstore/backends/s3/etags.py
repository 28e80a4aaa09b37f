"""Versions and parts as S3 names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptstore.backends._checks import refused_completion
from ckptstore.backends.s3.checksum import to_header
from ckptstore.types import Key, Version


def version_of(answer: Mapping[str, Any]) -> Version:
    etag = answer.get("ETag")
    return Version(etag=etag.strip('"') if etag else None)


def part_etag(answer: Mapping[str, Any], crc64nvme: int) -> str:
    """Return what completing needs to know of a part, in one opaque string."""
    return f"{to_header(crc64nvme)} {answer['ETag']}"


def completed_part(key: Key, index: int, etag: str) -> dict[str, Any]:
    checksum, space, their_etag = etag.partition(" ")
    if not space:
        raise refused_completion(key, f"part {index} was never sent")
    return {"PartNumber": index + 1, "ETag": their_etag, "ChecksumCRC64NVME": checksum}
