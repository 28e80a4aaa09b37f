"""What may become of a request, and who decides it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from ckptstore.layers._around import Request
from ckptstore.store import STORE_VERBS

WRITES: Final = frozenset(
    {"put", "multipart_create", "put_part", "multipart_complete", "multipart_abort", "delete"}
)


class Fate(Enum):
    """One piece of bad luck. Lost means: the connection broke and the caller gets an error."""

    LOST_BEFORE = "lost before the store did anything"
    LOST_AFTER = "done, and the answer lost"
    LATE = "lost, and done minutes later"
    SILENT = "never answered, and not done"
    SILENT_AFTER = "done, and never answered"
    SILENT_LATE = "never answered, and done minutes later"
    THROTTLED = "refused with a 503"
    THROTTLED_ASKED = "refused with a 503 that says for how long"
    DENIED = "refused for good"
    RESET = "lost when half of the body was there"
    SHORT = "answered with half of the body, as if that were all"
    FLIPPED = "answered with one bit flipped"
    ROTTEN = "done, and one bit rotten at rest"
    CUT = "lost in the middle of the listing"
    TRUNCATED = "answered with half of the listing, as if that were all"

    def strikes(self, verb: str) -> bool:
        """Return whether this can happen to a request of that verb."""
        return verb in _STRIKES.get(self, STORE_VERBS)


_STRIKES: Final[Mapping[Fate, frozenset[str]]] = {
    Fate.LOST_AFTER: WRITES,
    Fate.LATE: WRITES,
    Fate.SILENT_AFTER: WRITES,
    Fate.SILENT_LATE: WRITES,
    Fate.RESET: frozenset({"get", "get_into"}),
    Fate.SHORT: frozenset({"get", "get_into"}),
    Fate.FLIPPED: frozenset({"get", "get_into"}),
    Fate.ROTTEN: frozenset({"put", "multipart_complete"}),
    Fate.CUT: frozenset({"list_objects", "list_uploads"}),
    Fate.TRUNCATED: frozenset({"list_objects", "list_uploads"}),
}

# What honest stores and networks do. The rest are stores that lie, and disks that rot.
HONEST: Final[tuple[Fate, ...]] = tuple(
    fate for fate in Fate if fate not in (Fate.SHORT, Fate.FLIPPED, Fate.ROTTEN, Fate.TRUNCATED)
)

Luck: TypeAlias = Callable[[Request], Fate | None]


def fair(request: Request) -> None:
    """No bad luck at all."""


class Nth:
    """Strike the ``n``-th request, from 0, that ``fate`` can strike; if ``lasting``, all after it.

    ``verb`` and ``key`` (a part of one) narrow the choice. ``struck`` are the requests that it met.
    """

    def __init__(
        self, n: int, fate: Fate, *, lasting: bool = False, verb: str = "", key: str = ""
    ) -> None:
        self._left = n
        self.fate = fate
        self.lasting = lasting
        self._verb = verb
        self._key = key
        self.struck: list[Request] = []

    def __call__(self, request: Request) -> Fate | None:
        if not self.fate.strikes(request.verb) or self._key not in request.key:
            return None
        if self._verb not in ("", request.verb):
            return None
        self._left -= 1
        if self._left == -1 or (self.lasting and self._left < 0):
            self.struck.append(request)
            return self.fate
        return None


@dataclass
class Weather:
    """Bad luck by chance: each fate at its own rate, and now and then a storm over one prefix.

    In a storm, for up to ``storm_s_max``, every request below the prefix meets the same fate.
    """

    rng: random.Random
    rates: Mapping[Fate, float]
    storm_rate: float = 0.0
    storm_s_max: float = 30.0
    _storms: dict[str, tuple[float, Fate]] = field(default_factory=dict)

    def __call__(self, request: Request) -> Fate | None:
        fate = self._storm(request) or self._chance()
        return fate if fate is not None and fate.strikes(request.verb) else None

    def _storm(self, request: Request) -> Fate | None:
        now_s = asyncio.get_running_loop().time()
        prefix = request.key.partition("/")[0]
        until_s, fate = self._storms.get(prefix, (0.0, Fate.THROTTLED))
        if now_s < until_s:
            return fate
        if self.rng.random() < self.storm_rate:
            storms = (Fate.THROTTLED, Fate.THROTTLED_ASKED, Fate.SILENT, Fate.LOST_BEFORE)
            until_s = now_s + self.rng.uniform(0.0, self.storm_s_max)
            self._storms[prefix] = until_s, self.rng.choice(storms)
        return None

    def _chance(self) -> Fate | None:
        at = self.rng.random()
        for fate, rate in self.rates.items():
            at -= rate
            if at < 0:
                return fate
        return None
