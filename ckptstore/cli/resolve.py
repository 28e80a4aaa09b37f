"""``ckptstore resolve``: settle what nobody decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli.command import Command
from ckptstore.cli.units import counted, human_seconds
from ckptstore.location import parse_run

if TYPE_CHECKING:
    from ckptstore.manifest.model import Attempt, Decision


async def resolve(
    command: Command,
    run_url: Annotated[str, typer.Argument(metavar="STORE/RUN", help="Whose attempts to settle.")],
) -> int:
    """Settle attempts that are in doubt.

    One whose ranks are all ready is committed. One of which a rank failed, or whose deadline has
    passed, is aborted. One that may still be under way is left alone. This is safe at any time
    and from any machine, also while the job still runs.
    """
    from ckptstore.cli.targets import opened_run
    from ckptstore.clock import SystemClock
    from ckptstore.commit.catalog import list_undecided
    from ckptstore.commit.resolve import resolve_attempt
    from ckptstore.opening import existing_record

    run = parse_run(run_url)
    clock = SystemClock()
    states = {"committed": 0, "aborted": 0, "undecided": 0}
    async with (
        command.deadline.enforce(f"resolving {run}"),
        opened_run(command, run) as store,
    ):
        record = await existing_record(store, run.store)
        for attempt in await list_undecided(store, run.run):
            decision = await resolve_attempt(
                store, attempt, create_only=record.create_only, clock=clock
            )
            state, text = _told(attempt, decision, clock.unix_s())
            states[state] += 1
            command.output.record(
                "attempt",
                run=attempt.run,
                step=attempt.step,
                uid=attempt.uid,
                state=state,
                reason=getattr(decision, "reason", None),
            )
            command.output.text(f"{attempt.run}@{attempt.step} ({attempt.uid}): {text}")
    settled = states["committed"] + states["aborted"]
    command.output.summary(
        f"resolved {counted(settled, 'attempt')} of {run}, {states['undecided']} left undecided",
        exit_code=0,
        **states,
    )
    return 0


def _told(attempt: Attempt, decision: Decision | None, now_unix_s: float) -> tuple[str, str]:
    from ckptstore.manifest.model import Abort

    if decision is None:
        left_s = attempt.deadline_unix_s - now_unix_s
        return "undecided", f"under way, for {human_seconds(max(left_s, 0.0))} more at most"
    if isinstance(decision, Abort):
        return "aborted", f"aborted: {decision.reason}"
    return "committed", "committed"
