"""Kill, stop and continue real processes that save, hundreds of times, by a seed.

    python -m tests.crashes.lab --store URL --trials 100 --seed 7 --at-once 4

URL may also be "local", for a temporary directory, or "seaweedfs", for a server of its own. It
prints a JSON line for each trial and one for all of them, and ends with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ckptstore.location import StoreLocation, parse_store
from ckptstore.opening import opened_store
from localstack.kinds import KINDS
from localstack.servers import BUCKET, Server, make_bucket, variables
from tests.crashes.child import Child, message, wait_for
from tests.crashes.plan import Kind, plan_trial
from tests.crashes.shards import SETTINGS
from tests.crashes.trial import Report, run_trial

TRIAL_S_MAX: Final = 180.0


def main() -> int:
    arguments = _arguments()
    numbers = range(arguments.trials) if arguments.only is None else [arguments.only]
    began_s = time.monotonic()
    reports = []
    with _store(arguments.store) as location:
        asyncio.run(_warm_up(location))
        start_until_s = began_s + arguments.start_within
        for report in _run_all(
            location, arguments.seed, list(numbers), arguments.at_once, start_until_s
        ):
            reports.append(report)
            print(json.dumps(report.as_json()), flush=True)
            if report.violations:
                again = f"--store {arguments.store} --seed {arguments.seed}"
                again += f" --only {report.plan.number}"
                print(f"again: python -m tests.crashes.lab {again}", file=sys.stderr)
    print(json.dumps(_summary(reports, arguments.seed, time.monotonic() - began_s)))
    return 1 if any(report.violations for report in reports) else 0


@contextmanager
def _store(text: str) -> Iterator[StoreLocation]:
    with ExitStack() as opened:
        if text == "local":
            text = opened.enter_context(TemporaryDirectory(prefix="ckptstore-lab-"))
        elif text == "seaweedfs":
            home = opened.enter_context(TemporaryDirectory(prefix="ckptstore-lab-"))
            server = Server(KINDS[text], Path(home) / text)
            opened.callback(server.stop)
            make_bucket(server.url)
            os.environ.update(variables(text, server.url))
            text = f"s3://{BUCKET}/lab"
        yield parse_store(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--store", required=True, help="a store of its own; runs are added to it")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--start-within", type=float, default=math.inf, help="seconds")
    parser.add_argument("--only", type=int, help="run this one trial of the seed")
    return parser.parse_args()


async def _warm_up(location: StoreLocation) -> None:
    """Load what the SDK loads when it is first used, once for all processes to come."""
    async with opened_store(location, SETTINGS):
        pass


def _run_all(
    location: StoreLocation, seed: int, numbers: list[int], at_once: int, start_until_s: float
) -> Iterator[Report]:
    """Yield the reports as they come; each trial has a process of its own, without threads."""
    running: dict[Child, tuple[int, float]] = {}
    try:
        while numbers or running:
            if time.monotonic() > start_until_s:
                numbers.clear()
            while numbers and len(running) < at_once:
                number = numbers.pop(0)
                child = Child(_tell, seed, number, location)
                running[child] = (number, time.monotonic() + TRIAL_S_MAX)
            first_s = min((until_s for _, until_s in running.values()), default=0.0)
            done = wait_for(list(running), first_s - time.monotonic())
            late = [child for child, (_, until_s) in running.items() if time.monotonic() > until_s]
            for child in {*done, *late}:
                number, _ = running.pop(child)
                report = message(child)
                child.close()
                if not isinstance(report, Report):
                    report = Report(plan_trial(seed, number), violations=["it did not end"])
                yield report
    finally:
        for child in running:
            child.close()


def _tell(pipe: Connection, seed: int, number: int, location: StoreLocation) -> None:
    pipe.send(run_trial(plan_trial(seed, number), location))


def _summary(reports: list[Report], seed: int, seconds: float) -> dict[str, Any]:
    of_kind = {kind: [report for report in reports if report.plan.kind is kind] for kind in Kind}
    return {
        "type": "summary",
        "seed": seed,
        "trials": len(reports),
        "kinds": {
            kind.value: {
                "trials": len(some),
                "hit_in_save": sum(report.hit_in_save > 0 for report in some),
                **Counter(report.ending for report in some),
            }
            for kind, some in of_kind.items()
        },
        "zombies": Counter(report.zombie for report in of_kind[Kind.STOP_ONE]),
        "in_doubt": sum(report.in_doubt for report in reports),
        "uploads_of_killed": sum(report.uploads_of_killed for report in reports),
        "seconds": round(seconds, 1),
        "violations": sum(len(report.violations) for report in reports),
        "failed": [report.plan.number for report in reports if report.violations],
    }


if __name__ == "__main__":
    sys.exit(main())
