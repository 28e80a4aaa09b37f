"""What the Cloud Storage backend makes of a server that fails as scripted."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from ckptstore.backends.gcs.components import begun_name, new_upload
from ckptstore.backends.gcs.store import GcsStore, open_gcs_store
from ckptstore.commit.standing import put_standing
from ckptstore.errors import (
    DamagedError,
    ObjectExistsError,
    RefusedError,
    SettingsError,
    StalledError,
    StoreError,
    ThrottledError,
    TransientStoreError,
    TruncatedObjectError,
    WriteOutcomeUnknownError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.location import parse_store
from ckptstore.opening import layered, opened_store
from ckptstore.settings import RequestSettings, Settings
from ckptstore.types import ByteRange, CreateOnly, Key, Part
from tests.unit.gcs_stub import crc_text, described, refusal, stub_store
from tests.unit.s3_stub import Peer, answer

KEY = Key("data/x")
WHOLE = b"payload"
PART = Part(0, ByteRange(0, len(WHOLE)))
PATIENT = RequestSettings(stall_s_max=60, answer_s_max=60)
UPLOAD = new_upload()


async def never_answer(peer: Peer) -> None:
    await peer.until_closed()


async def close_after_reading(peer: Peer) -> None:
    await peer.read_body()
    peer.writer.close()


async def send_part(store: GcsStore, data: bytes = WHOLE) -> str:
    return await store.put_part(KEY, UPLOAD, PART, [data], crc64nvme=crc64nvme(WHOLE))


async def complete(store: GcsStore, etag: str) -> None:
    await store.multipart_complete(
        KEY, UPLOAD, [etag], size_bytes=len(WHOLE), crc64nvme=crc64nvme(WHOLE)
    )


async def test_an_upload_carries_its_checksum_and_the_very_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stub_store(monkeypatch, described(KEY, WHOLE)) as (stub, store):
        version = await store.put(KEY, WHOLE, mode=CreateOnly())
    assert version.generation == "7"
    [asked] = stub.asked
    assert "ifGenerationMatch=0" in asked.target
    boundary = asked.headers["content-type"].partition("boundary=")[2].encode()
    _, about, body, end = asked.body.split(b"--" + boundary)
    assert json.loads(about.partition(b"\r\n\r\n")[2])["crc32c"] == crc_text(WHOLE)
    assert body.partition(b"\r\n\r\n")[2] == WHOLE + b"\r\n"
    assert end == b"--"


@pytest.mark.parametrize(
    ("status", "kind"), [(503, ThrottledError), (429, ThrottledError), (410, TransientStoreError)]
)
async def test_a_refused_part_is_sent_once_and_the_retry_layer_decides(
    monkeypatch: pytest.MonkeyPatch, status: int, kind: type[StoreError]
) -> None:
    async with stub_store(monkeypatch, refusal(status, "no", Retry_After="3")) as (stub, store):
        with pytest.raises(kind) as caught:
            await send_part(store)
    assert caught.value.retryable
    assert len(stub.asked) == 1
    assert getattr(caught.value, "retry_after_s", 3) == 3


async def test_a_part_that_is_refused_now_and_then_gets_a_new_name_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = (
        refusal(503, "backendError"),
        refusal(410, "gone"),
        close_after_reading,
        described("c", WHOLE),
        described(begun_name(KEY, UPLOAD), b""),
    )
    async with stub_store(monkeypatch, *script) as (stub, store):
        await layered(store, "", Settings()).put_part(
            KEY, UPLOAD, PART, [WHOLE], crc64nvme=crc64nvme(WHOLE)
        )
    names = {asked.body.partition(b'"name": "')[2].partition(b'"')[0] for asked in stub.asked[:4]}
    assert len(names) == 4


async def test_a_store_that_kept_other_bytes_is_caught_and_they_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = (described(KEY, b"pay1oad"), answer(204))
    async with stub_store(monkeypatch, *script) as (stub, store):
        with pytest.raises(DamagedError, match="damaged"):
            await store.put(KEY, WHOLE)
    assert stub.asked[1].method == "DELETE"
    assert "generation=7" in stub.asked[1].target


async def test_a_checksum_that_the_server_refuses_is_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = 'Provided CRC32C "AAAAAA==" doesn\'t match calculated CRC32C "BBBBBB==".'
    async with stub_store(monkeypatch, refusal(400, "invalid", message)) as (_, store):
        with pytest.raises(DamagedError, match="CRC32C"):
            await store.put(KEY, WHOLE)


async def test_a_part_that_is_not_what_was_promised_never_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stub_store(monkeypatch) as (stub, store):
        with pytest.raises(DamagedError):
            await send_part(store, b"pay1oad")
    assert stub.asked == []


async def test_a_part_that_comes_after_the_abort_deletes_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = (described("late", WHOLE), refusal(404, "notFound"), answer(204))
    async with stub_store(monkeypatch, *script) as (stub, store):
        with pytest.raises(StoreError, match="gone") as caught:
            await send_part(store)
    assert not caught.value.retryable
    assert (stub.asked[2].method, stub.asked[2].target.partition("?")[0][-4:]) == ("DELETE", "late")


async def test_a_lost_answer_to_our_own_record_is_read_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = answer(200, b"{}", x_goog_hash=f"crc32c={crc_text(b'{}')}")
    for lost in (close_after_reading, refusal(412, "conditionNotMet")):
        async with stub_store(monkeypatch, lost, kept) as (stub, store):
            assert await put_standing(layered(store, "", Settings()), KEY, b"{}") == b"{}"
        assert [asked.method for asked in stub.asked] == ["POST", "GET"]


async def test_somebody_elses_object_refuses_a_create_only_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stub_store(monkeypatch, refusal(412, "conditionNotMet")) as (_, store):
        with pytest.raises(ObjectExistsError):
            await store.put(KEY, WHOLE, mode=CreateOnly())


def ranged(body: bytes, start: int, total: int, length: int | None = None) -> bytes:
    stop = start + (len(body) if length is None else length)
    return (
        f"HTTP/1.1 206 Partial\r\nContent-Range: bytes {start}-{stop - 1}/{total}\r\n"
        f"Content-Length: {stop - start}\r\n\r\n"
    ).encode() + body


async def test_a_body_that_ends_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut_short(peer: Peer) -> None:
        await peer.send(ranged(b"pay", 0, 9, length=7))
        peer.writer.close()

    async with stub_store(monkeypatch, cut_short) as (_, store):
        with pytest.raises(TransientStoreError, match="3 of 7 bytes"):
            await store.get_into(KEY, ByteRange(0, 7), memoryview(bytearray(7)))


async def test_a_whole_object_is_compared_with_what_the_store_says_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = answer(200, b"pay1oad", x_goog_hash=f"crc32c={crc_text(WHOLE)},md5=xyz")
    async with stub_store(monkeypatch, wrong, wrong) as (_, store):
        with pytest.raises(DamagedError):
            await store.get(KEY)
        with pytest.raises(DamagedError):
            await store.get_into(KEY, ByteRange(0, 7), memoryview(bytearray(7)))


async def test_a_shorter_object_is_told_from_a_broken_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def short(peer: Peer) -> None:
        await peer.send(ranged(b"pay", 0, 3))

    for said in (short, answer(416)):
        async with stub_store(monkeypatch, said) as (_, store):
            with pytest.raises(TruncatedObjectError):
                await store.get_into(KEY, ByteRange(0, 7), memoryview(bytearray(7)))


async def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stub_store(monkeypatch, never_answer, never_answer) as (_, store):
        with pytest.raises(StalledError):
            await store.get(KEY)
        with pytest.raises(StalledError):
            await store.put(KEY, WHOLE)


async def test_a_server_that_takes_no_more_bytes_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = asyncio.Event()

    async def stop_reading(peer: Peer) -> None:
        await done.wait()
        await peer.until_closed()

    async with stub_store(monkeypatch, stop_reading) as (_, store):
        with pytest.raises((StalledError, TransientStoreError)):
            await store.put(KEY, bytes(64_000_000))
        done.set()


async def test_a_cancelled_call_cuts_its_connection_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only then the server hears of it, and the stub waits for that; no limit is near."""
    async with stub_store(monkeypatch, never_answer, settings=PATIENT) as (stub, store):
        call = asyncio.create_task(store.put(KEY, WHOLE))
        await stub.came.wait()
        call.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait({call})
            await stub.left.wait()
        assert call.cancelled()


