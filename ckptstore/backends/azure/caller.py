"""One request to Azure: signed by its SDK, sent by its transport, watched and translated by us."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import aiohttp
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.pipeline.transport import AioHttpTransport
from azure.core.rest import HttpRequest
from azure.storage.blob.aio import ContainerClient

from ckptstore.backends._checks import check_process
from ckptstore.backends.azure.access import AzureAccess
from ckptstore.backends.azure.errors import Call, Refusal, refused, translated
from ckptstore.backends.http.body import BufferBody
from ckptstore.backends.http.watch import Watch, watched
from ckptstore.errors import CkptStoreError, SettingsError
from ckptstore.settings import RequestSettings
from ckptstore.types import ByteRange, Key, UploadId

API_VERSION: Final = "2023-11-03"  # Knows blocks of 4000 MiB and checksums in CRC-64.
POOL_HEADROOM: Final = 8  # Listings hold no place in the limit.


class Caller:
    """A container, and the pipeline of the SDK's client that leads to it."""

    def __init__(
        self,
        access: AzureAccess,
        client: ContainerClient,
        closing: AsyncExitStack,
        settings: RequestSettings,
    ) -> None:
        self._access = access
        self._client = client
        self._closing = closing
        self._settings = settings
        self._url = f"{access.endpoint}/{access.container}"
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return self._url

    def call(
        self,
        verb: str,
        key: str,
        *,
        upload_id: UploadId | None = None,
        byte_range: ByteRange | None = None,
    ) -> Call:
        return Call(verb, Key(key), self._access.container, upload_id, byte_range)

    async def ask(
        self,
        method: str,
        call: Call,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        body: bytes = b"",
        of_container: bool = False,
    ) -> tuple[Mapping[str, str], bytes]:
        """Send a request without bulk bytes; return the headers and body of its answer."""
        async with self.watched(call) as watch:
            watch.asked()
            key = "" if of_container else call.key
            async with self.sent(method, call, key, query, headers, body) as raw:
                return raw.headers, await raw.read()

    async def upload(
        self,
        call: Call,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        pieces: tuple[memoryview, ...],
    ) -> Mapping[str, str]:
        """Put the pieces from where they lie; return the headers of the answer."""
        async with self.watched(call) as watch:
            watch.connecting()
            body = BufferBody(pieces, watch.sent) if pieces else None
            try:
                async with self.sent("PUT", call, call.key, query, headers, body or b"") as raw:
                    answered: Mapping[str, str] = raw.headers
                    return answered
            except BaseException:
                if body is not None:
                    body.abort()  # The connection may still hold on to the caller's memory.
                raise

    @asynccontextmanager
    async def watched(self, call: Call) -> AsyncIterator[Watch]:
        """Run the block under a watch, and translate what it raises."""
        check_process(self._pid, repr(self))
        completing = call.verb == "multipart_complete"
        settings = self._settings
        answer_s = settings.complete_s_max if completing else settings.answer_s_max
        try:
            async with watched(call.verb, call.key, settings, answer_s) as watch:
                yield watch
        except CkptStoreError:
            raise
        except Exception as error:
            ours = translated(error, call)
            if ours is error:
                raise
            raise ours from error

    @asynccontextmanager
    async def sent(
        self,
        method: str,
        call: Call,
        key: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        body: bytes | BufferBody,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the HTTP client's answer, its body unread; only under ``watched``."""
        url = self._url + (f"/{quote(key)}" if key else "")
        url += f"?{urlencode(query, quote_via=quote)}" if query else ""
        fixed = {"x-ms-version": API_VERSION}
        if method == "PUT":
            fixed["Content-Length"] = str(len(body))
            fixed["Content-Type"] = "application/octet-stream"
        request = HttpRequest(method, url, headers={**fixed, **(headers or {})})
        request._data = body or None
        pipeline: Any = self._client._pipeline  # Typed as the one that does not await.
        answer = await pipeline.run(request, stream=True)
        raw: Any = answer.http_response._internal_response
        async with raw:
            if raw.status >= 300:
                raise refused(_refusal(raw, await raw.read()), call)
            yield raw

    async def aclose(self) -> None:
        await self._closing.aclose()


def _refusal(raw: aiohttp.ClientResponse, body: bytes) -> Refusal:
    try:
        said = ElementTree.fromstring(body)
    except ElementTree.ParseError:  # A HEAD's, or a proxy's.
        said = ElementTree.Element("Error")
    code = raw.headers.get("x-ms-error-code") or said.findtext("Code") or ""
    message = (said.findtext("Message") or raw.reason or "").partition("\n")[0]
    why = said.findtext("AuthenticationErrorDetail") or ""
    detail = f"{message} {why}".strip()
    return Refusal(raw.status, code, detail, raw.headers.get("Retry-After", ""))


async def open_caller(access: AzureAccess, settings: RequestSettings) -> Caller:
    """Return a caller with its connections and credentials; no request is sent."""
    async with AsyncExitStack() as opening:
        credential = await _credential(access, opening)
        connector = aiohttp.TCPConnector(limit=settings.in_flight_max + POOL_HEADROOM)
        session = aiohttp.ClientSession(
            connector=connector,
            trust_env=True,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        client = ContainerClient(
            access.endpoint,
            access.container,
            credential=credential,
            transport=AioHttpTransport(
                session=session,
                connection_timeout=settings.connect_s_max,
                read_timeout=2 * settings.complete_s_max,  # The watch on each is stricter.
            ),
            retry_total=0,
        )
        opening.push_async_callback(client.close)
        return Caller(access, client, opening.pop_all(), settings)


async def _credential(access: AzureAccess, opening: AsyncExitStack) -> Any:  # noqa: ANN401
    if access.key:
        return AzureNamedKeyCredential(access.account, access.key)
    if access.sas:
        return AzureSasCredential(access.sas)
    try:
        from azure.identity.aio import DefaultAzureCredential
    except ImportError as error:
        raise SettingsError(
            "no Azure credentials: looked at AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY "
            "and AZURE_STORAGE_SAS_TOKEN; for identities, pip install azure-identity"
        ) from error
    return await opening.enter_async_context(DefaultAzureCredential())
