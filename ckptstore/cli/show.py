"""``ckptstore show``: what is in a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ckptstore.cli.command import Command
from ckptstore.cli.units import counted, human_bytes, human_time
from ckptstore.location import parse_run

if TYPE_CHECKING:
    from ckptstore.cli.kept import Kept
    from ckptstore.cli.output import Output
    from ckptstore.manifest.model import Manifest, Ready, TensorEntry

RANKS = (">RANK", ">OBJECTS", ">SIZE", ">TENSORS", ">ITEMS", ">FILES")
TENSORS = ("NAME", "TYPE", "SHAPE", ">SIZE", ">CHUNKS")
OBJECTS = (">RANK", "OBJECT", ">SIZE", "CRC64NVME", "HOLDS")


async def show(
    command: Command,
    checkpoint: Annotated[str, typer.Argument(metavar="STORE/RUN[@SEL]", help="Which one.")],
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List the tensors and other items.")
    ] = False,
    objects: Annotated[
        bool, typer.Option("--objects", help="List the objects and what each holds.")
    ] = False,
) -> int:
    """Show what is in a checkpoint."""
    from ckptstore.cli.kept import Kept, kept_in
    from ckptstore.cli.targets import opened_run
    from ckptstore.load import find_checkpoint, read_manifest

    run = parse_run(checkpoint)
    async with (
        command.deadline.enforce(f"showing {run}@{run.selector}"),
        opened_run(command, run) as store,
    ):
        manifest = await read_manifest(store, await find_checkpoint(store, run.run, run.selector))
        kept = (await kept_in(store, run.run)).get(manifest.attempt.uid, Kept())
    output = command.output
    _show_facts(output, manifest, kept)
    _show_ranks(output, manifest)
    if tensors:
        _show_tensors(output, manifest)
    if objects:
        _show_objects(output, manifest)
    _summarize(output, manifest, kept)
    return 0


def _show_facts(output: Output, manifest: Manifest, kept: Kept) -> None:
    attempt, commit = manifest.attempt, manifest.commit
    output.text(f"run        {attempt.run}")
    output.text(f"step       {attempt.step}")
    output.text(f"uid        {attempt.uid}")
    output.text(f"committed  {human_time(commit.decided_unix_s)} by {commit.decided_by}")
    output.text(
        f"size       {human_bytes(commit.data_bytes)} in {counted(commit.objects, 'object')}"
    )
    versions = {name: v for record in manifest.records for name, v in record.versions.items()}
    if versions:
        output.text(f"saved by   {', '.join(f'{name} {v}' for name, v in versions.items())}")
    if str(kept):
        output.text(f"kept       {kept}")
    output.text("")


def _show_ranks(output: Output, manifest: Manifest) -> None:
    rows = []
    for record in manifest.records:
        size_bytes = sum(shard.size_bytes for shard in record.shards)
        counts = {
            "objects": len(record.shards),
            "bytes": size_bytes,
            "tensors": len({entry.name for entry in record.tensors}),
            "items": len(record.items),
            "files": len(record.files),
        }
        output.record("rank", rank=record.rank, **counts, versions=record.versions)
        shown = {**counts, "bytes": human_bytes(size_bytes)}
        rows.append([str(record.rank), *map(str, shown.values())])
    output.table(RANKS, rows)


def _show_tensors(output: Output, manifest: Manifest) -> None:
    chunks: dict[str, list[TensorEntry]] = {}
    for record in manifest.records:
        for entry in record.tensors:
            chunks.setdefault(entry.name, []).append(entry)
    rows = []
    for name, entries in sorted(chunks.items()):
        first = entries[0]
        size_bytes = sum(entry.stop - entry.start for entry in entries)
        output.record(
            "tensor",
            name=name,
            dtype=first.dtype,
            shape=first.shape,
            bytes=size_bytes,
            chunks=[{"offsets": entry.offsets, "sizes": entry.sizes} for entry in entries],
        )
        shape = "x".join(map(str, first.shape)) or "scalar"
        rows.append([name, first.dtype, shape, human_bytes(size_bytes), str(len(entries))])
    for record in manifest.records:
        for item in record.items:
            size_bytes = item.stop - item.start
            output.record("item", name=item.name, rank=record.rank, bytes=size_bytes)
            rows.append([item.name, "-", "-", human_bytes(size_bytes), "1"])
    output.text("")
    output.table(TENSORS, rows)


def _show_objects(output: Output, manifest: Manifest) -> None:
    rows = []
    for record in manifest.records:
        for shard, names in zip(record.shards, _contents(record), strict=True):
            output.record(
                "object",
                rank=record.rank,
                object=shard.key,
                bytes=shard.size_bytes,
                content_bytes=shard.content_bytes,
                crc64nvme=shard.crc64nvme,
                holds=names,
            )
            holds = names[0] if len(names) == 1 else f"{len(names)} entries"
            size = human_bytes(shard.size_bytes)
            if shard.packed is not None:
                size += f" of {human_bytes(shard.content_bytes)}"
            rows.append([str(record.rank), shard.key, size, shard.crc64nvme, holds])
    output.text("")
    output.table(OBJECTS, rows)


def _contents(record: Ready) -> Iterator[list[str]]:
    """Yield the names of what each object of a rank holds, in the order of the objects."""
    held: list[list[str]] = [[] for _ in record.shards]
    for tensor in record.tensors:
        held[tensor.shard].append(tensor.name)
    for item in record.items:
        held[item.shard].append(item.name)
    for file in record.files:
        held[file.shard].append(file.path)
    yield from held


def _summarize(output: Output, manifest: Manifest, kept: Kept) -> None:
    attempt, commit = manifest.attempt, manifest.commit
    count: Counter[str] = Counter()
    for record in manifest.records:
        count.update(items=len(record.items), files=len(record.files))
    names = {entry.name for record in manifest.records for entry in record.tensors}
    output.summary(
        "",
        exit_code=0,
        run=attempt.run,
        step=attempt.step,
        uid=attempt.uid,
        ranks=attempt.world_size,
        bytes=commit.data_bytes,
        objects=commit.objects,
        tensors=len(names),
        items=count["items"],
        files=count["files"],
        committed_at=commit.decided_unix_s,
        committed_by=commit.decided_by,
        tags=kept.tags,
        pins=kept.pins,
    )
