"""A store that talks to the stub server, as to an emulator of Cloud Storage."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from awscrt import checksums

from ckptstore.backends.gcs.store import GcsStore, open_gcs_store
from ckptstore.settings import RequestSettings
from tests.unit.s3_stub import QUICK, Behaviour, Stub, answer


def crc_text(data: bytes) -> str:
    return base64.b64encode(checksums.crc32c(data).to_bytes(4, "big")).decode()


def described(name: str, data: bytes, **other: str) -> Behaviour:
    """Say that an object is there, with these bytes."""
    resource: dict[str, Any] = {
        "name": name,
        "size": str(len(data)),
        "generation": "7",
        "crc32c": crc_text(data),
        "updated": "2026-01-02T03:04:05.678Z",
        **other,
    }
    return answer(200, json.dumps(resource).encode())


def refusal(status: int, reason: str, message: str = "said so", **headers: str) -> Behaviour:
    error = {"code": status, "message": message, "errors": [{"reason": reason}]}
    return answer(status, json.dumps({"error": error}).encode(), **headers)


@asynccontextmanager
async def stub_store(
    monkeypatch: pytest.MonkeyPatch, *script: Behaviour, settings: RequestSettings = QUICK
) -> AsyncIterator[tuple[Stub, GcsStore]]:
    """Yield a stub and a store that talks to it. Everything in the script has to happen."""
    stub = Stub(list(script))
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
    stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stub.url)
    store = await open_gcs_store("bucket", settings)
    try:
        yield stub, store
        assert not stub.script, "scripted behaviour never happened"
    finally:
        await store.aclose()
        server.close()
        async with asyncio.timeout(5):
            if stub.came.is_set():
                await stub.left.wait()
