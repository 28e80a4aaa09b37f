"""What a store has to keep, what was found of it, and what that means. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from ckptstore.errors import CkptStoreError

if TYPE_CHECKING:
    from ckptstore.probe.scratch import Scratch

UNVERIFIABLE: Final = 3  # The exit code of what could not be told, here and in the whole program.


class State(Enum):
    """``WEAK``: it does not hold, and ckptstore knows a way around. ``BROKEN``: there is none."""

    HOLDS = "holds"
    WEAK = "weak"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Promise:
    """One thing that a store has to keep.

    ``otherwise`` says what ckptstore does, or the user has to do, where it does not hold;
    ``broken_as`` is the kind of error that this amounts to, and ``None`` where there is a way
    around it.
    """

    name: str
    group: str
    text: str
    otherwise: str
    broken_as: type[CkptStoreError] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a check went. ``None`` means that it was not asked, or could not be told."""

    holds: bool | None
    detail: str = ""
    error: CkptStoreError | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A promise, and how to find out whether it holds."""

    promise: Promise
    run: Callable[[Scratch], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found of one promise. ``exit_code`` is 0 unless saving here is at risk by it."""

    name: str
    group: str
    text: str
    state: State
    detail: str = ""
    remedy: str = ""
    exit_code: int = 0


def judged(promise: Promise, outcome: Outcome) -> Finding:
    """Return what an outcome means for the promise that was looked into."""
    state, code = _meaning(promise, outcome)
    return Finding(
        name=promise.name,
        group=promise.group,
        text=promise.text,
        state=state,
        detail=outcome.detail,
        remedy=promise.otherwise if state in (State.WEAK, State.BROKEN) else "",
        exit_code=code,
    )


def _meaning(promise: Promise, outcome: Outcome) -> tuple[State, int]:
    broken_as = promise.broken_as
    match outcome:
        case Outcome(holds=True):
            return State.HOLDS, 0
        case Outcome(holds=False) if broken_as is None:
            return State.WEAK, 0
        case Outcome(holds=False):
            assert broken_as is not None
            return State.BROKEN, broken_as.exit_code
        case Outcome(error=None):
            return State.SKIPPED, 0
        case _:
            assert outcome.error is not None
            return State.UNKNOWN, outcome.error.exit_code if broken_as else UNVERIFIABLE


def noted(group: str, name: str, text: str, detail: str) -> Finding:
    """Return something worth knowing that nothing depends on."""
    return Finding(name=name, group=group, text=text, state=State.NOTE, detail=detail)


def doubted(group: str, name: str, text: str, remedy: str) -> Finding:
    """Return something that a user may not have meant."""
    return Finding(name=name, group=group, text=text, state=State.WEAK, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings together."""

    findings: tuple[Finding, ...]

    @property
    def safe(self) -> bool:
        """Whether a checkpoint that is committed here is complete, intact, and stays so."""
        return not any(finding.exit_code for finding in self.findings)

    @property
    def exit_codes(self) -> tuple[int, ...]:
        return tuple(finding.exit_code for finding in self.findings)

    def of(self, state: State) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.state is state)

    def holds(self, name: str) -> bool | None:
        """Tell whether a promise is kept; ``None`` if that was not looked into or not told."""
        for finding in self.findings:
            if finding.name == name and finding.state is State.HOLDS:
                return True
            if finding.name == name and finding.state in (State.WEAK, State.BROKEN):
                return False
        return None
