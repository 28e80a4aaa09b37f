"""How fast it is, at a few part sizes, with a bounded number of bytes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable
from typing import Final, TypeVar

from ckptstore.concurrency import map_concurrently
from ckptstore.integrity import crc64nvme
from ckptstore.probe.finding import Finding, noted
from ckptstore.probe.scratch import Scratch
from ckptstore.types import MIB, ByteRange, Part

T = TypeVar("T")

GROUP: Final = "speed"
PART_BYTES: Final = (5 * MIB, 16 * MIB, 32 * MIB)
BYTES_EACH_WAY: Final = 64 * MIB
PARTS_AT_ONCE: Final = 4
SMALL_REQUESTS: Final = 9
ENOUGH_S: Final = 15.0


async def measured(area: Scratch) -> AsyncIterator[Finding]:
    """Yield how long a small request takes, and the bytes a second up and down by part size.

    At most 64 MiB go each way for each size, four requests at a time; on a slow way, not all
    sizes are tried. It is this process's speed, now, and no more than an indication.
    """
    began_s = time.monotonic()
    yield await _small(area)
    for part_bytes in PART_BYTES:
        if time.monotonic() - began_s < ENOUGH_S:
            yield await _bulk(area, max(part_bytes, area.part_bytes))


async def _small(area: Scratch) -> Finding:
    key = area.key("small")
    took_s: list[float] = []
    for _ in range(SMALL_REQUESTS):
        began_s = time.monotonic()
        await area.store.put(key, b"small")
        took_s.append(time.monotonic() - began_s)
    median_ms = 1000 * sorted(took_s)[len(took_s) // 2]
    return noted(GROUP, "small_put_ms", "a small put", f"{median_ms:.1f} ms")


async def _bulk(area: Scratch, part_bytes: int) -> Finding:
    count = BYTES_EACH_WAY // part_bytes
    parts = [Part(i, ByteRange(i * part_bytes, (i + 1) * part_bytes)) for i in range(count)]
    data = memoryview(bytes(part_bytes))
    crc = crc64nvme(data)
    key = area.key(f"bulk-{part_bytes}")
    upload_id = await area.begin(key)

    async def send(part: Part) -> str:
        return await area.store.put_part(key, upload_id, part, [data], crc64nvme=crc)

    async def read(part: Part) -> None:
        target = memoryview(bytearray(part_bytes))
        await area.store.get_into(key, part.byte_range, target)

    up_s, etags = await _timed(map_concurrently(send, parts, in_flight_max=PARTS_AT_ONCE))
    await area.complete(key, upload_id, etags, bytes(part_bytes) * count)
    down_s, _ = await _timed(map_concurrently(read, parts, in_flight_max=PARTS_AT_ONCE))
    mib = count * part_bytes / MIB
    detail = f"{mib / up_s:.0f} MiB/s up, {mib / down_s:.0f} MiB/s down"
    name = f"parts_of_{part_bytes // MIB}_mib"
    return noted(GROUP, name, f"parts of {part_bytes // MIB} MiB", detail)


async def _timed(work: Awaitable[T]) -> tuple[float, T]:
    began_s = time.monotonic()
    result = await work
    return max(time.monotonic() - began_s, 1e-6), result
