"""A bucket as a store."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from ckptstore.backends.s3.bulk import BulkVerbs
from ckptstore.backends.s3.caller import Caller
from ckptstore.backends.s3.config import open_client
from ckptstore.backends.s3.control import ControlVerbs
from ckptstore.backends.s3.listing import ListingVerbs
from ckptstore.backends.s3.options import is_directory_bucket
from ckptstore.settings import RequestSettings, S3Settings
from ckptstore.types import MIB, Access, Capabilities

S3_CAPABILITIES: Final = Capabilities(
    create_only=True,
    part_size_bytes_min=5 * MIB,
    part_size_bytes_max=5 * 1024 * MIB,
    part_count_max=10_000,
    fan_out=64,
)


class S3Store(ControlVerbs, ListingVerbs, BulkVerbs):
    """An S3 bucket, or one of a server that speaks S3. Belongs to the loop it was opened on."""

    def __repr__(self) -> str:
        return f"S3Store({self._caller})"

    @property
    def capabilities(self) -> Capabilities:
        """Return what AWS promises; whether a server keeps create-only must be tried out."""
        if is_directory_bucket(self._caller.bucket):
            return replace(S3_CAPABILITIES, fan_out=1)
        return S3_CAPABILITIES

    async def access(self) -> Access:
        return await self._caller.access()

    async def aclose(self) -> None:
        await self._caller.aclose()


async def open_s3_store(
    bucket: str, settings: RequestSettings, access: S3Settings | None = None
) -> S3Store:
    """Open ``bucket`` with what AWS's usual variables and files say; no request is sent.

    Raises ``SettingsError`` when they name no credentials, or cannot be used.
    """
    async with AsyncExitStack() as opening:
        access = access or S3Settings()
        session, client = await open_client(settings, access, opening)
        return S3Store(Caller(bucket, session, client, opening.pop_all(), settings, access))
