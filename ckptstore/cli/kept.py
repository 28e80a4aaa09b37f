"""By what retention is held off a checkpoint: for ``ls`` and ``show``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptstore.cli.units import human_time

if TYPE_CHECKING:
    from ckptstore.commit.pins import PinsStore


@dataclass(frozen=True, slots=True)
class Kept:
    """The tags of a checkpoint, and when the pins on it expire, in seconds since 1970."""

    tags: tuple[str, ...] = ()
    pins: tuple[float, ...] = ()

    def __str__(self) -> str:
        said = [f"tag {name}" for name in self.tags]
        return ", ".join([*said, *(f"pin until {human_time(pin)}" for pin in self.pins[-1:])])


async def kept_in(store: PinsStore, run: str) -> dict[str, Kept]:
    """Return what is tagged or pinned in a run, by uid."""
    from ckptstore.clock import SystemClock
    from ckptstore.commit.pins import list_pins
    from ckptstore.commit.tags import list_tags

    kept: dict[str, Kept] = {}
    for name, uid in sorted((await list_tags(store, run)).items()):
        known = kept.get(uid, Kept())
        kept[uid] = replace(known, tags=(*known.tags, name))
    now_unix_s = SystemClock().unix_s()
    for _, pin in await list_pins(store, run):
        if now_unix_s < pin.expires_unix_s:
            known = kept.get(pin.uid, Kept())
            kept[pin.uid] = replace(known, pins=tuple(sorted((*known.pins, pin.expires_unix_s))))
    return kept
