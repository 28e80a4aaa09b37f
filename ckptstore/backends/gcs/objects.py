"""Whole objects and ranges of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ckptstore.backends._checks import check_range, check_target
from ckptstore.backends.gcs.caller import Caller, object_path
from ckptstore.backends.gcs.components import Component
from ckptstore.backends.gcs.errors import Call
from ckptstore.backends.gcs.resource import FIELDS, crc_of, crc_text, info_of, version_of
from ckptstore.backends.gcs.wire import Line
from ckptstore.errors import DamagedError, ObjectNotFoundError, TransientStoreError
from ckptstore.integrity import crc32c
from ckptstore.store import OVERWRITE
from ckptstore.types import (
    MIB,
    Buffer,
    ByteRange,
    CreateOnly,
    Key,
    ObjectInfo,
    PutMode,
    Version,
    views,
)

if TYPE_CHECKING:
    import requests

STEP_BYTES: Final = 4 * MIB  # Read at a time; between two, a cancelled call notices.


class ObjectVerbs:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def head(self, key: Key) -> ObjectInfo:
        call = self._caller.call("head", key)
        return info_of(
            await self._caller.ask("GET", object_path(key), call, query={"fields": FIELDS})
        )

    async def get(self, key: Key) -> bytes:
        call = self._caller.call("get", key)

        def take(answer: requests.Response, line: Line) -> bytes:
            data = bytearray(int(answer.headers["Content-Length"]))
            _fill(answer, memoryview(data), call, line)
            _check_whole(answer, memoryview(data), call)
            return bytes(data)

        return await self._caller.download(call, {}, take)

    async def get_into(self, key: Key, byte_range: ByteRange, target: memoryview) -> None:
        check_target(byte_range, target)
        call = self._caller.call("get_into", key, byte_range=byte_range)
        view = target.cast("B")

        def take(answer: requests.Response, line: Line) -> None:
            headers = answer.headers
            said = headers.get("Content-Range")
            check_range(key, byte_range, said, headers.get("Content-Length"))
            _fill(answer, view, call, line)
            if said is None or said.endswith(f"/{len(view)}"):
                _check_whole(answer, view, call)

        wanted = f"bytes={byte_range.start}-{byte_range.stop - 1}"
        await self._caller.download(call, {"Range": wanted}, take)

    async def put(self, key: Key, data: Buffer, *, mode: PutMode = OVERWRITE) -> Version:
        when = {"ifGenerationMatch": 0} if isinstance(mode, CreateOnly) else {}
        call = self._caller.call("put", key)
        return version_of(await self._uploaded(call, key, views([data]), **when))

    async def delete(self, key: Key) -> None:
        await self._delete("delete", key)

    async def _create(self, call: Call, name: str, pieces: Sequence[memoryview]) -> dict[str, Any]:
        return await self._uploaded(call, name, pieces, ifGenerationMatch=0)

    async def _uploaded(
        self, call: Call, name: str, pieces: Sequence[memoryview], **when: int
    ) -> dict[str, Any]:
        """Make an object; the store compares the checksum before it does, and we afterwards."""
        crc = crc32c(pieces)
        wanted = {
            "name": name,
            "contentType": "application/octet-stream",
            "crc32c": crc_text(crc),
        }
        resource = await self._caller.upload(call, wanted, pieces, **when)
        if crc_of(resource.get("crc32c")) != crc:
            await self._delete(call.verb, name, generation=resource["generation"])
            raise DamagedError(
                f"it arrived damaged: sent with CRC-32C {crc_text(crc)}, stored with "
                f"{resource.get('crc32c')}",
                verb=call.verb,
                key=call.key,
            )
        return resource

    async def _discard(self, component: Component) -> None:
        await self._delete("delete", component.name, generation=component.generation)

    async def _delete(self, verb: str, name: str, **which: str) -> None:
        with suppress(ObjectNotFoundError):
            call = self._caller.call(verb, name)
            await self._caller.ask("DELETE", object_path(name), call, query=which)


def _fill(answer: requests.Response, target: memoryview, call: Call, line: Line) -> None:
    """Read exactly ``len(target)`` bytes from beneath the HTTP client, straight into memory.

    The client would copy them, and it would not say that a body ended early.
    """
    raw = answer.raw._fp
    filled = 0
    while filled < len(target):
        line.check()
        count = raw.readinto(target[filled : filled + STEP_BYTES])
        if not count:
            raise TransientStoreError(
                f"{filled} of {len(target)} bytes arrived", verb=call.verb, key=call.key
            )
        filled += count


def _check_whole(answer: requests.Response, data: memoryview, call: Call) -> None:
    """Compare a whole object with the checksum that the store keeps of it."""
    expected = crc_of(answer.headers.get("x-goog-hash"))
    if expected is not None and crc32c([data]) != expected:
        raise DamagedError(
            f"it arrived damaged: stored with CRC-32C {crc_text(expected)}, "
            f"arrived with {crc_text(crc32c([data]))}",
            verb=call.verb,
            key=call.key,
        )
