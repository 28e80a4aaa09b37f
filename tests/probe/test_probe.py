"""A probe sees through each kind of store, says what it means, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.backends.memory import MemoryStore
from ckptstore.errors import (
    CkptStoreError,
    IntegrityError,
    PermissionDeniedError,
    SettingsError,
    StoreError,
    UnsupportedVerbError,
)
from ckptstore.manifest.codec import encode_record
from ckptstore.manifest.layout import STORE_RECORD_KEY
from ckptstore.manifest.model import StoreRecord
from ckptstore.opening import layered
from ckptstore.probe.clock import skew_s
from ckptstore.probe.finding import Outcome, Promise, State, Verdict, judged
from ckptstore.probe.run import probe_store
from ckptstore.settings import RetrySettings, Settings
from tests.probe import liars

SETTINGS = Settings(retry=RetrySettings(fault_s_max=0.0, throttle_s_max=0.0))


async def probed(backend: MemoryStore, *, quick: bool = True, prefix: str = "p/q") -> Verdict:
    """Probe a store as the command does."""
    found = probe_store(
        layered(backend, prefix, SETTINGS),
        backend,
        bucket_prefix=prefix,
        scheme="s3",
        settings=SETTINGS,
        environment={},
        quick=quick,
    )
    return Verdict(tuple([finding async for finding in found]))


async def left_in(backend: MemoryStore) -> list[str]:
    """Return what is there, whatever the store itself says of it."""
    return [info.key async for info in MemoryStore.list_objects(backend, "")]


def names(verdict: Verdict, state: State) -> set[str]:
    return {finding.name for finding in verdict.of(state)}


async def test_an_honest_store_is_safe() -> None:
    backend = liars.Honest()
    verdict = await probed(backend, quick=False)
    assert verdict.safe
    assert await left_in(backend) == []
    assert backend.uploads_open == 0
    assert names(verdict, State.WEAK) == {"complete_repeatable"}
    assert not verdict.of(State.BROKEN) + verdict.of(State.UNKNOWN) + verdict.of(State.SKIPPED)
    assert {"small_put_ms", "parts_of_16_mib"} <= names(verdict, State.NOTE)


async def test_what_cannot_be_asked_is_skipped_and_not_held_against_a_store() -> None:
    verdict = await probed(MemoryStore())
    assert verdict.safe
    assert names(verdict, State.SKIPPED) == {
        "checksum_of_put",
        "checksum_of_whole",
        "size_of_whole",
        "missing_part_refused",
    }


@pytest.mark.parametrize(
    ("kind", "broken", "code"),
    [
        (
            liars.IgnoresConditions,
            {"create_only", "create_only_raced"},
            UnsupportedVerbError.exit_code,
        ),
        (liars.Forgets, {"read_after_write"}, IntegrityError.exit_code),
        (liars.SendsOtherRanges, {"ranges_exact"}, IntegrityError.exit_code),
        (liars.ListsBackwards, {"list_ordered_in_directory"}, UnsupportedVerbError.exit_code),
        (liars.ListsLate, {"list_after_write"}, UnsupportedVerbError.exit_code),
        (liars.IsAhead, {"clock"}, SettingsError.exit_code),
    ],
)
async def test_what_nothing_makes_up_for_is_broken(
    kind: type[MemoryStore], broken: set[str], code: int
) -> None:
    backend = kind()
    verdict = await probed(backend)
    assert not verdict.safe
    assert broken <= names(verdict, State.BROKEN)
    assert all(f.remedy for f in verdict.of(State.BROKEN))
    assert {f.exit_code for f in verdict.of(State.BROKEN) if f.name in broken} == {code}
    assert await left_in(backend) == []
    assert backend.uploads_open == 0


@pytest.mark.parametrize(
    ("kind", "weak"),
    [
        (liars.IgnoresChecksums, {"checksum_of_put", "checksum_of_part"}),
        (liars.HidesUploads, {"uploads_listed"}),
    ],
)
async def test_what_ckptstore_makes_up_for_is_weak_and_safe(
    kind: type[MemoryStore], weak: set[str]
) -> None:
    verdict = await probed(kind())
    assert verdict.safe
    assert names(verdict, State.WEAK) - {"complete_repeatable"} == weak


async def test_a_store_that_is_ill_is_not_taken_for_one_that_refuses() -> None:
    verdict = await probed(liars.IsIll())
    [finding] = verdict.of(State.UNKNOWN)
    assert (finding.name, finding.exit_code) == ("checksum_of_put", 3)
    assert "come back later" in finding.detail


async def test_what_is_forbidden_is_unknown_and_the_rest_is_looked_at() -> None:
    verdict = await probed(liars.ForbidsListing())
    unknown = {finding.name: finding.exit_code for finding in verdict.of(State.UNKNOWN)}
    assert unknown["list_after_write"] == PermissionDeniedError.exit_code
    assert verdict.holds("create_only")
    assert verdict.holds("list_after_write") is None


async def test_a_store_that_cannot_be_written_to_ends_the_probe() -> None:
    with pytest.raises(StoreError, match="no"):
        await probed(liars.RefusesAll())


# clean-up


async def test_what_could_not_be_removed_is_named(caplog: pytest.LogCaptureFixture) -> None:
    backend = liars.KeepsAll()
    verdict = await probed(backend)
    [finding] = [f for f in verdict.of(State.BROKEN) if f.name == "cleaned_up"]
    left = await left_in(backend)
    assert left
    for key in left:
        assert key in finding.detail
        assert f"could not remove {key}" in caplog.text


async def test_an_interrupt_leaves_nothing_either() -> None:
    came = asyncio.Event()

    class Held(liars.Honest):
        async def put_part(self, *arguments: object, **named: object) -> str:
            came.set()
            await asyncio.Event().wait()
            return ""

    backend = Held()
    probing = asyncio.ensure_future(probed(backend))
    async with asyncio.timeout(10):
        await came.wait()
    probing.cancel()
    await asyncio.wait({probing}, timeout=10)
    assert probing.cancelled()
    assert await left_in(backend) == []
    assert backend.uploads_open == 0


# the record


async def recorded(
    backend: MemoryStore, *, create_only: bool, checksums: bool | None = None
) -> None:
    record = StoreRecord(
        store_id="0" * 32,
        fan_out=1,
        create_only=create_only,
        created_unix_s=1.0,
        created_by="x",
        checksums=checksums,
    )
    await backend.put(STORE_RECORD_KEY, encode_record(record))


@pytest.mark.parametrize(
    ("kind", "create_only", "state"),
    [
        (liars.IgnoresConditions, True, State.BROKEN),
        (liars.IgnoresConditions, False, State.HOLDS),
        (liars.Honest, True, State.HOLDS),
        (liars.Honest, False, State.NOTE),
    ],
)
async def test_a_record_that_says_otherwise_is_told(
    kind: type[MemoryStore], create_only: bool, state: State
) -> None:
    backend = kind()
    await recorded(backend, create_only=create_only)
    verdict = await probed(backend, prefix="")
    assert "record_create_only" in names(verdict, state)


@pytest.mark.parametrize(("checksums", "safe"), [(False, True), (None, False), (True, False)])
async def test_a_record_that_does_not_know_what_is_ignored_is_told(
    checksums: bool | None, safe: bool
) -> None:
    backend = liars.IgnoresChecksums()
    await recorded(backend, create_only=True, checksums=checksums)
    verdict = await probed(backend, prefix="")
    assert verdict.safe == safe
    assert ("record_checksums" in names(verdict, State.BROKEN)) == (not safe)


# pure


@pytest.mark.parametrize("error", [None, StoreError("ill")])
@pytest.mark.parametrize("holds", [True, False, None])
@pytest.mark.parametrize("broken_as", [None, IntegrityError])
def test_only_what_holds_or_has_a_way_around_costs_nothing(
    error: CkptStoreError | None, holds: bool | None, broken_as: type[CkptStoreError] | None
) -> None:
    promise = Promise("name", "group", "text", "otherwise", broken_as)
    finding = judged(promise, Outcome(holds, "detail", error))
    costs = (holds is False and broken_as is not None) or (holds is None and error is not None)
    assert bool(finding.exit_code) == costs
    assert bool(finding.remedy) == (holds is False)


@given(st.floats(0, 1e6), st.floats(-1e5, 1e5), st.floats(0, 100))
def test_a_skew_is_never_made_up(at_s: float, ahead_s: float, took_s: float) -> None:
    """The store writes somewhere in between, and tells whole seconds."""
    store_s = float(int(at_s + took_s / 2 + ahead_s + 1e6)) - 1e6
    found_s = skew_s(at_s, store_s, at_s + took_s)
    assert abs(found_s) <= abs(ahead_s) + 1e-6
    assert abs(found_s) >= abs(ahead_s) - took_s - 1.0 - 1e-6


def test_logging_is_quiet_when_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        asyncio.run(probed(liars.Honest()))
    assert caplog.records == []
