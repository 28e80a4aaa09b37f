"""Read a body chunk by chunk, as the client hands it over, into memory that is there already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ckptstore.errors import TransientStoreError
from ckptstore.types import Key


async def fill(
    raw: Any,  # noqa: ANN401 - aiohttp's response.
    target: memoryview,
    key: Key,
    received: Callable[[int, int], object],
) -> None:
    """Read exactly ``len(target)`` bytes; the SDK would not notice a body that ends early.

    ``received`` hears how many bytes of how many there are. Raises ``TransientStoreError``.
    """
    filled = 0
    async for chunk in raw.content.iter_any():
        stop = filled + len(chunk)
        if stop > len(target):
            break
        target[filled:stop] = chunk
        filled = stop
        received(filled, len(target))
    else:
        if filled == len(target):
            return
    detail = f"{filled} of {len(target)} bytes arrived, or more than those"
    raise TransientStoreError(detail, verb="get_into", key=key)
