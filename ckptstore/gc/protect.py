"""What nobody may delete, whatever the policy says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckptstore.clock import Clock
from ckptstore.commit.catalog import latest_commit, newest_parent
from ckptstore.commit.pins import PinsStore, list_pinned
from ckptstore.commit.tags import list_tags


@dataclass(frozen=True, slots=True)
class Protected:
    """Checkpoints that must stay, and why. ``pinned`` ones are among them."""

    reasons: Mapping[str, tuple[str, ...]]
    pinned: frozenset[str]


async def find_protected(store: PinsStore, run: str, *, clock: Clock) -> Protected:
    """Return what must stay: the latest, what the newest incarnation went on from, pinned, tagged.

    Looks for the latest before and after it lists pins: a job that starts again pins the
    checkpoint that it goes on from until its claim stands, so either the pin is seen or the
    claim is. Raises what any of the listings raises; then nothing may be deleted.
    """
    reasons: dict[str, list[str]] = {}
    before = await _needed(store, run)
    pinned = await list_pinned(store, run, clock=clock)
    tags = await list_tags(store, run)
    for uid, reason in {**before, **await _needed(store, run)}.items():
        reasons.setdefault(uid, []).append(reason)
    for uid in pinned:
        reasons.setdefault(uid, []).append("pinned by somebody who reads or copies it")
    for name, uid in sorted(tags.items()):
        reasons.setdefault(uid, []).append(f"tagged {name}")
    return Protected({uid: tuple(more) for uid, more in reasons.items()}, pinned)


async def _needed(store: PinsStore, run: str) -> dict[str, str]:
    latest = await latest_commit(store, run)
    parent_uid = await newest_parent(store, run)
    needed = {parent_uid: "the newest incarnation went on from it"} if parent_uid else {}
    if latest is not None:
        needed[latest.attempt.uid] = "the latest"
    return needed
