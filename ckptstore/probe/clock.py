"""Two clocks: this machine's and the store's."""

from __future__ import annotations

from typing import Final

from ckptstore.clock import SystemClock
from ckptstore.errors import SettingsError
from ckptstore.probe.finding import Check, Outcome, Promise
from ckptstore.probe.scratch import Scratch

SKEW_S_MAX: Final = 60.0  # S3 refuses signatures at 900 s; deadlines and ages suffer before.


def skew_s(before_unix_s: float, store_unix_s: float, after_unix_s: float) -> float:
    """Return by how many seconds the store is ahead, at least; 0 if it may agree with us.

    Stores tell whole seconds, so the last one counts as a whole.
    """
    if store_unix_s > after_unix_s:
        return store_unix_s - after_unix_s
    return min(0.0, store_unix_s + 1.0 - before_unix_s)


async def _agree(area: Scratch) -> Outcome:
    clock = SystemClock()
    key = area.key("clock")
    before_unix_s = clock.unix_s()
    await area.store.put(key, b"what time is it?")
    after_unix_s = clock.unix_s()
    store_unix_s = (await area.store.head(key)).modified_unix_s
    if store_unix_s is None:
        return Outcome(None, "the store does not tell when an object was written")
    ahead_s = skew_s(before_unix_s, store_unix_s, after_unix_s)
    way = "ahead" if ahead_s > 0 else "behind"
    detail = f"the store is {abs(ahead_s):.0f} s {way}" if abs(ahead_s) >= 1 else "to the second"
    return Outcome(abs(ahead_s) <= SKEW_S_MAX, detail)


CHECKS: Final = (
    Check(
        Promise(
            "clock",
            "clock",
            "this machine's and the store's agree",
            "set this machine's clock: requests are signed with the time, and deadlines and ages "
            "are told by it",
            SettingsError,
        ),
        _agree,
    ),
)
