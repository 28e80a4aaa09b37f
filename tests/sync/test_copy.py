"""What a sync copies, in which order, and what it does not send again."""

from __future__ import annotations

from ckptstore.sync.selection import Selection
from tests.distributed.test_save import story
from tests.sync.world import Pair, contents


@story
async def test_everything_committed_arrives_byte_for_byte() -> None:
    pair = Pair()
    uids = await pair.history.commits(1, 2, 3)
    await pair.history.abort(4)
    report = await pair.sync()
    assert [copied.commit.attempt.step for copied in report.copied] == [1, 2, 3]
    assert (report.failed, report.not_tried) == ([], 0)
    assert report.bytes_sent == report.bytes_verified == 30
    await pair.assert_mirrored(uids)
    assert await pair.latest() == uids[2]


@story
async def test_a_second_sync_writes_nothing_at_all() -> None:
    pair = Pair()
    await pair.history.commits(1, 2)
    await pair.sync()
    before = await contents(pair.target)
    report = await pair.sync(Selection(newest=1))
    assert (report.copied, report.failed) == ([], [])
    assert await contents(pair.target) == before
