"""Checksums and versions as S3 writes them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ckptstore.types import Version


def checksum_header(crc64nvme: int) -> str:
    """Return a CRC-64/NVME in base64, the most significant of its eight bytes first."""
    return base64.b64encode(crc64nvme.to_bytes(8, "big")).decode()


def checksum_of(text: str | None) -> int | None:
    """Return the checksum a header holds; None if there is none, or not of a whole object."""
    try:
        raw = base64.b64decode(text or "", validate=True)
    except binascii.Error:
        return None
    return int.from_bytes(raw, "big") if len(raw) == 8 else None


def unix_s(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


def version_of(answer: Mapping[str, Any]) -> Version:
    etag = answer.get("ETag")
    return Version(etag=etag.strip('"') if etag else None)
