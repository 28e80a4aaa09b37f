"""Listings: the latest checkpoint is found by one."""

from __future__ import annotations

from typing import Final

from ckptstore.concurrency import map_concurrently
from ckptstore.errors import UnsupportedVerbError
from ckptstore.probe.finding import Check, Outcome, Promise
from ckptstore.probe.scratch import Scratch
from ckptstore.types import Key

GROUP: Final = "listings"
IN_ONE: Final = tuple(f"{number:02d}" for number in (7, 3, 11, 0, 9, 1, 10, 5, 2, 8, 4, 6))
IN_SEVERAL: Final = ("a/c", "a-b/c", "a.b")


async def _filled(area: Scratch, directory: str, names: tuple[str, ...]) -> list[Key]:
    """Write small objects; return the keys that a listing finds right afterwards."""
    keys = [area.key(f"{directory}/{name}") for name in names]
    await map_concurrently(lambda key: area.store.put(key, b"listed"), keys)
    prefix = f"{area.prefix}{directory}/"
    return [info.key async for info in area.store.list_objects(prefix)]


async def _at_once(area: Scratch) -> Outcome:
    found = await _filled(area, "fresh", IN_ONE)
    return Outcome(len(set(found)) == len(IN_ONE), f"{len(set(found))} of {len(IN_ONE)} objects")


async def _ordered_in_directory(area: Scratch) -> Outcome:
    found = await _filled(area, "ordered", IN_ONE)
    return Outcome(found == sorted(found) and len(found) == len(IN_ONE))


async def _ordered(area: Scratch) -> Outcome:
    found = await _filled(area, "deep", IN_SEVERAL)
    names = [key.removeprefix(f"{area.prefix}deep/") for key in found]
    return Outcome(found == sorted(found), f"as it came: {', '.join(names)}")


async def _within_a_name(area: Scratch) -> Outcome:
    keys = [area.key(f"named/{name}") for name in ("rank-0", "rank-1", "other")]
    await map_concurrently(lambda key: area.store.put(key, b"listed"), keys)
    found = [info.key async for info in area.store.list_objects(f"{area.prefix}named/rank-")]
    return Outcome(found == keys[:2], f"{len(found)} objects, not 2" if len(found) != 2 else "")


async def _gone_at_once(area: Scratch) -> Outcome:
    key = area.key("unlisted/x")
    await area.store.put(key, b"soon gone")
    await area.store.delete(key)
    found = [info.key async for info in area.store.list_objects(f"{area.prefix}unlisted/")]
    return Outcome(key not in found)


CHECKS: Final = (
    Check(
        Promise(
            "list_after_write",
            GROUP,
            "what was written is listed at once",
            "votes and decisions would be overlooked",
            UnsupportedVerbError,
        ),
        _at_once,
    ),
    Check(
        Promise(
            "list_ordered_in_directory",
            GROUP,
            "a directory is listed in order",
            "the latest checkpoint could not be found",
            UnsupportedVerbError,
        ),
        _ordered_in_directory,
    ),
    Check(
        Promise(
            "list_prefix_within_name",
            GROUP,
            "a prefix may end within a name",
            "votes would be overlooked",
            UnsupportedVerbError,
        ),
        _within_a_name,
    ),
    Check(
        Promise(
            "list_ordered",
            GROUP,
            "several directories are listed in order",
            "nothing depends on the order beyond one directory",
        ),
        _ordered,
    ),
    Check(
        Promise(
            "list_after_delete",
            GROUP,
            "what was deleted is not listed",
            "`gc` may find again, for a while, what it has removed",
        ),
        _gone_at_once,
    ),
)
