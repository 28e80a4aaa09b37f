"""Uploads in parts: order, holes, aborts, and asking twice."""

from __future__ import annotations

from typing import Final

from ckptstore.errors import IntegrityError, StoreError, WriteOutcomeUnknownError
from ckptstore.probe.finding import Check, Outcome, Promise
from ckptstore.probe.reading import read_whole
from ckptstore.probe.scratch import Scratch

GROUP: Final = "uploads in parts"
UNDECIDED: Final = "nobody reads the data of an attempt before it is decided"


async def _any_order(area: Scratch) -> Outcome:
    key = area.key("parts")
    first, last = b"1" * area.part_bytes, b"the last part is shorter"
    upload_id = await area.begin(key)
    etag_last = await area.send(key, upload_id, 1, last)
    etag_first = await area.send(key, upload_id, 0, first)
    if await area.is_there(key):
        return Outcome(False, "it was there before it was completed")
    await area.complete(key, upload_id, [etag_first, etag_last], first + last)
    whole = await read_whole(area, key, len(first + last))
    return Outcome(whole == first + last, f"2 parts, {len(whole)} bytes")


async def _hole(area: Scratch) -> Outcome:
    """Name a part that was never sent."""
    if area.unchecked is None:
        return Outcome(None, "nothing wrong can be sent through this backend")
    key, other = area.key("hole"), area.key("hole-of-another")
    upload_id, foreign_id = await area.begin(key), await area.begin(other)
    data = b"2" * area.part_bytes
    sent = await area.send(key, upload_id, 0, data)
    never = await area.send(other, foreign_id, 1, b"x")
    try:
        await area.unchecked.multipart_complete_unchecked(
            area.bucket_key(key), upload_id, [sent, never], size_bytes=len(data) + 1, crc64nvme=0
        )
    except StoreError as error:
        if error.retryable:
            raise
        return Outcome(True, f"refused: {error}")
    return Outcome(False, "an upload of which a part was never sent was completed")


async def _abort(area: Scratch) -> Outcome:
    key = area.key("aborted")
    upload_id = await area.begin(key)
    etag = await area.send(key, upload_id, 0, b"aborted")
    await area.store.multipart_abort(key, upload_id)
    try:
        await area.complete(key, upload_id, [etag], b"aborted")
        return Outcome(False, "an aborted upload was completed")
    except StoreError as error:
        if error.retryable:
            raise
    if await area.is_there(key):
        return Outcome(False, "an aborted upload left an object")
    still = [u async for u in area.store.list_uploads(key) if u.upload_id == upload_id]
    return Outcome(not still, "it is still listed" if still else "")


async def _again(area: Scratch) -> Outcome:
    key = area.key("completed-twice")
    upload_id = await area.begin(key)
    etag = await area.send(key, upload_id, 0, b"twice")
    await area.complete(key, upload_id, [etag], b"twice")
    try:
        await area.complete(key, upload_id, [etag], b"twice")
        detail = "accepted"
    except WriteOutcomeUnknownError:
        detail = "the upload is not known any more"
    found = await area.store.get(key)
    return Outcome(found == b"twice" and detail == "accepted", detail)


async def _listed(area: Scratch) -> Outcome:
    key = area.key("open")
    upload_id = await area.begin(key)
    found = [upload.upload_id async for upload in area.store.list_uploads(area.prefix)]
    return Outcome(upload_id in found, "" if upload_id in found else "it is not among them")


CHECKS: Final = (
    Check(
        Promise(
            "parts_in_any_order",
            GROUP,
            "sent in any order, they make one object",
            "no large object can be written here",
            IntegrityError,
        ),
        _any_order,
    ),
    Check(
        Promise(
            "missing_part_refused",
            GROUP,
            "one that was never sent is missed",
            "ckptstore counts the parts itself before it completes an upload",
        ),
        _hole,
    ),
    Check(
        Promise("abort_leaves_nothing", GROUP, "an abort leaves nothing", UNDECIDED),
        _abort,
    ),
    Check(
        Promise(
            "complete_repeatable",
            GROUP,
            "completing again is a success",
            "after a lost answer ckptstore looks at the object instead",
        ),
        _again,
    ),
    Check(
        Promise(
            "uploads_listed",
            GROUP,
            "open ones are listed",
            "`gc` cannot find what killed saves leave open: have a lifecycle rule abort "
            "incomplete uploads under data/",
        ),
        _listed,
    ),
)
