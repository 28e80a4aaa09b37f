"""The ranks and the coordinator of one attempt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.reading import voted_ready
from tests.model.state import (
    ABORT,
    BEGIN,
    COMMIT,
    DECISION,
    FAILED,
    IN_DOUBT,
    READY,
    THERE,
    VOTE,
    Key,
    Local,
    State,
    Uid,
)
from tests.model.steps import CRASHED, ENDED, Actor, Kind, Put, Step
from tests.model.weakenings import Weakening


@dataclass(frozen=True)
class Rank(Actor):
    """Uploads its data, then votes. It never notices that its attempt was given up.

    So it may write at any time, however late, as a process does that was stopped meanwhile.
    """

    uid: Uid
    rank: int

    def steps(self, state: State) -> Iterator[Step]:
        local = self.local(state)
        match local.at:
            case "upload" if self.world.get(state, Key(BEGIN, self.uid)) is not None:
                yield from self._upload(state)
            case "vote":
                yield from self._vote(state, local)

    def _upload(self, state: State) -> Iterator[Step]:
        failed = Local("vote", verdict=FAILED)
        ready = Local("vote", verdict=READY)
        hasty = self.world.weakening is Weakening.VOTE_BEFORE_ANSWER
        yield self.step(Kind.GIVE_UP, state, failed, "cannot upload")
        key = self.world.data_key(self.uid, self.rank)
        silent = ready if hasty else Local("upload")  # Sent again: the same bytes.
        yield from self.put(state, Put(Kind.PUT, key, self.uid, acked=ready, silent=silent))

    def _vote(self, state: State, local: Local) -> Iterator[Step]:
        key = Key(VOTE, self.uid, self.rank)
        changed = self.world.weakening is Weakening.VOTE_CHANGED
        silent = Local("vote", verdict=FAILED) if changed else local
        yield from self.put(
            state, Put(Kind.PUT, key, local.verdict, acked=Local(ENDED), silent=silent)
        )


@dataclass(frozen=True)
class Coordinator(Actor):
    """Begins the attempt, collects votes, decides, and reports what it knows to be decided.

    ``after`` is the coordinator of the try before: this one begins when that one is over.
    """

    uid: Uid
    after: int | None = None

    def steps(self, state: State) -> Iterator[Step]:
        local = self.local(state)
        match local.at:
            case "begin" if self.after is None or state.locals[self.after].at in (ENDED, CRASHED):
                collect = Local("collect")
                put = Put(Kind.PUT, Key(BEGIN, self.uid), THERE, collect, local, refused=collect)
                yield from self.put(state, put)
            case "collect":
                yield from self._collect(state)
            case "decide":
                yield from self._decide(state, local)
            case "read back":
                yield from self._read_back(state, local)

    def _collect(self, state: State) -> Iterator[Step]:
        if voted_ready(self.world, state, self.uid):
            commit = Local("decide", verdict=COMMIT)
            yield self.step(Kind.READ, state, commit, "finds all votes READY")
        text = "finds a FAILED vote, or its deadline passed"
        if self.world.weakening is Weakening.FAILURE_WITHOUT_ABORT:
            yield self._report(Kind.GIVE_UP, state, ABORT, text)
        else:
            yield self.step(Kind.GIVE_UP, state, Local("decide", verdict=ABORT), text)

    def _decide(self, state: State, local: Local) -> Iterator[Step]:
        verdict = local.verdict
        known = Local(ENDED, verdict=verdict)
        unsure = Local("read back", verdict=verdict)
        if self.world.weakening is Weakening.NO_READ_BACK:
            unsure = Local(ENDED, verdict=ABORT)
        put = Put(Kind.DECIDE, Key(DECISION, self.uid), verdict, known, unsure, refused=unsure)
        for step in self.put(state, put):
            yield step._replace(state=self._told(step.state))

    def _read_back(self, state: State, local: Local) -> Iterator[Step]:
        standing = self.world.get(state, Key(DECISION, self.uid))
        if isinstance(standing, str):
            yield self._report(Kind.READ_BACK, state, standing, "reads back", standing)
            return
        weakening = self.world.weakening
        verdict = ABORT if weakening is Weakening.DOUBT_IS_ABORT else IN_DOUBT
        yield self._report(Kind.READ_BACK, state, verdict, "reads back nothing")
        again = {local.verdict}
        if self.world.put_if_absent or weakening is Weakening.MIND_CHANGED:
            again.add(ABORT)
        for verdict in sorted(again):
            local = Local("decide", verdict=verdict)
            yield self.step(Kind.READ_BACK, state, local, "reads back nothing, will try", verdict)

    def _report(self, kind: Kind, state: State, verdict: str, *words: object) -> Step:
        ended = Local(ENDED, verdict=verdict)
        step = self.step(kind, state, ended, *words, "and reports", verdict)
        return step._replace(state=self._told(step.state))

    def _told(self, state: State) -> State:
        """Whoever heard a verdict may rely on it; to be in doubt is none."""
        local = self.local(state)
        if local.at != ENDED or local.verdict == IN_DOUBT:
            return state
        return state._replace(told=state.told | {(self.uid, local.verdict)})
