"""Try again when the store says that trying again may help."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NoReturn, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from ckptstore.errors import (
    CredentialsExpiredError,
    DamagedError,
    RefusedError,
    RetriesExhaustedError,
    StoreError,
    ThrottledError,
    WriteOutcomeUnknownError,
)
from ckptstore.layers._around import AroundLayer, Request
from ckptstore.settings import RetrySettings
from ckptstore.store import ObjectStore
from ckptstore.types import ObjectInfo, UploadInfo

T = TypeVar("T")

logger = logging.getLogger(__name__)

TRIES_SILENT_MAX: Final = 8
DAMAGED_TRIES_MAX: Final = 3  # Damage that comes a third time is not bad luck.
BATCH: Final = 1000  # Entries of a listing that one request is likely to bring.
CREDENTIALS_TRIES_MAX: Final = 2  # The backend fetches new ones in between; that works or not.


class RetryLayer(AroundLayer):
    """Retry with full jitter, for as long as ``RetrySettings`` allows each kind of misfortune.

    A write that must not be repeated (a conditional ``put``, ``multipart_complete``) is tried
    again only if the store did nothing (``RefusedError``). Any other retryable failure leaves
    it open whether the write landed, and repeating it against our own success would look like
    somebody else's write: it becomes ``WriteOutcomeUnknownError``, and whoever knows what it
    wrote reads back.

    Outermost, so that a request that waits for its next try holds nothing. The rest raises
    ``RetriesExhaustedError`` when the time is up, naming what failed last.
    """

    def __init__(
        self, inner: ObjectStore, settings: RetrySettings, *, rng: random.Random | None = None
    ) -> None:
        super().__init__(inner)
        self._settings = settings
        self._rng = rng or random.Random()

    async def _around(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        return await _Patience(self._settings, self._rng, request).call(send)

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        request = Request("list_objects", prefix)
        return self._listed(
            request, lambda: self._inner.list_objects(prefix), lambda info: info.key
        )

    def list_uploads(self, prefix: str) -> AsyncIterator[UploadInfo]:
        request = Request("list_uploads", prefix)
        return self._listed(
            request, lambda: self._inner.list_uploads(prefix), lambda upload: upload.upload_id
        )

    async def _listed(
        self, request: Request, begin: Callable[[], AsyncIterator[T]], name: Callable[[T], str]
    ) -> AsyncIterator[T]:
        """List again after a failure, and go on with what was not handed out before.

        So nothing is missing and nothing comes twice. What was handed out is remembered, and
        not only the last key, because some servers list directory by directory.
        """
        entries = begin()
        seen: set[str] = set()
        ready: list[T] = []

        async def fill() -> bool:
            """Make some entries ready, and tell whether there may be more."""
            nonlocal entries
            try:
                async for entry in entries:
                    if name(entry) not in seen:
                        seen.add(name(entry))
                        ready.append(entry)
                        if len(ready) >= BATCH:
                            return True
            except StoreError:
                entries = begin()
                raise
            return False

        more = True
        while more:
            more = await self._around(request, fill)
            for entry in ready:
                yield entry
            ready.clear()


class _Patience:
    """The tries of one request, and how much time each kind of misfortune has cost it."""

    def __init__(self, settings: RetrySettings, rng: random.Random, request: Request) -> None:
        self._settings = settings
        self._rng = rng
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._began_s = self._charged_s = self._loop.time()
        self._throttled_s = self._faulty_s = 0.0
        self._tries = self._damaged_tries = self._credentials_tries = 0

    async def call(self, send: Callable[[], Awaitable[T]]) -> T:
        """Try until it works or the time is up. What ends at the first try is spared tenacity."""
        try:
            try:
                self._tries = 1
                return await send()
            except StoreError as error:
                if not self._may_help(error):
                    raise
                return await self._call_again(send, error)
        except StoreError as error:
            if error.retryable and not self._request.repeatable:
                raise self._unknown(error) from error
            raise

    async def _call_again(self, send: Callable[[], Awaitable[T]], first: StoreError) -> T:
        retrying = AsyncRetrying(
            retry=retry_if_exception(self._may_help),
            wait=self._backoff_s,
            stop=self._gives_up,
            sleep=asyncio.sleep,
            before_sleep=self._say,
            retry_error_callback=self._exhausted,
        )
        failed: StoreError | None = first

        async def trial() -> T:  # tenacity awaits only what it can see to be a coroutine function.
            nonlocal failed
            if failed is not None:
                error, failed = failed, None
                raise error
            self._tries += 1
            return await send()

        return await retrying(trial)

    def _say(self, state: RetryCallState) -> None:
        """Let whoever waits know why: after 8 tries, 16, and so on."""
        worth_it = self._tries >= TRIES_SILENT_MAX and self._tries.bit_count() == 1
        level = logging.WARNING if worth_it else logging.DEBUG
        error, wait_s = _error_of(state), state.upcoming_sleep
        logger.log(level, "%s; trying again in %.1f s, after %s", error, wait_s, self._spent())

    def _may_help(self, error: BaseException) -> bool:
        if isinstance(error, CredentialsExpiredError):
            return True
        if not isinstance(error, StoreError) or not error.retryable:
            return False
        return self._request.repeatable or isinstance(error, RefusedError)

    def _backoff_s(self, state: RetryCallState) -> float:
        """Full jitter: ranks that failed together must not come back together."""
        doublings = min(state.attempt_number - 1, 60)
        ceiling_s = self._settings.backoff_s_first * 2.0**doublings
        error = _error_of(state)
        if not isinstance(error, ThrottledError):
            return self._rng.uniform(0.0, min(ceiling_s, self._settings.backoff_s_max))
        wait_s = self._rng.uniform(0.0, min(ceiling_s, self._settings.backoff_s_throttled_max))
        return max(wait_s, error.retry_after_s or 0.0)

    def _gives_up(self, state: RetryCallState) -> bool:
        """Charge the time since the last failure, and the wait to come, to the kind of this one.

        Each kind has a budget of its own: half an hour of throttling must not make the first
        broken connection after it the last.
        """
        error = _error_of(state)
        cost_s = self._loop.time() - self._charged_s + state.upcoming_sleep
        self._charged_s = self._loop.time() + state.upcoming_sleep
        if isinstance(error, CredentialsExpiredError):
            self._credentials_tries += 1
            return self._credentials_tries >= CREDENTIALS_TRIES_MAX
        if isinstance(error, ThrottledError):
            self._throttled_s += cost_s
            return self._throttled_s > self._settings.throttle_s_max
        if isinstance(error, DamagedError):
            self._damaged_tries += 1
        self._faulty_s += cost_s
        return (
            self._damaged_tries >= DAMAGED_TRIES_MAX or self._faulty_s > self._settings.fault_s_max
        )

    def _exhausted(self, state: RetryCallState) -> NoReturn:
        error = _error_of(state)
        if isinstance(error, CredentialsExpiredError):
            raise error
        raise RetriesExhaustedError(
            f"gave up after {self._spent()}; the last failure: {error}",
            verb=self._request.verb,
            key=self._request.key,
        ) from error

    def _unknown(self, error: StoreError) -> WriteOutcomeUnknownError:
        return WriteOutcomeUnknownError(
            f"no answer to a write that must not be repeated ({self._spent()}): {error}",
            verb=self._request.verb,
            key=self._request.key,
        )

    def _spent(self) -> str:
        tries = "1 try" if self._tries == 1 else f"{self._tries} tries"
        return f"{tries} in {self._loop.time() - self._began_s:.1f} s"


def _error_of(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None
