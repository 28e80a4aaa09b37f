"""A bucket as a store."""

from __future__ import annotations

import asyncio
from typing import Final

from ckptstore.backends.gcs.access import open_session
from ckptstore.backends.gcs.caller import Caller
from ckptstore.backends.gcs.multipart import MultipartVerbs
from ckptstore.settings import GcsSettings, RequestSettings
from ckptstore.types import MIB, Capabilities

OBJECT_BYTES_MAX: Final = 5 * 1024 * 1024 * MIB
GCS_CAPABILITIES: Final = Capabilities(
    create_only=True,
    part_size_bytes_max=OBJECT_BYTES_MAX,
    part_count_max=32**3,  # Three rounds of compose.
    fan_out=64,
)
HEADROOM: Final = 8  # Listings hold no place in the limit, and a call may send many requests.


class GcsStore(MultipartVerbs):
    """A bucket of Cloud Storage, or of an emulator. Belongs to the process that opened it."""

    def __repr__(self) -> str:
        return f"GcsStore({self._caller})"

    @property
    def capabilities(self) -> Capabilities:
        return GCS_CAPABILITIES

    async def aclose(self) -> None:
        await self._caller.aclose()


async def open_gcs_store(
    bucket: str, settings: RequestSettings, access: GcsSettings | None = None
) -> GcsStore:
    """Open ``bucket`` with what Google's usual variables and files say.

    No request goes to the store; the metadata service of a machine may be asked who it is.
    Raises ``SettingsError`` when there are no credentials.
    """
    access = access or GcsSettings()
    threads_max = settings.in_flight_max + HEADROOM
    endpoint, session = await asyncio.to_thread(open_session, access, threads_max)
    caller = Caller(
        bucket, endpoint, session, settings, threads_max=threads_max, project=access.project
    )
    return GcsStore(caller)
