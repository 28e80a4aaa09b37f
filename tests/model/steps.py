"""How a process moves: one request at a time, and every put may end in several ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, NamedTuple

from tests.model.state import (
    BEGIN,
    DATA,
    DECISION,
    VOTE,
    Flight,
    Key,
    Local,
    State,
    Uid,
    Value,
    World,
)

ENDED: Final = "ended"
CRASHED: Final = "crashed"


class Kind(Enum):
    """What sort of thing happened. A search that never saw one of these proves little."""

    PUT = "put"
    REFUSED = "refused"
    OWN_SUCCESS_REFUSED = "own success refused"
    LOST_ANSWER = "lost answer"
    LATE_LANDING = "late landing"
    ZOMBIE_WRITE = "zombie write"
    CRASH = "crash"
    GIVE_UP = "give up"
    READ_BACK = "read back"
    DECIDE = "decide"
    RESOLVE = "resolve"
    COLLECTOR_ABORT = "collector's abort"
    COLLECTOR_DELETE = "collector's delete"
    RETIRE = "retire"
    LIST = "list"
    FAILED_LIST = "failed list"
    PIN = "pin"
    UNPIN = "unpin"
    EXPIRY = "expiry of a pin"
    CHECK = "check"
    READ = "read"
    CLAIM = "claim"


class Step(NamedTuple):
    """``words`` say what happened; few steps are ever shown, so they are joined only then."""

    kind: Kind
    words: tuple[object, ...]
    state: State

    @property
    def text(self) -> str:
        return " ".join(map(str, self.words))


class Put(NamedTuple):
    """A put, and where each of its answers leads."""

    kind: Kind
    key: Key
    value: Value
    acked: Local
    silent: Local  # It landed, will land or never will: the sender cannot know.
    refused: Local | None = None  # Given for a put-if-absent, and for no other.

    @property
    def words(self) -> tuple[object, ...]:
        return ("puts", self.key, "=", self.value)


@dataclass(frozen=True)
class Actor(ABC):
    """A process. ``place`` is where its local state lies; it has no other memory."""

    world: World
    name: str
    place: int
    start: Local

    crashable: ClassVar[bool] = True

    @abstractmethod
    def steps(self, state: State) -> Iterator[Step]:
        """Yield everything that this process may do next."""

    def steps_after_crash(self, state: State) -> Iterator[Step]:
        """Yield what still happens to what a crashed process left behind."""
        yield from ()

    def relies_on(self, local: Local) -> Uid | None:
        """Return the checkpoint that must not be touched while this process stands there."""
        return None

    def owns_incarnation(self, local: Local) -> int | None:
        """Return the incarnation that this process believes to be."""
        return None

    def local(self, state: State) -> Local:
        return state.locals[self.place]

    def step(self, kind: Kind, state: State, local: Local, *words: object) -> Step:
        return Step(kind, (self.name, *words), state.with_local(self.place, local))

    def put(self, state: State, put: Put) -> Iterator[Step]:
        """Yield every way in which a put can end.

        Landing without an answer is not a way of its own: it is getting no answer, and
        landing in the next instant.
        """
        if_absent = put.refused is not None and self.world.keeps_condition(put.key)
        if if_absent and put.refused is not None:
            yield from self._put_if_absent(state, put, put.refused)
        else:
            yield self._landed(state, put)
        if state.losses_left:
            flights = state.flights | {Flight(put.key, put.value, if_absent)}
            lost = state._replace(flights=flights, losses_left=state.losses_left - 1)
            yield self.step(Kind.LOST_ANSWER, lost, put.silent, *put.words, "and gets no answer")

    def _put_if_absent(self, state: State, put: Put, refused: Local) -> Iterator[Step]:
        if self.world.get(state, put.key) is not None:
            yield self.step(Kind.REFUSED, state, refused, *put.words, "and is refused")
            return
        yield self._landed(state, put)
        if state.losses_left:
            landed = self.world.write(state, put.key, put.value)
            landed = landed._replace(losses_left=state.losses_left - 1)
            words = (*put.words, "and gets no answer, puts it again and is refused")
            yield self.step(Kind.OWN_SUCCESS_REFUSED, landed, refused, *words)

    def _landed(self, state: State, put: Put) -> Step:
        kind = Kind.ZOMBIE_WRITE if is_zombie(self.world, state, put.key) else put.kind
        landed = self.world.write(state, put.key, put.value)
        return self.step(kind, landed, put.acked, *put.words)


def is_zombie(world: World, state: State, key: Key) -> bool:
    """Say whether a write there is into an attempt that was decided, or given up for another."""
    if key.kind not in (DATA, VOTE) or key.uid is None or not key.uid.attempt:
        return False
    retry = key.uid._replace(attempt=key.uid.attempt + 1)
    return world.get(state, Key(DECISION, key.uid)) is not None or (
        retry in world.uids and world.get(state, Key(BEGIN, retry)) is not None
    )
