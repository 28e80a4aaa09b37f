"""What a moment of the model is made of: objects in the store, and where everybody stands.

Everything is an immutable tuple, so that states can be hashed and compared. ``World`` is what
does not change during a search.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tests.model.weakenings import Weakening

RANKS: Final = (0, 1)

# Plain strings, not enums: they are hashed millions of times, and an enum's hash is slow.
BEGIN, DATA, VOTE, DECISION = "begin", "data", "vote", "decision"
CLAIM, PIN, RETIRED = "claim", "pin", "retired"
READY, FAILED = "READY", "FAILED"
COMMIT, ABORT, IN_DOUBT = "COMMIT", "ABORT", "IN DOUBT"
THERE: Final = "there"  # The value of an object whose existence is all that it says.


class Uid(NamedTuple):
    """An attempt. The newest sorts last: by incarnation, then step, then try."""

    incarnation: int
    step: int
    attempt: int = 1

    def __str__(self) -> str:
        return f"i{self.incarnation}-s{self.step}-a{self.attempt}"


class Claim(NamedTuple):
    """An incarnation's record: its number, who claimed it, and what that job resumed from."""

    number: int
    owner: str
    parent: Uid | None

    def __str__(self) -> str:
        return f"{self.owner}, from {self.parent}"


class Key(NamedTuple):
    """``number`` is the rank of data and votes, the reader of a pin, a claim's incarnation.

    Of a mark ``retired`` it is the newest incarnation that its writer knew of.
    """

    kind: str
    uid: Uid | None
    number: int = -1

    def __str__(self) -> str:
        named = [str(part) for part in (self.uid, self.number) if part not in (None, -1)]
        return f"{self.kind}/{'/'.join(named)}"


Value: TypeAlias = str | Uid | Claim | None  # A data object's value is the attempt it is of.


class Flight(NamedTuple):
    """A put that nobody waits for any more. It may land at any time, or never."""

    key: Key
    value: Value
    if_absent: bool


class Local(NamedTuple):
    """Where one process stands: the next thing it does, and all that it remembers."""

    at: str
    uid: Uid | None = None
    verdict: str = ""
    commits: frozenset[Uid] | None = None  # As listed, while looking for ``latest``.
    claim: Claim | None = None  # The newest one listed; later, the one made.
    mark: int = 0  # The number of a mark ``retired``.


class State(NamedTuple):
    objects: tuple[Value, ...]
    locals: tuple[Local, ...]
    losses_left: int
    crashes_left: int
    flights: frozenset[Flight] = frozenset()
    told: frozenset[tuple[Uid, str]] = frozenset()  # Verdicts that somebody may rely on.
    late: frozenset[Uid] = frozenset()  # Committed when a newer incarnation was claimed.

    def with_local(self, place: int, local: Local) -> State:
        locals_ = (*self.locals[:place], local, *self.locals[place + 1 :])
        return State(self.objects, locals_, *self[2:])

    def with_object(self, slot: int, value: Value) -> State:
        objects = (*self.objects[:slot], value, *self.objects[slot + 1 :])
        return State(objects, *self[1:])


@dataclass(frozen=True)
class World:
    """The keys that can ever be written, each with its place among the objects, and the rules."""

    uids: tuple[Uid, ...]
    claims_max: int
    slots: dict[Key, int]
    weakening: Weakening | None
    put_if_absent: bool = True

    def data_key(self, uid: Uid, rank: int) -> Key:
        if self.weakening is Weakening.DATA_KEYS_BY_STEP:
            uid = uid._replace(attempt=0)
        return Key(DATA, uid, rank)

    def get(self, state: State, key: Key) -> Value:
        return state.objects[self.slots[key]]

    def keeps_condition(self, key: Key) -> bool:
        """Say whether a conditional put of this key is more than a plain one."""
        if self.weakening is Weakening.DECISION_OVERWRITES and key.kind == DECISION:
            return False
        if self.weakening is Weakening.CLAIM_OVERWRITES and key.kind == CLAIM:
            return False
        return self.put_if_absent

    def land(self, state: State, flight: Flight) -> State:
        """Return what the store makes of a put, in one instant."""
        if flight.if_absent and self.get(state, flight.key) is not None:
            return state
        return self.write(state, flight.key, flight.value)

    def write(self, state: State, key: Key, value: Value) -> State:
        if key.kind == DECISION and key.uid is not None and isinstance(value, str):
            state = self._decided(state, key.uid, value)
        return state.with_object(self.slots[key], value)

    def delete(self, state: State, key: Key) -> State:
        return self.write(state, key, None)

    def _decided(self, state: State, uid: Uid, verdict: str) -> State:
        """Anybody may read this decision from now on, and tell the world."""
        late = state.late
        newer = range(uid.incarnation + 1, self.claims_max + 1)
        if verdict == COMMIT and any(self.get(state, Key(CLAIM, None, n)) for n in newer):
            late |= {uid}
        return state._replace(told=state.told | {(uid, verdict)}, late=late)


def make_world(
    uids: Iterable[Uid],
    weakening: Weakening | None,
    *,
    claims_max: int = 1,
    pinners: int = 0,
    put_if_absent: bool = True,
) -> World:
    """Return a world of these attempts, incarnations and processes that pin."""
    uids = tuple(uids)
    keys = [Key(CLAIM, None, number) for number in range(1, claims_max + 1)]
    for uid in uids:
        keys += [Key(BEGIN, uid), Key(DECISION, uid)]
        keys += [Key(RETIRED, uid, number) for number in range(1, claims_max + 1)]
        keys += [Key(VOTE, uid, rank) for rank in RANKS]
        keys += [
            Key(DATA, owner, rank) for owner in (uid, uid._replace(attempt=0)) for rank in RANKS
        ]
        keys += [Key(PIN, uid, pinner) for pinner in range(pinners)]
    slots = {key: slot for slot, key in enumerate(dict.fromkeys(keys))}
    return World(uids, claims_max, slots, weakening, put_if_absent)
