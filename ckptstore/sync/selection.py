"""Which checkpoints of a run are wanted. Pure: no I/O, no clock, no store."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ckptstore.errors import UsageError
from ckptstore.manifest.layout import STEP_MAX, parse_uid

_STEPS: Final = re.compile(r"(\d*)(:?)(\d*)")


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps from ``first`` to ``last``, both included."""

    first: int
    last: int

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What all that is given asks for; nothing given asks for everything.

    ``steps`` and ``every`` choose by step, and of what they choose, ``newest`` is how many.
    """

    newest: int | None = None
    steps: tuple[StepRange, ...] = ()
    every: int | None = None

    def __post_init__(self) -> None:
        for name in ("newest", "every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1: {value}")

    def chosen(self, uids: Iterable[str]) -> list[str]:
        """Return the uids that are asked for, the newest first."""
        newest_first = sorted(filter(self._asks_for, uids), key=parse_uid, reverse=True)
        return newest_first[: self.newest]

    def _asks_for(self, uid: str) -> bool:
        step = parse_uid(uid).step
        in_steps = not self.steps or any(step in steps for steps in self.steps)
        return in_steps and step % (self.every or 1) == 0


def parse_steps(text: str) -> tuple[StepRange, ...]:
    """Return what ``1000,2000`` means, or ``1000:``, ``:2000``, ``1000:2000``, both included."""
    return tuple(_parse_range(piece.strip(), text) for piece in text.split(","))


def _parse_range(piece: str, text: str) -> StepRange:
    match = _STEPS.fullmatch(piece)
    if match is None or piece in ("", ":"):
        raise UsageError(f"{text!r} names no steps; write 1000,2000 or 1000: or :2000 or 1000:2000")
    first, colon, last = match.groups()
    if not colon:
        return StepRange(int(first), int(first))
    steps = StepRange(int(first or 0), int(last or STEP_MAX))
    if steps.last < steps.first:
        raise UsageError(f"{text!r}: {piece} ends before it begins")
    return steps
