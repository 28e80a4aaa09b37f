"""Bytes travel from the source to the backend, and from there to the target, uncopied."""

from __future__ import annotations

from collections.abc import Sequence

from ckptstore.backends.memory import MemoryStore
from ckptstore.manifest.layout import ShardKind
from ckptstore.opening import layered
from ckptstore.restore.reader import CheckedReader, Wanted
from ckptstore.settings import Settings, TransferSettings
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import Buffer, ByteRange, Key, Part, UploadId
from ckptstore.upload.uploader import Uploader

SETTINGS = Settings(
    transfer=TransferSettings(block_size_bytes=4, part_size_bytes=8, in_flight_bytes_max=64)
)
KEY = Key("data/x")


class Memory(MemoryStore):
    """Remembers whose memory it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_from: list[object] = []
        self.filled: list[object] = []

    async def put_part(
        self,
        key: Key,
        upload_id: UploadId,
        part: Part,
        pieces: Sequence[Buffer],
        *,
        crc64nvme: int,
    ) -> str:
        self.sent_from += [memoryview(piece).obj for piece in pieces]
        return await super().put_part(key, upload_id, part, pieces, crc64nvme=crc64nvme)

    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        self.filled.append(target.obj)
        await super().get_into(key, byte_range, target)


class TwoTensors:
    kind = ShardKind.TENSORS
    size_bytes = 40

    def __init__(self) -> None:
        self.tensors = [bytearray(range(20)), bytearray(range(20, 40))]

    async def stage(self, byte_range: ByteRange) -> Sequence[Buffer]:
        return [
            memoryview(tensor)[max(byte_range.start - at, 0) : max(byte_range.stop - at, 0)]
            for at, tensor in zip((0, 20), self.tensors, strict=True)
        ]


def test_parts_and_whole_blocks_move_without_a_copy() -> None:
    async def tell() -> None:
        memory, source = Memory(), TwoTensors()
        store = layered(memory, "prefix", SETTINGS)
        (shard,) = await Uploader(store, SETTINGS.transfer).upload([(KEY, source)])
        assert len(memory.sent_from) == 6  # Five parts, and one of them holds bytes of both.
        assert all(any(owner is tensor for tensor in source.tensors) for owner in memory.sent_from)
        target = bytearray(40)
        wanted = [Wanted(shard, 0, memoryview(target))]
        verified = await CheckedReader(store, SETTINGS.transfer).read_wanted(wanted)
        assert verified == 40
        assert target == bytearray(range(40))
        assert all(owner is target for owner in memory.filled)

    run_virtual(tell())
