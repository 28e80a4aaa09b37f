"""Decide the parts of an upload. Pure: no I/O, no clock, no store."""

from __future__ import annotations

from ckptstore.errors import UsageError
from ckptstore.types import ByteRange, Capabilities, Part


def plan_part_size(
    size_bytes: int, *, part_size_bytes: int, block_size_bytes: int, capabilities: Capabilities
) -> int:
    """Return the size of all parts of an object but the last, in bytes.

    The requested part size is a wish: it grows until the part count fits the store, and to
    whole blocks, so that no checksummed block straddles two requests. All parts but the last
    are equal because at least one S3-compatible store insists on it.
    """
    smallest = max(part_size_bytes, capabilities.part_size_bytes_min)
    smallest = max(smallest, _divided_up(size_bytes, capabilities.part_count_max))
    planned = _divided_up(smallest, block_size_bytes) * block_size_bytes
    if planned > capabilities.part_size_bytes_max:
        raise UsageError(
            f"an object of {size_bytes} bytes does not fit the store's limits "
            f"({capabilities.part_count_max} parts of {capabilities.part_size_bytes_max} bytes); "
            "shard the state over more ranks"
        )
    return planned


def plan_parts(size_bytes: int, part_size_bytes: int) -> tuple[Part, ...]:
    """Cut ``[0, size_bytes)`` into equal parts, the last one possibly smaller."""
    starts = range(0, size_bytes, part_size_bytes)
    return tuple(
        Part(index, ByteRange(start, min(start + part_size_bytes, size_bytes)))
        for index, start in enumerate(starts)
    )


def _divided_up(total: int, divisor: int) -> int:
    return -(-total // divisor)
