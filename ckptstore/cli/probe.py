"""``ckptstore probe``: is it safe to save here?"""

from __future__ import annotations

import os
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ckptstore.cli import exit_codes
from ckptstore.cli.command import Command
from ckptstore.cli.options import S3Writing
from ckptstore.cli.units import counted
from ckptstore.location import parse_store

if TYPE_CHECKING:
    from ckptstore.cli.output import Output
    from ckptstore.probe.finding import Finding, Verdict

SIGNS: Final = {
    "holds": "yes",
    "weak": "no, but",
    "broken": "NO",
    "unknown": "UNKNOWN",
    "skipped": "-",
    "note": "",
}


async def probe(
    command: Command,
    store: Annotated[str, typer.Argument(metavar="STORE", help="Where checkpoints are to lie.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not measure the speed, which moves up to 400 MB.")
    ] = False,
    *,
    s3: S3Writing,
) -> int:
    """Find out whether checkpoints are safe in a store.

    Every promise that ckptstore relies on is tried on the store itself: put-if-absent (a second
    create must be refused, also in a race), checksums (a wrong one is sent, and must be
    refused), uploads in parts, reading and listing what was just written, and the clock. Said is
    what holds, what does not, and what ckptstore does about that. Nothing but a scratch
    directory, probe/ and a random name, is written to, and it is taken away again.

    Exit code 0 means that a checkpoint would be safe here. Otherwise: 6 if the store lacks what
    nothing makes up for, 4 if it changes or loses what it is given, 3 if something could not be
    told, and as ever if it could not be reached.
    """
    from ckptstore.opening import opened
    from ckptstore.probe.finding import Verdict
    from ckptstore.probe.run import probe_store

    command = command.with_s3(**asdict(s3))
    location = parse_store(store)
    findings: list[Finding] = []
    try:
        async with (
            command.deadline.enforce(f"probing {location}"),
            opened(location, command.settings) as ends,
            aclosing(
                probe_store(
                    ends.store,
                    ends.backend,
                    bucket_prefix=ends.prefix,
                    scheme=location.scheme,
                    settings=command.settings,
                    environment=os.environ,
                    quick=quick,
                )
            ) as probing,
        ):
            async for finding in probing:
                findings.append(finding)
                _record(command.output, finding)
    finally:  # Also what was found before it failed is worth knowing.
        _show(command.output, findings)
    return _summarize(command.output, str(location), Verdict(tuple(findings)))


def _record(output: Output, finding: Finding) -> None:
    said = asdict(finding)
    said["state"] = finding.state.value
    output.record("finding", **said)


def _show(output: Output, findings: list[Finding]) -> None:
    if not findings:
        return
    rows: list[tuple[str, str, str, str]] = []
    group = ""
    for finding in findings:
        shown = "" if finding.group == group else finding.group
        group = finding.group
        why = [] if finding.state.value in ("holds", "skipped") else [finding.detail]
        why += [finding.remedy]
        if finding.state.value == "note":
            why = [finding.detail]
        sign = SIGNS[finding.state.value]
        rows.append((shown, finding.text, sign, "; ".join(filter(None, why))))
    output.table(("", "PROMISE", "KEPT", ""), rows)


def _summarize(output: Output, store: str, verdict: Verdict) -> int:
    from ckptstore.probe.finding import State

    code = exit_codes.worst(verdict.exit_codes)
    weak, broken = verdict.of(State.WEAK), verdict.of(State.BROKEN)
    unknown = verdict.of(State.UNKNOWN)
    safe = "a checkpoint is safe in" if verdict.safe else "do not count on checkpoints in"
    output.summary(
        f"{safe} {store}: {counted(len(broken), 'promise')} broken, {len(weak)} made up for, "
        f"{len(unknown)} unknown",
        exit_code=code,
        store=store,
        safe=verdict.safe,
        broken=[finding.name for finding in broken],
        weak=[finding.name for finding in weak],
        unknown=[finding.name for finding in unknown],
    )
    return code
