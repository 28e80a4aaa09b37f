"""Objects as Cloud Storage describes them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from ckptstore.types import Key, ObjectInfo, Version

FIELDS: Final = "name,size,generation,etag,updated,crc32c"  # All that is ever looked at.


def crc_text(crc32c: int) -> str:
    """Return a CRC-32C in base64, the most significant of its four bytes first."""
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def crc_of(text: str | None) -> int | None:
    """Return the checksum that a description or ``x-goog-hash`` holds; None if there is none."""
    for item in (text or "").split(","):
        encoded = item.strip().removeprefix("crc32c=")
        try:
            raw = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            continue
        if len(raw) == 4:
            return int.from_bytes(raw, "big")
    return None


def version_of(resource: Mapping[str, Any]) -> Version:
    return Version(etag=resource.get("etag"), generation=str(resource["generation"]))


def info_of(resource: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(
        Key(resource["name"]),
        int(resource["size"]),
        version_of(resource),
        modified_unix_s=unix_s(resource.get("updated")),
    )


def unix_s(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