async def test_a_lost_answer_to_the_last_compose_leaves_the_outcome_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = described(begun_name(KEY, UPLOAD), b"")
    script = (described("c", WHOLE), begun, begun, close_after_reading)
    async with stub_store(monkeypatch, *script) as (_, store):
        etag = await send_part(store)
        stack = layered(store, "", Settings())
        with pytest.raises(WriteOutcomeUnknownError):
            await stack.multipart_complete(
                KEY, UPLOAD, [etag], size_bytes=len(WHOLE), crc64nvme=crc64nvme(WHOLE)
            )


async def test_a_failure_before_the_last_compose_may_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = described(begun_name(KEY, UPLOAD), b"")
    async with stub_store(monkeypatch, described("c", WHOLE), begun, close_after_reading) as (
        _,
        store,
    ):
        etag = await send_part(store)
        with pytest.raises(RefusedError, match="not joined yet"):
            await complete(store, etag)


async def test_parts_that_changed_meanwhile_are_not_composed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = described(begun_name(KEY, UPLOAD), b"")
    script = (described("c", WHOLE), begun, begun, refusal(412, "conditionNotMet"))
    async with stub_store(monkeypatch, *script) as (stub, store):
        etag = await send_part(store)
        with pytest.raises(StoreError, match="not completed") as caught:
            await complete(store, etag)
    assert not caught.value.retryable
    [source] = json.loads(stub.asked[3].body)["sourceObjects"]
    assert source["objectPreconditions"] == {"ifGenerationMatch": "7"}


async def test_a_missing_bucket_is_a_matter_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = refusal(404, "notFound", "The specified bucket does not exist.")
    async with stub_store(monkeypatch, missing) as (_, store):
        with pytest.raises(SettingsError, match="no bucket 'bucket'"):
            await store.get(KEY)


async def test_without_credentials_it_says_where_it_looked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", os.fspath(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(SettingsError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        await open_gcs_store("bucket", RequestSettings())
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file")
    with pytest.raises(SettingsError, match="/no/such/file"):
        await open_gcs_store("bucket", RequestSettings())


async def test_a_missing_package_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ckptstore.backends.gcs.store", None)
    with pytest.raises(SettingsError, match=r"pip install 'ckptstore\[gcs\]'"):
        async with opened_store(parse_store("gs://bucket/x"), Settings()):
            pass


async def test_a_forked_child_is_told_to_open_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stub_store(monkeypatch) as (stub, store):
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(SettingsError, match="open the store again"):
            await store.head(KEY)
        monkeypatch.undo()
    assert stub.asked == []
