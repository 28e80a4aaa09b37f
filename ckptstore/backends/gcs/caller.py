"""One request to Cloud Storage: in a thread, bounded, translated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from ckptstore.backends._checks import check_process
from ckptstore.backends._files import Stop
from ckptstore.backends._threads import Threads
from ckptstore.backends.gcs.body import RelatedBody
from ckptstore.backends.gcs.errors import Call, answered, translated
from ckptstore.backends.gcs.wire import Line
from ckptstore.errors import CkptStoreError
from ckptstore.settings import RequestSettings
from ckptstore.types import ByteRange, Key, UploadId

if TYPE_CHECKING:
    import requests
    from google.auth.transport.requests import AuthorizedSession

T = TypeVar("T")
_NOTHING: Final[Mapping[str, str | int]] = MappingProxyType({})


class Caller:
    """A bucket, and the session that talks to it."""

    def __init__(
        self,
        bucket: str,
        endpoint: str,
        session: AuthorizedSession,
        settings: RequestSettings,
        *,
        threads_max: int,
        project: str | None,
    ) -> None:
        self.bucket = bucket
        self.settings = settings
        self._endpoint = endpoint
        self._session = session
        self._threads = Threads(threads_max)
        self._pid = os.getpid()
        self._of_requests = {"userProject": project} if project else {}

    def __repr__(self) -> str:
        return f"{self._endpoint}/{self.bucket}"

    async def ask(
        self,
        method: str,
        path: str,
        call: Call,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str | int] = _NOTHING,
    ) -> dict[str, Any]:
        """Send a request without bulk bytes and return what the answer says."""

        def work(line: Line) -> dict[str, Any]:
            data = None if body is None else json.dumps(body).encode()
            headers = {} if body is None else {"Content-Type": "application/json"}
            url = f"{self._endpoint}/storage/v1/b/{_quoted(self.bucket)}{path}"
            with self._sent(method, url, call, query, data, headers) as answer:
                return parsed(answer)

        return await self._run(call, work)

    async def upload(
        self, call: Call, resource: Mapping[str, Any], pieces: Sequence[memoryview], **query: int
    ) -> dict[str, Any]:
        """Make an object of the pieces in one request, and return what the store says of it."""

        def work(line: Line) -> dict[str, Any]:
            body = RelatedBody(resource, pieces, line.check)
            headers = {"Content-Type": body.content_type}
            url = f"{self._endpoint}/upload/storage/v1/b/{_quoted(self.bucket)}/o"
            asked: dict[str, str | int] = {"uploadType": "multipart", **query}
            with self._sent("POST", url, call, asked, body, headers) as answer:
                return parsed(answer)

        return await self._run(call, work)

    async def download(
        self, call: Call, headers: Mapping[str, str], take: Callable[[requests.Response, Line], T]
    ) -> T:
        """Have ``take`` read the body of an object in the thread that asked for it."""

        def work(line: Line) -> T:
            url = f"{self._endpoint}/storage/v1/b/{_quoted(self.bucket)}{object_path(call.key)}"
            with self._sent("GET", url, call, {"alt": "media"}, None, headers) as answer:
                line.moving()
                taken = take(answer, line)
                answer.raw.release_conn()  # All of it was read: the connection is as good as new.
                return taken

        return await self._run(call, work)

    @contextmanager
    def _sent(
        self,
        method: str,
        url: str,
        call: Call,
        query: Mapping[str, str | int],
        data: object,
        headers: Mapping[str, str],
    ) -> Iterator[requests.Response]:
        settings = self.settings
        completing = call.verb == "multipart_complete"
        answer_s = settings.complete_s_max if completing else settings.answer_s_max
        with self._session.request(
            method,
            url,
            params={**query, **self._of_requests},
            data=data,
            headers=dict(headers),
            timeout=(settings.connect_s_max, answer_s),
            max_allowed_time=None,
            allow_redirects=False,
            stream=True,
        ) as answer:
            if answer.status_code >= 300:
                raise answered(answer, call)
            yield answer

    async def _run(self, call: Call, work: Callable[[Line], T]) -> T:
        check_process(self._pid, repr(self))

        def in_thread(stop: Stop) -> T:
            with Line(stop, self.settings.stall_s_max) as line:
                return work(line)

        try:
            return await self._threads.run(in_thread)
        except CkptStoreError:
            raise
        except Exception as error:
            ours = translated(error, call)
            if ours is error:
                raise
            raise ours from error

    async def aclose(self) -> None:
        await self._threads.aclose()
        self._session.close()

    def call(
        self,
        verb: str,
        key: str,
        *,
        upload_id: UploadId | None = None,
        byte_range: ByteRange | None = None,
    ) -> Call:
        return Call(verb, Key(key), self.bucket, upload_id, byte_range)


def object_path(name: str) -> str:
    return f"/o/{_quoted(name)}"


def parsed(answer: requests.Response) -> dict[str, Any]:
    """Return the JSON object of an answer; nothing, and ``null``, are an empty one."""
    found = json.loads(answer.content or b"{}")
    return found if isinstance(found, dict) else {}


def _quoted(name: str) -> str:
    return quote(name, safe="")
