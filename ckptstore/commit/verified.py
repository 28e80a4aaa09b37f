"""What verifications proved, for retention to count on."""

from __future__ import annotations

import os
import secrets
import socket

from ckptstore.clock import Clock
from ckptstore.manifest.codec import encode_record
from ckptstore.manifest.layout import verified_key, verified_prefix
from ckptstore.manifest.model import Verified
from ckptstore.store import SupportsList, SupportsPut


async def note_verified(
    store: SupportsPut, run: str, uid: str, *, objects: int, bytes_verified: int, clock: Clock
) -> None:
    """Record that all of a checkpoint was read back and was right, just now."""
    now_unix_s = clock.unix_s()
    proof = Verified(
        run=run,
        uid=uid,
        verified_unix_s=now_unix_s,
        verified_by=f"{socket.gethostname()}, pid {os.getpid()}",
        objects=objects,
        bytes_verified=bytes_verified,
    )
    name = f"{int(now_unix_s):012d}-{secrets.token_hex(4)}"
    await store.put(verified_key(run, uid, name), encode_record(proof))


async def list_verified(store: SupportsList, run: str) -> frozenset[str]:
    """Return the uids of the checkpoints that were once verified, all of them."""
    prefix = verified_prefix(run)
    return frozenset(
        [
            info.key.removeprefix(prefix).partition("/")[0]
            async for info in store.list_objects(prefix)
        ]
    )
