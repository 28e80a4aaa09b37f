"""Checksums, and the only module that knows who computes them.

CRC64NVME guards bulk data: it is cheap, the checksum of a whole follows from those of its
pieces, and S3 checks it on arrival. SHA-256 guards records: they are small, and everything
else hangs on them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

from awscrt import checksums

from ckptstore.types import Buffer


def crc64nvme(data: Buffer, previous: int = 0) -> int:
    """Return the CRC-64/NVME of ``data``, going on from ``previous``."""
    crc: int = checksums.crc64nvme(data, previous)
    return crc


def joined_crc64nvme(pieces: Iterable[tuple[int, int]]) -> int:
    """Return the checksum of the whole, given ``(crc, size_bytes)`` of its pieces in order."""
    whole = 0
    for crc, size_bytes in pieces:
        whole = checksums.combine_crc64nvme(whole, crc, size_bytes)
    return whole


def crc32c(pieces: Iterable[memoryview]) -> int:
    """Return the CRC-32C of the pieces laid end to end; Cloud Storage checks that one."""
    crc = 0
    for piece in pieces:
        crc = checksums.crc32c(piece, crc)
    return crc


def joined_crc32c(pieces: Iterable[tuple[int, int]]) -> int:
    """Return the CRC-32C of the whole, given ``(crc, size_bytes)`` of its pieces in order."""
    whole = 0
    for crc, size_bytes in pieces:
        whole = checksums.combine_crc32c(whole, crc, size_bytes)
    return whole


def block_crcs(pieces: Sequence[memoryview], block_size_bytes: int) -> tuple[int, ...]:
    """Return one checksum per block of the pieces laid end to end; the last may be short.

    The pieces are flat byte views (``types.views``). Every byte is read once.
    """
    crcs: list[int] = []
    crc, filled = 0, 0
    for piece in pieces:
        at = 0
        while at < len(piece):
            taken = min(block_size_bytes - filled, len(piece) - at)
            crc = crc64nvme(piece[at : at + taken], crc)
            at, filled = at + taken, filled + taken
            if filled == block_size_bytes:
                crcs.append(crc)
                crc, filled = 0, 0
    return (*crcs, crc) if filled else tuple(crcs)


def whole_crc(crcs: Sequence[int], block_size_bytes: int, size_bytes: int) -> int:
    """Return the checksum of ``size_bytes`` bytes from those of their blocks."""
    if not crcs:
        return 0
    sizes = [block_size_bytes] * (len(crcs) - 1)
    return (
        joined_crc64nvme(zip(crcs, [*sizes, size_bytes - sum(sizes)], strict=True)) if crcs else 0
    )


def pack_crcs(crcs: Sequence[int]) -> str:
    """Return the checksums as the records keep them, 16 hexadecimal digits each.

    Hexadecimal, because JSON numbers above 2**53 are rounded by many readers.
    """
    return struct.pack(f">{len(crcs)}Q", *crcs).hex()


def unpack_crcs(text: str) -> tuple[int, ...]:
    """Undo ``pack_crcs``, or raise ``ValueError``."""
    packed = bytes.fromhex(text)
    if len(packed) % 8:
        raise ValueError(f"checksums are cut short: {len(text)} digits")
    return struct.unpack(f">{len(packed) // 8}Q", packed)


def sha256_hex(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()
