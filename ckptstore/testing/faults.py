"""Scripted misfortune: a layer that fails exactly when and how a test says."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn, TypeAlias, TypeVar, assert_never

from ckptstore.layers._around import AroundLayer, Request
from ckptstore.store import ObjectStore
from ckptstore.types import ByteRange, Key, ObjectInfo, UploadInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure. ``landed=True`` lets the request happen first and loses only the answer.

    A listing fails after ``after_entries`` entries.
    """

    error: Exception
    landed: bool = False
    after_entries: int = 0


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer, ever: the request ends only by being cancelled. ``landed`` as for a fault."""

    landed: bool = False


@dataclass(frozen=True, slots=True)
class Damage:
    """A ``get`` or ``get_into`` that succeeds, with one bit of the byte ``at`` flipped."""

    at: int = 0


Misfortune: TypeAlias = Fault | Silence | Damage


class FaultLayer(AroundLayer):
    """Meet the next call of a verb with the next misfortune scripted for it.

    ``key`` narrows a script to one object (for a listing, to one prefix); without it any will
    do. Belongs right under retry.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._script: dict[tuple[str, str], deque[Misfortune]] = defaultdict(deque)
        self.calls: dict[str, int] = defaultdict(int)

    def script(self, verb: str, *misfortunes: Misfortune, key: str = "") -> None:
        for misfortune in misfortunes:
            if isinstance(misfortune, Damage) and verb not in ("get", "get_into"):
                raise ValueError(f"nothing to damage in the answer to {verb}")
        self._script[verb, key].extend(misfortunes)

    def assert_all_used(self) -> None:
        """A fault nobody met means the test did not test what it claims."""
        unused = {where: list(faults) for where, faults in self._script.items() if faults}
        assert not unused, f"scripted faults never happened: {unused}"

    def _waiting(self, verb: str, key: str) -> deque[Misfortune]:
        return self._script[verb, key] or self._script[verb, ""]

    def _peek(self, verb: str, key: str) -> Misfortune | None:
        waiting = self._waiting(verb, key)
        return waiting[0] if waiting else None

    def _next(self, verb: str, key: str) -> Misfortune | None:
        self.calls[verb] += 1
        waiting = self._waiting(verb, key)
        return waiting.popleft() if waiting else None

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        misfortune = self._next(request.verb, request.key)
        match misfortune:
            case None:
                return await send()
            case Fault(error, landed):
                if landed:
                    await send()
                raise error
            case Silence(landed):
                if landed:
                    await send()
                return await _never()
            case Damage():
                return await send()
            case _:
                assert_never(misfortune)

    async def get(self, key: Key) -> bytes:
        misfortune = self._peek("get", key)
        data = await super().get(key)
        if isinstance(misfortune, Damage):
            return b"%b%c%b" % (
                data[: misfortune.at],
                data[misfortune.at] ^ 1,
                data[misfortune.at + 1 :],
            )
        return data

    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        misfortune = self._peek("get_into", key)
        if isinstance(misfortune, Fault):
            target[: len(target) // 2] = bytes(len(target) // 2)  # Half an answer, and not ours.
        await super().get_into(key, byte_range, target)
        if isinstance(misfortune, Damage):
            target[misfortune.at] ^= 1

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._listed("list_objects", prefix, self._inner.list_objects(prefix))

    def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        return self._listed("list_uploads", prefix, self._inner.list_uploads(prefix))

    async def _listed(self, verb: str, prefix: str, entries: AsyncIterator[T]) -> AsyncIterator[T]:
        misfortune = self._next(verb, prefix)
        if isinstance(misfortune, Silence):
            await _never()
        entries_left = misfortune.after_entries if isinstance(misfortune, Fault) else -1
        async for entry in entries:
            if entries_left == 0:
                break
            yield entry
            entries_left -= 1
        if isinstance(misfortune, Fault):
            raise misfortune.error


async def _never() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets this event")
