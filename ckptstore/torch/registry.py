"""What this process remembers from one save or load to the next.

It is kept here, and not on writers and readers, because those are made anew for every save,
and travel by pickle. What a writer needs of it in another process it takes along (``Lineage``).
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

_lock = threading.Lock()
_counts: Counter[tuple[str, ...]] = Counter()
_loaded: dict[str, tuple[int, str]] = {}
_claimed: dict[tuple[str, int], int] = {}


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a save of a run goes on from: how often, and what last, was loaded of that run.

    ``incarnation`` is the one that was claimed since, if any.
    """

    loads: int
    parent_uid: str | None
    incarnation: int | None


def next_number(*what: str) -> int:
    """Return how often this was asked before for the same ``what``, in this process."""
    with _lock:
        _counts[what] += 1
        return _counts[what] - 1


def note_loaded(run: str, uid: str) -> None:
    """Remember what was loaded. Later saves go on from it, in an incarnation of their own.

    So a deliberate return to an older checkpoint is followed by ``latest`` as well.
    """
    with _lock:
        loads, _ = _loaded.get(run, (0, ""))
        _loaded[run] = (loads + 1, uid)


def note_claimed(run: str, loads: int, incarnation: int) -> None:
    with _lock:
        _claimed[run, loads] = max(incarnation, _claimed.get((run, loads), 0))


def lineage_of(run: str) -> Lineage:
    with _lock:
        loads, uid = _loaded.get(run, (0, None))
        return Lineage(loads, uid, _claimed.get((run, loads)))


def known_incarnation(run: str, lineage: Lineage) -> int | None:
    """Return the incarnation to save in, or ``None`` if one must be claimed first.

    The newest that is known, here or where the writer was made: an older one is fenced off.
    """
    with _lock:
        known = (lineage.incarnation, _claimed.get((run, lineage.loads)))
        return max((number for number in known if number is not None), default=None)
