"""What comes before the first byte: the job's incarnation, and the attempt itself."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Protocol

from ckptstore.clock import Clock, Deadline
from ckptstore.commit.catalog import latest_commit, newest_decided, newest_incarnation
from ckptstore.commit.pins import PIN_S, PinStore, pinned
from ckptstore.commit.standing import put_standing
from ckptstore.errors import CheckpointNotFoundError, ConflictError
from ckptstore.manifest.codec import decode_incarnation, encode_record
from ckptstore.manifest.layout import Uid, begin_key, check_step, incarnation_key
from ckptstore.manifest.model import Attempt, Incarnation

logger = logging.getLogger(__name__)


class BeginStore(PinStore, Protocol):
    """All that beginning needs. It deletes its own pin, and nothing else."""


async def claim_incarnation(
    store: BeginStore,
    *,
    run: str,
    parent_uid: str | None,
    facts: Mapping[str, str],
    clock: Clock,
) -> Incarnation:
    """Claim the run's next incarnation; once a start of the job, by its coordinator.

    From here on, what an earlier start of the job still commits never becomes the latest.
    ``parent_uid`` is the checkpoint this start went on from; if it is not known, the latest
    one is taken for it. Until it has committed something, the parent is what it would start
    again from; so the parent is pinned until the claim stands, and retention keeps it then.
    """
    # A copy of a store may lack claims that its decisions prove.
    number = max(await newest_incarnation(store, run), await newest_decided(store, run))
    while True:
        number += 1
        async with AsyncExitStack() as pins:
            # After the number, and for each number anew: else what another start of the job
            # claims and commits in between would be nobody's parent, and never the latest.
            parent = await _pinned_parent(pins, store, run, parent_uid, clock)
            claim = Incarnation(
                run=run,
                number=number,
                nonce=secrets.token_hex(16),
                parent_uid=parent,
                claimed_unix_s=clock.unix_s(),
                facts=dict(facts),
            )
            if await _stands(store, claim):
                return claim


async def _pinned_parent(
    pins: AsyncExitStack, store: BeginStore, run: str, parent_uid: str | None, clock: Clock
) -> str | None:
    if parent_uid is not None:
        if not await _pin(pins, store, run, parent_uid, clock):
            logger.warning(
                "run %s: retention removed checkpoint %s, which this job went on from; until the "
                "job commits one of its own, the run's latest checkpoint cannot be read",
                run,
                parent_uid,
            )
        return parent_uid
    while (latest := await latest_commit(store, run)) is not None:
        if await _pin(pins, store, run, latest.attempt.uid, clock):
            return latest.attempt.uid  # Else it was retired, because there is a later one by now.
    return None


async def _pin(pins: AsyncExitStack, store: BeginStore, run: str, uid: str, clock: Clock) -> bool:
    pin = pinned(store, run, uid, clock=clock, holder="claim", deadline=Deadline.after(PIN_S))
    try:
        await pins.enter_async_context(pin)
    except CheckpointNotFoundError:
        return False
    return True


async def _stands(store: BeginStore, claim: Incarnation) -> bool:
    key = incarnation_key(claim.run, claim.number)
    return decode_incarnation(await put_standing(store, key, encode_record(claim)), key) == claim


async def begin_attempt(
    store: BeginStore,
    *,
    run: str,
    step: int,
    incarnation: int,
    attempt_number: int,
    world_size: int,
    deadline: Deadline,
    clock: Clock,
    nonce: str | None = None,
) -> Attempt:
    """Put the attempt's ``begin`` record, before any data, and return the attempt.

    For the coordinator. Whoever finds the attempt undecided after its deadline may abort it.
    """
    now_unix_s = clock.unix_s()
    uid = Uid(incarnation, check_step(step), attempt_number, nonce or new_nonce())
    attempt = Attempt(
        uid=str(uid),
        run=run,
        step=step,
        world_size=world_size,
        begun_unix_s=now_unix_s,
        deadline_unix_s=now_unix_s + max(deadline.left_s, 0.0),
    )
    data = encode_record(attempt)
    if await put_standing(store, begin_key(run, attempt.uid), data) != data:
        raise ConflictError(
            f"run {run} step {step}: attempt {uid} was begun by another process; "
            "start the save again"
        )
    return attempt


def new_nonce() -> str:
    """Return 8 hexadecimal digits with a letter among them, so that no step looks like it."""
    while (nonce := secrets.token_hex(4)).isdigit():
        pass
    return nonce
