"""The simulated store: a disk, a network in front of it, and luck."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NoReturn, TypeVar

from ckptstore.errors import (
    PermissionDeniedError,
    StoreError,
    ThrottledError,
    TransientStoreError,
)
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.store import OVERWRITE
from ckptstore.testing.simulated.buckets import TokenBuckets
from ckptstore.testing.simulated.disk import Disk
from ckptstore.testing.simulated.fates import WRITES, Fate, Luck, fair
from ckptstore.types import (
    Buffer,
    ByteRange,
    Key,
    ObjectInfo,
    Part,
    PutMode,
    UploadId,
    UploadInfo,
    Version,
)

T = TypeVar("T")
R = TypeVar("R")

LATE_S: Final = (30.0, 900.0)
SLOW_RATE: Final = 0.02  # So many requests take ...
SLOW_TIMES: Final = 50.0  # ... up to so many times as long as the others.
ASKED_S: Final = 3.0


class SimulatedStore(AroundLayer):
    """A store over a bad network, shared by all processes of a test.

    Each request travels, is done at one instant, and its answer travels back, unless ``luck``
    has another fate for it. A write that its caller cancels while it travels may be done all
    the same. All that is left to chance is drawn from ``rng``, so a run repeats itself;
    ``trace`` holds every request of it: when, which, and its fate.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        keeps_create_only: bool = True,
        latency_s_max: float = 0.02,
        lag_s_max: float = 0.0,
        buckets: TokenBuckets | None = None,
    ) -> None:
        self.disk = Disk(
            keeps_create_only=keeps_create_only, lag_s=lambda: rng.uniform(0.0, lag_s_max)
        )
        super().__init__(self.disk)
        self._rng = rng
        self._latency_s_max = latency_s_max
        self._buckets = buckets
        self.luck: Luck = fair
        self.trace: list[tuple[float, str, str, Fate | None]] = []
        self.late: set[asyncio.Task[None]] = set()
        self.unheard: set[UploadId] = set()  # Begun, and whoever began them was never told.

    async def calm(self) -> None:
        """End all bad luck, and return once every late write has landed."""
        self.luck = fair
        self._buckets = None
        while self.late:
            await asyncio.wait(self.late)

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        return await self._exchange(request, send, lambda fate, answer: answer)

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        return await super().put(key, bytes(data), mode=mode)  # It may land after the call.

    async def put_part(
        self,
        key: Key,
        upload_id: UploadId,
        part: Part,
        pieces: Sequence[Buffer],
        *,
        crc64nvme: int,
    ) -> str:
        sent = [b"".join(pieces)]
        return await super().put_part(key, upload_id, part, sent, crc64nvme=crc64nvme)

    async def get(self, key: Key) -> bytes:
        def spoiled(fate: Fate | None, data: bytes) -> bytes:
            half = len(data) // 2
            match fate:
                case Fate.RESET:
                    raise _lost("get", key)
                case Fate.SHORT:
                    return data[:half]
                case Fate.FLIPPED:
                    flipped = bytearray(data)
                    flipped[half] ^= 1
                    return bytes(flipped)
                case _:
                    return data

        return await self._exchange(Request("get", key), lambda: self._inner.get(key), spoiled)

    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        before = bytes(target)
        half = len(target) // 2

        def spoiled(fate: Fate | None, answer: None) -> None:
            match fate:
                case Fate.RESET:
                    target[half:] = before[half:]
                    raise _lost("get_into", key)
                case Fate.SHORT:
                    target[half:] = before[half:]
                case Fate.FLIPPED:
                    target[half] ^= 1
                case _:
                    pass

        await self._exchange(
            Request("get_into", key, byte_range.size_bytes),
            lambda: self._inner.get_into(key, byte_range, target),
            spoiled,
        )

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._listed("list_objects", prefix, self._inner.list_objects)

    def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        return self._listed("list_uploads", prefix, self._inner.list_uploads)

    async def _listed(
        self, verb: str, prefix: str, entries: Callable[[str], AsyncIterator[T]]
    ) -> AsyncIterator[T]:
        async def listing() -> list[T]:
            return [entry async for entry in entries(prefix)]

        def spoiled(fate: Fate | None, found: list[T]) -> tuple[list[T], bool]:
            if fate not in (Fate.CUT, Fate.TRUNCATED):
                return found, False
            return found[: self._rng.randint(0, max(len(found) - 1, 0))], fate is Fate.CUT

        found, cut = await self._exchange(Request(verb, prefix), listing, spoiled)
        for entry in found:
            yield entry
        if cut:
            raise _lost(verb, prefix)

    async def _exchange(
        self,
        request: Request,
        send: Callable[[], Awaitable[T]],
        spoiled: Callable[[Fate | None, T], R],
    ) -> R:
        fate = self.luck(request)
        self.trace.append((asyncio.get_running_loop().time(), request.verb, request.key, fate))
        await self._travel(request, send, fate)
        self._check_rate(request)
        await self._misfortune(request, send, fate)
        answer = await send()
        if fate is Fate.ROTTEN:
            self.disk.rot(Key(request.key), self._rng.randrange(1 << 20))
        try:
            if fate is Fate.LOST_AFTER:
                raise _lost(request.verb, request.key)
            if fate is Fate.SILENT_AFTER:
                await _never()
            await asyncio.sleep(self._latency_s())
        except BaseException:
            self._note_unheard(request, answer)
            raise
        return spoiled(fate, answer)

    async def _travel(
        self, request: Request, send: Callable[[], Awaitable[T]], fate: Fate | None
    ) -> None:
        try:
            await asyncio.sleep(self._latency_s())
        except asyncio.CancelledError:
            if fate is None and request.verb in WRITES and self._rng.random() < 0.5:
                self._land_later(request, send)
            raise

    def _check_rate(self, request: Request) -> None:
        wait_s = self._buckets.wait_s(request.key) if self._buckets else 0.0
        if wait_s:
            raise _throttled(request, self._rng.choice([wait_s, None]))

    async def _misfortune(
        self, request: Request, send: Callable[[], Awaitable[T]], fate: Fate | None
    ) -> None:
        """Do what the fate does instead of the request, if anything."""
        match fate:
            case Fate.LOST_BEFORE:
                raise _lost(request.verb, request.key)
            case Fate.LATE:
                self._land_later(request, send)
                raise _lost(request.verb, request.key)
            case Fate.SILENT:
                await _never()
            case Fate.SILENT_LATE:
                self._land_later(request, send)
                await _never()
            case Fate.THROTTLED:
                raise _throttled(request, None)
            case Fate.THROTTLED_ASKED:
                raise _throttled(request, ASKED_S)
            case Fate.DENIED:
                raise PermissionDeniedError("no", verb=request.verb, key=request.key)
            case _:
                pass

    def _land_later(self, request: Request, send: Callable[[], Awaitable[T]]) -> None:
        async def land() -> None:
            await asyncio.sleep(self._rng.uniform(*LATE_S))
            with suppress(StoreError):
                self._note_unheard(request, await send())

        task = asyncio.ensure_future(land())
        self.late.add(task)
        task.add_done_callback(self.late.discard)

    def _note_unheard(self, request: Request, answer: object) -> None:
        if request.verb == "multipart_create":
            self.unheard.add(UploadId(str(answer)))

    def _latency_s(self) -> float:
        slow = SLOW_TIMES if self._rng.random() < SLOW_RATE else 1.0
        return self._rng.uniform(0.0, self._latency_s_max) * slow


def _lost(verb: str, key: str) -> TransientStoreError:
    return TransientStoreError("the connection broke", verb=verb, key=key)


def _throttled(request: Request, retry_after_s: float | None) -> ThrottledError:
    return ThrottledError(
        "slow down", verb=request.verb, key=request.key, retry_after_s=retry_after_s
    )


async def _never() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets this event")
