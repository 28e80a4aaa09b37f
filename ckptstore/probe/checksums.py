"""Does the store look at what arrives? A wrong checksum is sent, and must be refused."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from ckptstore.errors import (
    CredentialsExpiredError,
    DamagedError,
    RetriesExhaustedError,
    StoreError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.probe.finding import Check, Outcome, Promise
from ckptstore.probe.scratch import Scratch
from ckptstore.store import SupportsMultipart
from ckptstore.types import ByteRange, Key, Part, UploadId

GROUP: Final = "checksums"
DATA: Final = b"what was meant to arrive"
WRONG: Final = crc64nvme(b"what did not arrive at all")
READ_BACK: Final = (
    "each rank reads back all that it wrote before it votes, which doubles the traffic of a save"
)
CANNOT_ASK: Final = Outcome(None, "nothing wrong can be sent through this backend")


async def _wrong_put(area: Scratch) -> Outcome:
    if area.unchecked is None:
        return CANNOT_ASK
    key = area.bucket_key(area.key("wrong-put"))
    await area.unchecked.put_unchecked(key, DATA, crc64nvme=crc64nvme(DATA))
    return await _refused(area.unchecked.put_unchecked(key, DATA, crc64nvme=WRONG))


async def _wrong_part(area: Scratch) -> Outcome:
    key = area.key("wrong-part")
    return await wrong_part(area.store, key, await area.begin(key))


async def wrong_part(store: SupportsMultipart, key: Key, upload_id: UploadId) -> Outcome:
    """Send a part right, and then with a checksum that is not its own: is that refused?

    Raises what the store says if it was merely ill.
    """
    part = Part(0, ByteRange(0, len(DATA)))
    await store.put_part(key, upload_id, part, [DATA], crc64nvme=crc64nvme(DATA))
    return await _refused(store.put_part(key, upload_id, part, [DATA], crc64nvme=WRONG))


async def _wrong_whole(area: Scratch) -> Outcome:
    return await _wrong_completion(area, "wrong-whole", len(DATA), WRONG)


async def _wrong_size(area: Scratch) -> Outcome:
    return await _wrong_completion(area, "wrong-size", len(DATA) + 1, crc64nvme(DATA))


async def _wrong_completion(area: Scratch, name: str, size_bytes: int, crc: int) -> Outcome:
    if area.unchecked is None:
        return CANNOT_ASK
    key = area.key(name)
    upload_id = await area.begin(key)
    etag = await area.send(key, upload_id, 0, DATA)
    return await _refused(
        area.unchecked.multipart_complete_unchecked(
            area.bucket_key(key), upload_id, [etag], size_bytes=size_bytes, crc64nvme=crc
        )
    )


async def _kept(area: Scratch) -> Outcome:
    key = area.key("kept")
    upload_id = await area.begin(key)
    await area.complete(key, upload_id, [await area.send(key, upload_id, 0, DATA)], DATA)
    found = (await area.store.head(key)).crc64nvme
    detail = "none" if found is None else f"{found:016x}"
    return Outcome(found == crc64nvme(DATA), f"the store tells {detail}")


async def _refused(sending: Awaitable[Any]) -> Outcome:
    """Send something wrong. An error that says so is what we hope for; others tell nothing."""
    try:
        await sending
    except StoreError as error:
        caught = error.__cause__ if isinstance(error.__cause__, DamagedError) else error
        ill = isinstance(caught, RetriesExhaustedError | CredentialsExpiredError)
        if isinstance(caught, DamagedError) or not (ill or caught.retryable):
            return Outcome(True, f"refused: {caught}")
        raise
    return Outcome(False, "a wrong one was accepted")


CHECKS: Final = (
    Check(
        Promise("checksum_of_put", GROUP, "a put with a wrong one is refused", READ_BACK),
        _wrong_put,
    ),
    Check(
        Promise("checksum_of_part", GROUP, "a part with a wrong one is refused", READ_BACK),
        _wrong_part,
    ),
    Check(
        Promise(
            "checksum_of_whole",
            GROUP,
            "completing with a wrong one is refused",
            "that of the whole follows from those of its parts, which ckptstore joins itself",
        ),
        _wrong_whole,
    ),
    Check(
        Promise(
            "size_of_whole",
            GROUP,
            "completing with a wrong size is refused",
            "ckptstore adds up the parts itself before it completes an upload",
        ),
        _wrong_size,
    ),
    Check(
        Promise(
            "checksum_kept",
            GROUP,
            "that of an upload in parts is kept",
            "`verify --quick` cannot judge such objects; `verify` reads them instead",
        ),
        _kept,
    ),
)
