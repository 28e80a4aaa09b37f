"""Put-if-absent: what makes a decision final."""

from __future__ import annotations

import asyncio
from typing import Final

from ckptstore.errors import ObjectExistsError, StoreError, UnsupportedVerbError
from ckptstore.probe.finding import Check, Outcome, Promise
from ckptstore.probe.scratch import Scratch
from ckptstore.types import CreateOnly, Version

GROUP: Final = "put-if-absent"
RACERS: Final = 8
ONE_DECIDES: Final = (
    "only the coordinator of an attempt may decide it; `resolve`, `gc` of undecided attempts and "
    "pushes by several nodes are refused, and a lost coordinator costs the attempt"
)


async def _second_create_is_refused(area: Scratch) -> Outcome:
    if not area.store.capabilities.create_only:
        return Outcome(False, "the backend does not promise it")
    key = area.key("create-only")
    await area.store.put(key, b"first", mode=CreateOnly())
    try:
        await area.store.put(key, b"second", mode=CreateOnly())
    except ObjectExistsError:
        found = await area.store.get(key)
        return Outcome(found == b"first", f"refused, and {found!r} stands")
    return Outcome(False, "the second create of one key was accepted")


async def _one_racer_wins(area: Scratch) -> Outcome:
    if not area.store.capabilities.create_only:
        return Outcome(False, "the backend does not promise it")
    key = area.key("create-race")
    offers = [f"racer {number}".encode() for number in range(RACERS)]
    answers = await asyncio.gather(
        *(area.store.put(key, offer, mode=CreateOnly()) for offer in offers), return_exceptions=True
    )
    for answer in answers:
        if not isinstance(answer, Version | StoreError):
            raise answer
    won = [o for o, a in zip(offers, answers, strict=True) if isinstance(a, Version)]
    stands = await area.store.get(key)
    detail = f"{len(won)} of {RACERS} at once were told that they won"
    return Outcome(len(won) <= 1 and stands in (won or offers), detail)


async def _parts_count_as_there(area: Scratch) -> Outcome:
    if not area.store.capabilities.create_only:
        return Outcome(None, "put-if-absent is not promised")
    key = area.key("create-over-parts")
    upload_id = await area.begin(key)
    await area.complete(key, upload_id, [await area.send(key, upload_id, 0, b"parts")], b"parts")
    try:
        await area.store.put(key, b"second", mode=CreateOnly())
    except ObjectExistsError:
        return Outcome(True)
    return Outcome(False, "an object uploaded in parts was taken for absent")


CHECKS: Final = (
    Check(
        Promise(
            "create_only", GROUP, "a second create is refused", ONE_DECIDES, UnsupportedVerbError
        ),
        _second_create_is_refused,
    ),
    Check(
        Promise(
            "create_only_raced",
            GROUP,
            "of several at once, one wins",
            ONE_DECIDES,
            UnsupportedVerbError,
        ),
        _one_racer_wins,
    ),
    Check(
        Promise(
            "create_only_over_parts",
            GROUP,
            "it sees objects uploaded in parts",
            "decisions and votes are never uploaded in parts, so nothing depends on it",
        ),
        _parts_count_as_there,
    ),
)
