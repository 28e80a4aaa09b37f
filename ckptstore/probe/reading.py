"""What was written is what is read: at once, whole and in ranges."""

from __future__ import annotations

from typing import Final

from ckptstore.errors import (
    IntegrityError,
    ObjectNotFoundError,
    PermissionDeniedError,
    SettingsError,
    StoreError,
)
from ckptstore.probe.finding import Check, Outcome, Promise
from ckptstore.probe.scratch import Scratch
from ckptstore.types import ByteRange, Key

GROUP: Final = "reading"
DATA: Final = bytes(range(256)) * 16
NEVER_OVERWRITTEN: Final = "no data, vote or decision is ever overwritten"


async def read_whole(area: Scratch, key: Key, size_bytes: int) -> bytes:
    target = bytearray(size_bytes)
    await area.store.get_into(key, ByteRange(0, size_bytes), memoryview(target))
    return bytes(target)


async def _written(area: Scratch) -> Outcome:
    key, empty = area.key("written"), area.key("empty")
    await area.store.put(key, DATA)
    await area.store.put(empty, b"")
    found, nothing = await area.store.get(key), await area.store.get(empty)
    size_bytes = (await area.store.head(key)).size_bytes
    detail = f"{size_bytes} of {len(DATA)} bytes, {len(nothing)} of 0 bytes"
    return Outcome(found == DATA and size_bytes == len(DATA) and not nothing, detail)


async def _ranges(area: Scratch) -> Outcome:
    key = area.key("ranges")
    await area.store.put(key, DATA)
    target = bytearray(100)
    await area.store.get_into(key, ByteRange(77, 177), memoryview(target))
    return Outcome(bytes(target) == DATA[77:177])


async def _past_the_end(area: Scratch) -> Outcome:
    key = area.key("short")
    await area.store.put(key, b"short")
    try:
        await area.store.get_into(key, ByteRange(0, 10), memoryview(bytearray(10)))
    except StoreError as error:
        if error.retryable:
            raise
        return Outcome(True)
    return Outcome(False, "more bytes came than there are")


async def _overwritten(area: Scratch) -> Outcome:
    key = area.key("overwritten")
    await area.store.put(key, b"first")
    await area.store.put(key, b"second")
    return Outcome(await area.store.get(key) == b"second")


async def _deleted(area: Scratch) -> Outcome:
    key = area.key("deleted")
    await area.store.put(key, b"soon gone")
    await area.store.delete(key)
    return Outcome(not await area.is_there(key))


async def _missing(area: Scratch) -> Outcome:
    try:
        await area.store.get(area.key("never-written"))
    except ObjectNotFoundError:
        return Outcome(True)
    except PermissionDeniedError as error:
        return Outcome(False, str(error))
    return Outcome(False, "something was there")


CHECKS: Final = (
    Check(
        Promise(
            "read_after_write",
            GROUP,
            "what was written is read at once",
            "a store that forgets or changes what it was given cannot keep checkpoints",
            IntegrityError,
        ),
        _written,
    ),
    Check(
        Promise(
            "ranges_exact",
            GROUP,
            "a range is exactly those bytes",
            "a store that sends other bytes cannot keep checkpoints",
            IntegrityError,
        ),
        _ranges,
    ),
    Check(
        Promise(
            "range_past_the_end",
            GROUP,
            "a range past the end is an error",
            "ckptstore counts the bytes that come",
        ),
        _past_the_end,
    ),
    Check(
        Promise("read_after_overwrite", GROUP, "an overwrite is read at once", NEVER_OVERWRITTEN),
        _overwritten,
    ),
    Check(
        Promise(
            "read_after_delete",
            GROUP,
            "what was deleted is gone at once",
            "what retention removes may be seen for a while",
        ),
        _deleted,
    ),
    Check(
        Promise(
            "missing_is_not_found",
            GROUP,
            "what is not there is not found",
            "let these credentials list the bucket (s3:ListBucket): without that, what is missing "
            "looks like what is forbidden, and nothing can be begun",
            SettingsError,
        ),
        _missing,
    ),
)
