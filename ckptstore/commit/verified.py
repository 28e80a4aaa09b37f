"""What verifications proved, for retention to count on."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Protocol

from ckptstore.clock import Clock
from ckptstore.manifest.codec import decode_sampled, encode_record
from ckptstore.manifest.layout import (
    sampled_key,
    sampled_prefix,
    verified_key,
    verified_prefix,
)
from ckptstore.manifest.model import Sampled, Verified
from ckptstore.store import SupportsGet, SupportsList, SupportsPut


class SampleStore(SupportsGet, SupportsList, Protocol):
    """All that looking at samples needs."""


async def note_verified(
    store: SupportsPut, run: str, uid: str, *, objects: int, bytes_verified: int, clock: Clock
) -> None:
    """Record that all of a checkpoint was read back and was right, just now."""
    now_unix_s = clock.unix_s()
    proof = Verified(
        run=run,
        uid=uid,
        verified_unix_s=now_unix_s,
        verified_by=_who(),
        objects=objects,
        bytes_verified=bytes_verified,
    )
    await store.put(verified_key(run, uid, _name(now_unix_s)), encode_record(proof))


async def note_sampled(
    store: SupportsPut,
    run: str,
    uid: str,
    *,
    sample: str,
    start_ppm: int,
    stop_ppm: int,
    bytes_verified: int,
    bytes_total: int,
    clock: Clock,
) -> None:
    """Record that a part of a checkpoint was read back and was right. Retention ignores it."""
    now_unix_s = clock.unix_s()
    proof = Sampled(
        run=run,
        uid=uid,
        sample=sample,
        sampled_unix_s=now_unix_s,
        sampled_by=_who(),
        start_ppm=start_ppm,
        stop_ppm=stop_ppm,
        bytes_verified=bytes_verified,
        bytes_total=bytes_total,
    )
    await store.put(sampled_key(run, uid, _name(now_unix_s)), encode_record(proof))


async def next_sample_ppm(store: SampleStore, run: str, uid: str) -> int:
    """Return where the next rolling sample begins: where the last one ended, or 0."""
    keys = [info.key async for info in store.list_objects(sampled_prefix(run, uid))]
    samples = [decode_sampled(await store.get(key), key) for key in sorted(keys, reverse=True)]
    rolling = [sample for sample in samples if "/" not in sample.sample]
    return max(rolling, key=lambda sample: sample.sampled_unix_s).stop_ppm if rolling else 0


def _name(now_unix_s: float) -> str:
    return f"{int(now_unix_s):012d}-{secrets.token_hex(4)}"


def _who() -> str:
    return f"{socket.gethostname()}, pid {os.getpid()}"


async def list_verified(store: SupportsList, run: str) -> frozenset[str]:
    """Return the uids of the checkpoints that were once verified, all of them."""
    prefix = verified_prefix(run)
    return frozenset(
        [
            info.key.removeprefix(prefix).partition("/")[0]
            async for info in store.list_objects(prefix)
        ]
    )
