"""Verify a part of a checkpoint, another one each time, so that in the end all was looked at."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ckptstore.concurrency import map_concurrently
from ckptstore.errors import Damage, UsageError
from ckptstore.integrity import sha256_hex
from ckptstore.manifest.model import ShardEntry
from ckptstore.progress import Progress
from ckptstore.restore.reader import CheckedReader
from ckptstore.restore.verify import VerifyReport, VerifyStore, verify_sizes
from ckptstore.settings import TransferSettings
from ckptstore.types import ByteRange

PPM: Final = 1_000_000
READ_TOGETHER: Final = 8  # Between two looks at the clock.

_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?)%")
_TURN: Final = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Rolling:
    """A share of the bytes, going on where the last one ended; at least one part."""

    share: float


@dataclass(frozen=True, slots=True)
class Bytes:
    """So many bytes, going on where the last one ended; at least one part."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The ``number``-th of ``count`` parts, which together are everything."""

    number: int
    count: int


Sample: TypeAlias = Rolling | Bytes | Turn


@dataclass(frozen=True, slots=True)
class Unit:
    """Whole blocks that are read at once, and their place on the circle."""

    place_ppm: int
    shard: ShardEntry
    byte_range: ByteRange


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPart:
    """What of a checkpoint was looked at. ``bytes_left`` were asked for, and time ran out."""

    start_ppm: int
    stop_ppm: int
    bytes_total: int
    bytes_left: int

    @property
    def is_everything(self) -> bool:
        return self.start_ppm == self.stop_ppm and not self.bytes_left


def parse_share(text: str) -> Rolling | Turn | None:
    """Return what ``5%`` or ``2/7`` asks for; ``None`` if it is written in another way."""
    if match := _PERCENT.fullmatch(text):
        share = float(match[1]) / 100
        if not 0 < share <= 1:
            raise UsageError(f"--sample {text}: take more than 0% and at most 100%")
        return Rolling(share)
    if match := _TURN.fullmatch(text):
        number, count = int(match[1]), int(match[2])
        if not 1 <= number <= count:
            raise UsageError(f"--sample {text}: parts count from 1 to {count}")
        return Turn(number, count)
    return None


def chosen(units: Sequence[Unit], sample: Sample, start_ppm: int) -> list[Unit]:
    """Return the units of a sample, in the order in which to read them. Pure."""
    if isinstance(sample, Turn):
        ordered = sorted(units, key=_place)
        size = len(ordered)
        first, stop = ((turn * size) // sample.count for turn in (sample.number - 1, sample.number))
        return ordered[first:stop]
    ordered = sorted(units, key=lambda unit: ((unit.place_ppm - start_ppm) % PPM, _place(unit)))
    total_bytes = sum(unit.byte_range.size_bytes for unit in units)
    room = sample.size_bytes if isinstance(sample, Bytes) else sample.share * total_bytes
    taken: list[Unit] = []
    for unit in ordered:
        if taken and room <= 0 and unit.place_ppm != taken[-1].place_ppm:
            break
        taken.append(unit)
        room -= unit.byte_range.size_bytes
    return taken


async def verify_sample(
    store: VerifyStore,
    shards: Sequence[ShardEntry],
    sample: Sample,
    *,
    start_ppm: int,
    until_s: float | None,
    settings: TransferSettings,
    progress: Progress,
) -> tuple[VerifyReport, SampledPart]:
    """Look at the size of every object, and read the sample; damage is reported, not raised."""
    reader = CheckedReader(store, settings)
    units = [
        Unit(_place_ppm(shard, byte_range), shard, byte_range)
        for shard in shards
        for byte_range in reader.whole(shard)
    ]
    wanted = chosen(units, sample, start_ppm)
    progress.bytes_total += sum(unit.byte_range.size_bytes for unit in wanted)
    damaged = list((await verify_sizes(store, shards)).damaged)
    broken = {damage.object for damage in damaged}

    async def verify(unit: Unit) -> tuple[Damage, ...]:
        if unit.shard.key in broken:
            return ()
        async with reader.hold(unit.shard, unit.byte_range):
            target = memoryview(bytearray(unit.byte_range.size_bytes))
            found = await reader.check_blocks(unit.shard, unit.byte_range, target)
        if not found:
            progress.bytes_done += unit.byte_range.size_bytes
        return found

    before = progress.bytes_done
    loop = asyncio.get_running_loop()
    done = 0
    while done < len(wanted) and (until_s is None or loop.time() < until_s):
        together = wanted[done : done + READ_TOGETHER]
        damaged += [d for found in await map_concurrently(verify, together) for d in found]
        done += len(together)
    report = VerifyReport(len(shards), progress.bytes_done - before, tuple(damaged))
    return report, _part(units, wanted, done, start_ppm)


def _part(units: Sequence[Unit], wanted: Sequence[Unit], done: int, start_ppm: int) -> SampledPart:
    start = wanted[0].place_ppm if wanted else start_ppm
    unread = set(map(_place, units)) - set(map(_place, wanted[:done]))
    following = sorted((place[0] - start) % PPM for place in unread)
    return SampledPart(
        start_ppm=start,
        stop_ppm=(start + following[0]) % PPM if following else start,
        bytes_total=sum(unit.byte_range.size_bytes for unit in units),
        bytes_left=sum(unit.byte_range.size_bytes for unit in wanted[done:]),
    )


def _place(unit: Unit) -> tuple[int, str, int]:
    return unit.place_ppm, unit.shard.key, unit.byte_range.start


def _place_ppm(shard: ShardEntry, byte_range: ByteRange) -> int:
    return int(sha256_hex(f"{shard.key}:{byte_range.start}".encode())[:16], 16) % PPM
