"""The main job as a story: save on four ranks, lose one, restore on two, catch a flipped byte."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import parse_run
from ckptstore.opening import opened_store
from ckptstore.settings import Settings
from localstack.kinds import KINDS
from localstack.servers import BUCKET, Server, make_bucket, variables

HERE = Path(__file__).parent
CKPTSTORE = (str(Path(sys.executable).parent / "ckptstore"),)
WORKERS_S_MAX = 120.0
DOOMED_RANK, LOST_STEP, KEPT_STEP = 2, 20, 15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--s3", action="store_true", help="save into SeaweedFS, not a directory")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ckptstore-demo-") as scratch,
        demo_store(arguments.s3, Path(scratch)) as store,
    ):
        return tell(f"{store}/demo", Path(scratch))


def tell(run: str, scratch: Path) -> int:
    say(1, f"Four ranks train a sharded model and save every 5 steps into {run}")
    say(2, f"Rank {DOOMED_RANK} is killed (SIGKILL) in the middle of saving step {LOST_STEP}")
    first = train(run, scratch / "first", world_size=4, steps=LOST_STEP, doomed=DOOMED_RANK)
    for rank in (rank for rank in range(4) if rank != DOOMED_RANK):
        print(f"    rank {rank} hears: {shortened(first[rank].get('error', 'nothing?'))}")
    say(3, f"The half-saved step {LOST_STEP} does not exist")
    ckptstore("ls", run)
    ckptstore("restore", f"{run}@{LOST_STEP}", str(scratch / "half"))
    say(4, "Two ranks restart from the newest committed step, and train on")
    second = train(run, scratch / "second", world_size=2, steps=LOST_STEP)
    restored = second[0]["restored"]
    saved, found = first[0]["digest"][str(KEPT_STEP)], second[0]["digest"][str(restored)]
    same = restored == KEPT_STEP and saved == found
    print(f"    step {KEPT_STEP} as saved by 4 ranks:    sha256 {saved}")
    print(f"    step {restored} as restored by 2 ranks: sha256 {found}")
    print(f"    {'bit for bit the same' if same else 'DIFFERENT'}")
    say(5, "One byte of a shard rots; restore refuses, and names the place")
    ckptstore("verify", run)
    asyncio.run(flip_a_byte(run))
    code = ckptstore("restore", run, str(scratch / "restored"))
    nothing = not (scratch / "restored").exists()
    print(
        f"    exit code {code}; {'nothing' if nothing else 'SOMETHING'} is left at the destination"
    )
    well = same and code == 4 and nothing and all("error" in first[rank] for rank in (0, 1, 3))
    print("\nThe story went as told." if well else "\nTHE STORY WENT WRONG.")
    return 0 if well else 1


def say(number: int, text: str) -> None:
    print(f"\n{number}. {text}", flush=True)


def shortened(text: str) -> str:
    head, _, reason = text.partition(" (attempt ")
    return f"{head} was {reason.partition(' was ')[2]}"


def train(
    run: str, out: Path, *, world_size: int, steps: int, doomed: int | None = None
) -> dict[int, dict[str, Any]]:
    """Run the job to its end on ``world_size`` processes; return what each rank had to say."""
    out.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    workers = []
    for rank in range(world_size):
        command = [sys.executable, str(HERE / "demo_worker.py"), run, str(out)]
        command += ["--steps", str(steps)]
        command += ["--die-at", str(steps)] if rank == doomed else []
        extra = {name: str(value) for name, value in (common | {"RANK": rank}).items()}
        workers.append(subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"} | extra))
    try:
        for worker in workers:
            worker.wait(WORKERS_S_MAX)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(10)
    reports = {rank: out / f"rank-{rank}.json" for rank in range(world_size)}
    return {rank: json.loads(path.read_text()) for rank, path in reports.items() if path.exists()}


def ckptstore(*arguments: str) -> int:
    """Run the command line, show what it says, and return its exit code."""
    shown = " ".join(Path(a).name if a.startswith("/tmp") else a for a in arguments)
    print(f"    $ ckptstore {shown}", flush=True)
    command = [*CKPTSTORE, *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    for line in done.stdout.splitlines():
        print(f"    {line}", flush=True)
    return done.returncode


async def flip_a_byte(run: str) -> None:
    """Flip the last byte of the newest checkpoint's first shard, behind the store's back."""
    location = parse_run(run)
    async with opened_store(location.store, Settings()) as store:
        commit = await find_checkpoint(store, location.run, location.selector)
        shard = (await read_manifest(store, commit)).shards[0]
        data = bytearray(await store.get(shard.key))
        data[-1] ^= 1
        await store.put(shard.key, data)
    print(f"    (the last byte of {Path(shard.key).name} is flipped)", flush=True)


@contextmanager
def demo_store(on_s3: bool, scratch: Path) -> Iterator[str]:
    if not on_s3:
        yield str(scratch / "store")
        return
    server = Server(KINDS["seaweedfs"], scratch / "seaweedfs")
    try:
        make_bucket(server.url)
        os.environ.update(variables(server.name, server.url))
        yield f"s3://{BUCKET}/checkpoints"
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
