from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ckptstore.manifest.model import ShardEntry
from ckptstore.restore.reader import Wanted
from ckptstore.torch.targets import waves
from ckptstore.types import Key


@dataclass
class Some:
    shard: ShardEntry
    start: int
    scratch_bytes: int

    def want(self) -> Wanted:
        return Wanted(self.shard, self.start, memoryview(bytearray()))

    def take(self) -> None:
        """Nothing."""


def shard_at(key: str) -> ShardEntry:
    return ShardEntry(
        key=Key(key),
        size_bytes=0,
        block_size_bytes=1,
        part_size_bytes=1,
        crc64nvme="0" * 16,
        block_crcs="",
    )


@given(
    st.lists(
        st.builds(Some, st.sampled_from("abc").map(shard_at), st.integers(0, 99), st.integers(0, 9))
    ),
    st.integers(1, 20),
)
def test_waves_keep_to_the_memory_allowed_and_to_the_order_of_the_store(
    targets: list[Some], bytes_max: int
) -> None:
    groups = list(waves(targets, scratch_bytes_max=bytes_max))
    for group in groups:
        assert sum(target.scratch_bytes for target in group) <= bytes_max or len(group) == 1
    flat = [target for group in groups for target in group]
    assert sorted(map(id, flat)) == sorted(map(id, targets))
    places = [(target.shard.key, target.start) for target in flat]
    assert places == sorted(places)
    for group, following in itertools.pairwise(groups):
        taken = sum(target.scratch_bytes for target in group)
        assert taken + following[0].scratch_bytes > bytes_max
