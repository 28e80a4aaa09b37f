"""Parts of a checkpoint to verify: together they are everything, and each is what was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import UsageError
from ckptstore.manifest.model import ShardEntry
from ckptstore.restore.sample import PPM, Bytes, Rolling, Sample, Turn, Unit, chosen, parse_share
from ckptstore.types import ByteRange, Key

SHARD = ShardEntry(
    key=Key("data/x"),
    size_bytes=0,
    block_size_bytes=1,
    part_size_bytes=1,
    crc64nvme="0" * 16,
    block_crcs="",
)
PLACES = st.lists(st.tuples(st.integers(0, PPM - 1), st.integers(1, 9)), min_size=1, max_size=30)


def units_at(places: list[tuple[int, int]]) -> list[Unit]:
    return [
        Unit(place, SHARD, ByteRange(10 * n, 10 * n + size))
        for n, (place, size) in enumerate(places)
    ]


@given(PLACES, st.integers(1, 9))
def test_all_turns_together_are_everything_once(places: list[tuple[int, int]], count: int) -> None:
    units = units_at(places)
    turns = [unit for n in range(count) for unit in chosen(units, Turn(n + 1, count), 0)]
    assert sorted(turns, key=units.index) == units


@given(PLACES, st.floats(0.01, 1.0), st.integers(0, PPM - 1))
def test_a_share_is_at_least_what_was_asked_for_and_hardly_more(
    places: list[tuple[int, int]], share: float, start: int
) -> None:
    units = units_at(places)
    total = sum(unit.byte_range.size_bytes for unit in units)
    taken = chosen(units, Rolling(share), start)
    together = max(
        sum(u.byte_range.size_bytes for u in units if u.place_ppm == p.place_ppm) for p in units
    )
    size = sum(unit.byte_range.size_bytes for unit in taken)
    assert share * total <= size + 1e-6
    assert size < share * total + together


@given(PLACES, st.integers(1, 20), st.integers(0, PPM - 1))
def test_samples_that_roll_on_see_everything(
    places: list[tuple[int, int]], size_bytes: int, start: int
) -> None:
    units = units_at(places)
    seen: set[int] = set()
    for _ in units:
        taken = chosen(units, Bytes(size_bytes), start)
        seen |= {units.index(unit) for unit in taken}
        rest = [u for u in units if u not in taken]
        start = (
            min(
                ((u.place_ppm - taken[0].place_ppm) % PPM + taken[0].place_ppm for u in rest),
                default=start,
            )
            % PPM
        )
    assert len(seen) == len(units)


@pytest.mark.parametrize(
    ("text", "sample"),
    [("5%", Rolling(0.05)), ("100%", Rolling(1.0)), ("2/7", Turn(2, 7)), ("50G", None)],
)
def test_samples_are_written_in_three_ways(text: str, sample: Sample | None) -> None:
    assert parse_share(text) == sample


@pytest.mark.parametrize("text", ["0%", "101%", "0/7", "8/7"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_share(text)
