"""Each layer does its one job, and forgets no verb."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
from collections.abc import AsyncIterator, Iterator

import pytest

from ckptstore import layers, testing
from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import (
    StalledError,
)
from ckptstore.layers._base import StoreLayer
from ckptstore.layers.limit import LimitLayer
from ckptstore.layers.prefix import PrefixLayer
from ckptstore.layers.timeout import BYTES_PER_S_MIN, TimeoutLayer
from ckptstore.settings import RequestSettings
from ckptstore.store import STORE_VERBS, ObjectStore
from ckptstore.testing.conformance import KEY
from ckptstore.testing.faults import Fault, FaultLayer, Silence
from ckptstore.testing.virtual_time import run_virtual
from ckptstore.types import (
    MIB,
    ByteRange,
    Key,
    ObjectInfo,
    Part,
    UploadId,
    Version,
    parse_key,
)

for package in (layers, testing):  # So that a layer nobody imported yet is checked as well.
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


def all_layers(base: type[StoreLayer] = StoreLayer) -> Iterator[type[StoreLayer]]:
    for layer in base.__subclasses__():
        if layer.__module__.startswith("ckptstore.") and not inspect.isabstract(layer):
            yield layer
        yield from all_layers(layer)


@pytest.mark.parametrize("layer", list(all_layers()), ids=lambda c: c.__name__)
def test_layer_decides_about_every_verb(layer: type[StoreLayer]) -> None:
    below = layer.__mro__[: layer.__mro__.index(StoreLayer)]
    own = {name for name in STORE_VERBS for klass in below if name in vars(klass)}
    assert own | layer.passes_through == STORE_VERBS
    assert not own & layer.passes_through


def test_verb_list_matches_the_protocol() -> None:
    members = {
        name
        for klass in ObjectStore.__mro__
        for name, value in vars(klass).items()
        if klass.__module__ == "ckptstore.store" and inspect.isfunction(value)
    }
    assert {m for m in members if not m.startswith("_")} - {"aclose"} == STORE_VERBS


def test_capabilities_closing_and_names_reach_through_a_stack() -> None:
    class Closable(MemoryStore):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    backend = Closable()
    store = LimitLayer(PrefixLayer(backend, "p"), 1)
    assert store.capabilities == backend.capabilities
    assert repr(store) == "LimitLayer(PrefixLayer(MemoryStore(0 objects)))"
    run_virtual(store.aclose())
    assert backend.closed


# limit


class CrowdCounter(MemoryStore):
    """Remembers how many requests were ever inside at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.inside_max = 0

    async def head(self, key: Key) -> ObjectInfo:
        self.inside += 1
        self.inside_max = max(self.inside_max, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1
        return ObjectInfo(key, 0, Version())


async def test_no_more_than_the_limit_run_at_once() -> None:
    crowd = CrowdCounter()
    store = LimitLayer(crowd, 3)
    await asyncio.gather(*(store.head(KEY) for _ in range(10)))
    assert crowd.inside_max == 3


async def test_a_listing_holds_no_place() -> None:
    store = LimitLayer(MemoryStore(), 1)
    await store.put(KEY, b"x")
    async for info in store.list_objects(""):
        async with asyncio.timeout(5):
            assert await store.get(info.key) == b"x"


async def test_a_cancelled_request_gives_its_place_back() -> None:
    faulty = FaultLayer(MemoryStore())
    faulty.script("head", Silence())
    store = LimitLayer(faulty, 1)
    task = asyncio.create_task(store.head(KEY))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    async with asyncio.timeout(5):
        await store.put(KEY, b"x")
    faulty.assert_all_used()


# prefix


async def test_prefix_neither_sees_nor_touches_its_neighbours() -> None:
    inner = MemoryStore()
    await inner.put(parse_key("a/x"), b"theirs")
    await inner.put(parse_key("ab/x"), b"theirs")
    store = PrefixLayer(inner, "a/b")
    await store.put(parse_key("x"), b"ours")
    assert [info.key async for info in store.list_objects("")] == ["x"]
    assert (await store.head(parse_key("x"))).key == "x"
    assert await inner.get(parse_key("a/b/x")) == b"ours"
    assert await inner.get(parse_key("a/x")) == b"theirs"


@pytest.mark.parametrize("prefix", ["", "/", "a/", "../a"])
def test_prefix_that_leads_elsewhere_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="key"):
        PrefixLayer(MemoryStore(), prefix)


# timeout

REQUESTS = RequestSettings(connect_s_max=1, stall_s_max=2, answer_s_max=4, complete_s_max=50)


def silent(verb: str) -> TimeoutLayer:
    inner = FaultLayer(MemoryStore())
    inner.script(verb, Silence())
    return TimeoutLayer(inner, REQUESTS)


async def elapsed_until_stalled(verb: str, *arguments: object, **more: object) -> float:
    with pytest.raises(StalledError) as caught:
        await getattr(silent(verb), verb)(*arguments, **more)
    assert (caught.value.verb, caught.value.key) == (verb, KEY)
    return asyncio.get_running_loop().time()


PART = Part(0, ByteRange(0, MIB))


@pytest.mark.parametrize(
    ("verb", "arguments", "bound_s"),
    [
        ("head", (KEY,), 7),
        ("get", (KEY,), 7),
        ("put", (KEY, bytes(MIB)), 7 + MIB / BYTES_PER_S_MIN),
        ("get_into", (KEY, ByteRange(0, 1), memoryview(bytearray(1))), 7),
        ("multipart_create", (KEY,), 7),
        ("multipart_abort", (KEY, UploadId("u")), 7),
        ("delete", (KEY,), 7),
    ],
)
def test_a_silent_store_is_given_up_after_the_bound_of_its_verb(
    verb: str, arguments: tuple[object, ...], bound_s: float
) -> None:
    assert run_virtual(elapsed_until_stalled(verb, *arguments)) == pytest.approx(bound_s, abs=0.01)


def test_bulk_requests_get_time_by_their_size() -> None:
    arguments = (KEY, UploadId("u"), PART, [bytes(MIB)])
    elapsed_s = run_virtual(elapsed_until_stalled("put_part", *arguments, crc64nvme=0))
    assert elapsed_s == pytest.approx(7 + MIB / BYTES_PER_S_MIN)


def test_completing_has_a_bound_of_its_own() -> None:
    more = {"size_bytes": 0, "crc64nvme": 0}
    stalled = elapsed_until_stalled("multipart_complete", KEY, UploadId("u"), [], **more)
    assert run_virtual(stalled) == 50


def test_a_listing_is_bounded_entry_by_entry() -> None:
    class SlowLister(MemoryStore):
        async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
            for number in range(3):
                await asyncio.sleep(5)
                yield ObjectInfo(Key(f"{number}"), 0, Version())

    async def story() -> None:
        found = [i.key async for i in TimeoutLayer(SlowLister(), REQUESTS).list_objects("")]
        assert found == ["0", "1", "2"]
        with pytest.raises(StalledError):
            _ = [info async for info in silent("list_objects").list_objects("")]

    run_virtual(story())


def test_a_timeout_of_somebody_else_is_not_ours() -> None:
    async def story() -> None:
        inner = FaultLayer(MemoryStore())
        inner.script("head", Fault(TimeoutError("theirs")))
        with pytest.raises(TimeoutError, match="theirs"):
            await TimeoutLayer(inner, REQUESTS).head(KEY)

    run_virtual(story())
