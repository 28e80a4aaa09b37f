"""How S3 writes a CRC-64/NVME: base64 of its eight bytes, the most significant first."""

from __future__ import annotations

import base64
import binascii


def to_header(crc64nvme: int) -> str:
    return base64.b64encode(crc64nvme.to_bytes(8, "big")).decode()


def from_header(text: str | None) -> int | None:
    """Return the checksum a header holds; None if there is none, or not of a whole object."""
    if not text:
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return int.from_bytes(raw, "big") if len(raw) == 8 else None
