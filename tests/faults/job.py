"""A training job over a simulated store, which remembers all that it was told."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from ckptstore.clock import Deadline
from ckptstore.commit.begin import begin_attempt, claim_incarnation
from ckptstore.errors import CkptStoreError
from ckptstore.manifest.model import Attempt, Commit, FileEntry
from ckptstore.opening import layered
from ckptstore.save import Contents, save_checkpoint
from ckptstore.settings import CommitSettings, Settings, TransferSettings
from ckptstore.store import ObjectStore
from ckptstore.testing.simulated.process import KilledError, Process
from ckptstore.testing.simulated.store import SimulatedStore
from ckptstore.testing.virtual_time import VirtualClock
from tests.world import RECORD, RUN, BytesShard

SETTINGS = Settings(
    transfer=TransferSettings(block_size_bytes=8, part_size_bytes=16, in_flight_bytes_max=32),
    commit=CommitSettings(poll_s_max=15.0),
)
NONCE_LETTERS = "abcdef"
ATTEMPT_MAX = 99


def payloads(uid: str, rank: int) -> list[bytes]:
    """Return what a rank saves in an attempt and in no other: a shard of parts, a small one."""
    digest = hashlib.sha256(f"{uid}/{rank}".encode()).digest()
    return [digest + digest[:5], digest[:7]]


@dataclass
class Told:
    """What the ranks of an attempt were told: a commit, or an error."""

    attempt: Attempt
    answers: list[Commit | Exception] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    unheard: set[str] = field(default_factory=set)  # Uploads of which no process was told.


@dataclass
class Job:
    """Processes of a job, with nothing but the store between them.

    ``attempts`` has what was told, by uid, of all attempts of which a ``begin`` was tried.
    """

    sim: SimulatedStore
    rng: random.Random
    world_size: int = 2
    deadline_s: float = 400.0
    create_only: bool = True
    incarnation: int = 0
    attempts: dict[str, Told] = field(default_factory=dict)
    clock: VirtualClock = field(default_factory=VirtualClock)

    def store(self) -> ObjectStore:
        """Return the store with the layers of the product around it."""
        return layered(self.sim, "", SETTINGS, rng=self.rng)

    async def start(self, *, within_s: float = 400.0) -> None:
        """Start the job, on what is the latest checkpoint then."""
        async with Deadline.after(within_s).enforce("claiming an incarnation"):
            claim = await claim_incarnation(
                self.store(), run=RUN, parent_uid=None, facts={}, clock=self.clock
            )
        self.incarnation = claim.number

    async def begin(self, step: int) -> Attempt:
        deadline = Deadline.after(self.deadline_s)
        async with deadline.enforce("beginning"):
            attempt = await begin_attempt(
                self.store(),
                run=RUN,
                step=step,
                incarnation=self.incarnation,
                attempt_number=min(self._tries(step), ATTEMPT_MAX),
                world_size=self.world_size,
                deadline=deadline,
                clock=self.clock,
                nonce="".join(self.rng.choices(NONCE_LETTERS, k=8)),
            )
        self.attempts[attempt.uid] = Told(attempt)
        return attempt

    def _tries(self, step: int) -> int:
        return sum(told.attempt.step == step for told in self.attempts.values())

    async def save(self, attempt: Attempt, processes: Sequence[Process] = ()) -> Told:
        """Save on all ranks at once, each its own process, and return what they were told."""
        processes = processes or [Process(self.store()) for _ in range(self.world_size)]
        ranks = enumerate(processes)
        await asyncio.gather(*(self.save_rank(attempt, rank, process) for rank, process in ranks))
        return self.attempts[attempt.uid]

    async def save_rank(
        self, attempt: Attempt, rank: int, process: Process, *, deadline_s: float | None = None
    ) -> None:
        told = self.attempts[attempt.uid]
        try:
            answer = await process.run(self._save(attempt, rank, process, deadline_s))
        except KilledError:
            told.killed.add(rank)
        except CkptStoreError as error:
            told.answers.append(error)
        else:
            told.answers.append(answer)
        told.unheard |= process.unheard

    async def _save(
        self, attempt: Attempt, rank: int, process: Process, deadline_s: float | None
    ) -> Commit:
        sources = [BytesShard(data) for data in payloads(attempt.uid, rank)]
        files = tuple(
            FileEntry(path=f"rank-{rank}/{index}", shard=index, start=0, stop=source.size_bytes)
            for index, source in enumerate(sources)
        )
        return await save_checkpoint(
            sources,
            Contents(files=files),
            attempt=attempt,
            rank=rank,
            store=process,
            record=type(RECORD)(
                store_id="s",
                fan_out=4,
                create_only=self.create_only,
                created_unix_s=0.0,
                created_by="a test",
            ),
            deadline=Deadline.after(self.deadline_s if deadline_s is None else deadline_s),
            settings=SETTINGS,
            clock=self.clock,
        )
