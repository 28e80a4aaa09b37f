"""One request to S3: watched, translated, and never on somebody else's loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError

from ckptstore.backends._checks import check_process
from ckptstore.backends.http.watch import Watch, watched
from ckptstore.backends.s3 import options
from ckptstore.backends.s3.access import described
from ckptstore.backends.s3.errors import Call, translated
from ckptstore.errors import CkptStoreError, CredentialsExpiredError
from ckptstore.settings import RequestSettings, S3Settings
from ckptstore.types import Access, ByteRange, Key, UploadId

if TYPE_CHECKING:
    from aiobotocore.session import AioSession


class Caller:
    """A bucket, and the SDK's client that talks to it."""

    def __init__(
        self,
        bucket: str,
        session: AioSession,
        client: Any,  # noqa: ANN401
        closing: AsyncExitStack,
        settings: RequestSettings,
        access: S3Settings,
    ) -> None:
        self.bucket = bucket
        self.settings = settings
        self._of_requests = options.of_requests(access)
        self._of_objects = options.of_objects(access)
        self._session = session
        self._client = client
        self._closing = closing
        self._pid = os.getpid()
        self._renewing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"{self._client.meta.endpoint_url}/{self.bucket}"

    async def ask(self, operation: str, call: Call, **parameters: Any) -> Any:  # noqa: ANN401
        """Send a request without bulk bytes and return the parsed answer."""
        async with self.watched(call) as watch:
            watch.asked()
            return await self.send(operation, call, **parameters)

    @asynccontextmanager
    async def watched(self, call: Call) -> AsyncIterator[Watch]:
        """Run the block under a watch, and translate what it raises."""
        check_process(self._pid, repr(self))
        settings = self.settings
        completing = call.verb == "multipart_complete"
        answer_s = settings.complete_s_max if completing else settings.answer_s_max
        credentials = self._client._request_signer._credentials
        try:
            async with watched(call.verb, call.key, settings, answer_s) as watch:
                yield watch
        except CkptStoreError:
            raise
        except Exception as error:
            ours = translated(error, call)
            if isinstance(ours, CredentialsExpiredError):
                await self._renew(credentials)
            if ours is error:
                raise
            raise ours from error

    async def send(self, operation: str, call: Call, **parameters: Any) -> Any:  # noqa: ANN401
        """Call the SDK; only under ``watched``."""
        if call.verb not in ("list_objects", "list_uploads"):  # There, the key is a prefix.
            parameters["Key"] = call.key
        if call.upload_id is not None:
            parameters["UploadId"] = call.upload_id
        if call.verb in ("put", "multipart_create"):
            parameters |= self._of_objects
        parameters |= self._of_requests
        return await getattr(self._client, operation)(Bucket=self.bucket, **parameters)

    async def _renew(self, expired: object) -> None:
        """Load the credentials anew, because a server's "expired" does not make the SDK do so."""
        async with self._renewing:
            if self._client._request_signer._credentials is not expired:
                return  # Another request was faster.
            self._session._credentials = None
            with suppress(BotoCoreError):  # Then the next try fails with the old ones.
                if fresh := await self._session.get_credentials():
                    self._client._request_signer._credentials = fresh

    async def access(self) -> Access:
        """Tell where requests go, and as whom."""
        return await described(self._session, self._client)

    async def aclose(self) -> None:
        await self._closing.aclose()

    def call(
        self,
        verb: str,
        key: str,
        *,
        upload_id: UploadId | None = None,
        byte_range: ByteRange | None = None,
    ) -> Call:
        return Call(verb, Key(key), self.bucket, upload_id, byte_range)
