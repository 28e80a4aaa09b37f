"""A local directory: what a power cut, a full disk or a symbolic link can do to it."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptstore.backends import _files
from ckptstore.backends.local import LocalStore
from ckptstore.errors import (
    LocalResourceError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
    TransientStoreError,
    UnsupportedVerbError,
    UsageError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.location import parse_store
from ckptstore.opening import opened_store
from ckptstore.settings import LocalSettings, Settings
from ckptstore.types import Buffer, ByteRange, CreateOnly, Key, Part, UploadId, parse_key

KEY = parse_key("runs/r/decision")
PART = Part(0, ByteRange(0, 7))
CRC = crc64nvme(b"payload")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[LocalStore]:
    store = LocalStore(root)
    yield store
    await store.aclose()


def leftovers(root: Path) -> list[Path]:
    return list((root / ".uploads").iterdir()) if (root / ".uploads").exists() else []


class Recorder:
    """Notes what reaches the disk, and in which order."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self._root = root
        self._real_fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._fsync)
        for name in ("link", "replace", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, self._noting(name, getattr(os, name)))

    def _shown(self, path: str) -> str:
        if "/.uploads/" in path:
            return "temporary"
        return os.path.relpath(path, self._root)

    def _fsync(self, descriptor: int) -> None:
        self.steps.append(f"sync {self._shown(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        self._real_fsync(descriptor)

    def _noting(self, name: str, real: Callable[..., None]) -> Callable[..., None]:
        def noted(path: str, *others: str | int, **more: object) -> None:
            real(path, *others, **more)
            target = others[0] if others and isinstance(others[0], str) else path
            self.steps.append(f"{name} {self._shown(target)}")

        return noted


@pytest.mark.parametrize(("mode", "named"), [(CreateOnly(), "link"), (None, "replace")])
async def test_an_object_is_durable_before_put_returns(
    store: LocalStore,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: CreateOnly | None,
    named: str,
) -> None:
    steps = Recorder(root, monkeypatch).steps
    await (store.put(KEY, b"x", mode=mode) if mode else store.put(KEY, b"x"))
    data, name = steps.index("sync temporary"), steps.index(f"{named} runs/r/decision")
    assert data < name
    assert "sync runs/r" in steps[name:]
    for made, parent in ((".", ".."), ("runs", "."), ("runs/r", "runs")):
        assert f"sync {parent}" in steps[steps.index(f"mkdir {made}") : name]


async def test_directories_that_somebody_else_just_made_are_made_durable(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "runs/r").mkdir(parents=True)
    steps = Recorder(root, monkeypatch).steps
    await store.put(KEY, b"x")
    assert {"sync .", "sync runs"} <= set(steps[: steps.index("replace runs/r/decision")])
    del steps[:]
    await store.put(KEY, b"y")
    assert "sync runs" not in steps  # Once is enough.


async def test_what_refuses_us_is_durable_before_we_hear_of_it(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put(KEY, b"first")
    steps = Recorder(root, monkeypatch).steps
    with pytest.raises(ObjectExistsError):
        await store.put(KEY, b"second", mode=CreateOnly())
    assert "sync runs/r" in steps
    assert leftovers(root) == []


async def test_a_completed_upload_is_durable(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id = await store.multipart_create(KEY)
    etag = await store.put_part(KEY, upload_id, PART, [b"payload"], crc64nvme=CRC)
    steps = Recorder(root, monkeypatch).steps
    await store.multipart_complete(KEY, upload_id, [etag], size_bytes=7, crc64nvme=CRC)
    name = steps.index("replace runs/r/decision")
    assert "sync temporary" in steps[:name]
    assert "sync runs/r" in steps[name:]


@pytest.mark.parametrize(
    ("policy", "synced"),
    [("always", {"sync temporary", "sync runs/r"}), ("data", {"sync temporary"}), ("never", set())],
)
async def test_what_is_synced_is_what_the_settings_say(
    root: Path, monkeypatch: pytest.MonkeyPatch, policy: str, synced: set[str]
) -> None:
    steps = Recorder(root, monkeypatch).steps
    local = Settings(local=LocalSettings(fsync=policy))
    async with opened_store(parse_store(str(root)), local) as store:
        await store.put(KEY, b"x")
        upload_id = await store.multipart_create(KEY)
        etag = await store.put_part(KEY, upload_id, PART, [b"payload"], crc64nvme=CRC)
        await store.multipart_complete(KEY, upload_id, [etag], size_bytes=7, crc64nvme=CRC)
    found = [step for step in steps if step in ("sync temporary", "sync runs/r")]
    assert set(found) == synced
    assert len(found) == 2 * len(synced)


def test_an_fsync_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="always, data, never"):
        LocalSettings(fsync="sometimes")


@pytest.mark.parametrize("call", ["pwritev", "fsync", "replace"])
async def test_a_put_that_fails_at_any_point_leaves_nothing(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    await store.put(parse_key("runs/r/other"), b"there already")
    failing(monkeypatch, call, errno.EIO)
    with pytest.raises(TransientStoreError):
        await store.put(KEY, b"x")
    monkeypatch.undo()
    with pytest.raises(ObjectNotFoundError):
        await store.head(KEY)
    assert leftovers(root) == []


def failing(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, LocalResourceError),
        (errno.EDQUOT, LocalResourceError),
        (errno.EMFILE, LocalResourceError),
        (errno.ENFILE, LocalResourceError),
        (errno.EFBIG, LocalResourceError),
        (errno.EACCES, PermissionDeniedError),
        (errno.EPERM, PermissionDeniedError),
        (errno.EROFS, PermissionDeniedError),
        (errno.EIO, TransientStoreError),
        (errno.ESTALE, TransientStoreError),
        (errno.EINVAL, StoreError),
        (errno.ENAMETOOLONG, StoreError),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else value.__name__,
)
async def test_errors_of_the_system_become_ours(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    failing(monkeypatch, "pwritev", number)
    with pytest.raises(kind) as caught:
        await store.put(KEY, b"x")
    assert type(caught.value) is kind
    assert KEY in str(caught.value)


async def test_a_file_system_without_hard_links_is_refused_aloud(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "link", errno.EPERM)
    with pytest.raises(UnsupportedVerbError, match="hard links"):
        await store.put(KEY, b"x", mode=CreateOnly())


# the bytes


@pytest.mark.parametrize("written_at_once", [1, 3, 1000])
async def test_short_writes_are_gone_on_with(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, written_at_once: int
) -> None:
    real = os.pwritev

    def short(descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        room, cut = written_at_once, []
        for piece in pieces:
            cut.append(piece[:room])
            room -= len(cut[-1])
        return real(descriptor, [piece for piece in cut if len(piece)], offset)

    monkeypatch.setattr(os, "pwritev", short)
    upload_id = await store.multipart_create(KEY)
    pieces: list[Buffer] = [b"pa", b"", bytearray(b"ylo"), memoryview(b"ad")]
    etag = await store.put_part(KEY, upload_id, PART, pieces, crc64nvme=CRC)
    await store.multipart_complete(KEY, upload_id, [etag], size_bytes=7, crc64nvme=CRC)
    assert (root / KEY).read_bytes() == b"payload"


async def test_more_pieces_than_one_call_takes_are_written(store: LocalStore, root: Path) -> None:
    pieces = [bytes([number % 256]) for number in range(3 * _files.IOV_MAX)]
    whole = b"".join(pieces)
    upload_id = await store.multipart_create(KEY)
    part, crc = Part(0, ByteRange(0, len(whole))), crc64nvme(whole)
    etag = await store.put_part(KEY, upload_id, part, pieces, crc64nvme=crc)
    await store.multipart_complete(KEY, upload_id, [etag], size_bytes=len(whole), crc64nvme=crc)
    assert (root / KEY).read_bytes() == whole


async def test_pieces_are_written_from_where_they_lie(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = bytearray(_files.STEP_BYTES + 5)
    seen: list[object] = []
    real = os.pwritev

    def watched(descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        seen.extend(piece.obj for piece in pieces)
        return real(descriptor, pieces, offset)

    monkeypatch.setattr(os, "pwritev", watched)
    await store.put(KEY, memory)
    assert len(seen) == 2
    assert all(owner is memory for owner in seen)


async def test_a_part_that_arrives_damaged_does_not_spoil_the_good_one(
    store: LocalStore, root: Path
) -> None:
    upload_id = await store.multipart_create(KEY)
    etag = await store.put_part(KEY, upload_id, PART, [b"payload"], crc64nvme=CRC)
    with pytest.raises(TransientStoreError):
        await store.put_part(KEY, upload_id, PART, [b"PAYLOAD"], crc64nvme=CRC)
    await store.multipart_complete(KEY, upload_id, [etag], size_bytes=7, crc64nvme=CRC)
    assert (root / KEY).read_bytes() == b"payload"


async def test_an_upload_that_grew_otherwise_is_not_completed(
    store: LocalStore, root: Path
) -> None:
    upload_id = await store.multipart_create(KEY)
    etag = await store.put_part(KEY, upload_id, PART, [b"payload"], crc64nvme=CRC)
    with (root / ".uploads" / upload_id).open("ab") as file:
        file.write(b"more")
    with pytest.raises(StoreError, match="11 bytes, not 7"):
        await store.multipart_complete(KEY, upload_id, [etag], size_bytes=7, crc64nvme=CRC)


# names


async def test_no_key_leads_out_through_a_symbolic_link(store: LocalStore, root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    os.mkdir(root)
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    for key in (Key("link/secret"), Key("file")):
        with pytest.raises(PermissionDeniedError, match="symbolic link"):
            await store.get(key)
        with pytest.raises(PermissionDeniedError, match="symbolic link"):
            await store.put(key, b"overwritten")
        with pytest.raises(PermissionDeniedError, match="symbolic link"):
            await store.delete(key)
    assert [info.key async for info in store.list_objects("")] == []
    assert [info.key async for info in store.list_objects("link/")] == []
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.parametrize("key", ["../outside", "a/../../outside", "/etc/passwd", "a/./b", ""])
async def test_a_key_that_is_none_is_refused(store: LocalStore, key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        await store.get(Key(key))
    assert [info async for info in store.list_objects("../")] == []


async def test_uploads_are_neither_listed_nor_reached(store: LocalStore) -> None:
    upload_id = await store.multipart_create(KEY)
    key = Key(f".uploads/{upload_id}")
    for refused in (store.get(key), store.put(key, b"x"), store.delete(key), store.head(key)):
        with pytest.raises(PermissionDeniedError, match="own"):
            await refused
    for prefix in ("", ".", ".uploads/", ".uploads"):
        assert [info async for info in store.list_objects(prefix)] == []


@pytest.mark.parametrize("upload_id", ["../../etc/passwd", "nothing", ""])
async def test_an_upload_id_that_is_none_is_refused(store: LocalStore, upload_id: str) -> None:
    with pytest.raises(ValueError, match="not an upload"):
        await store.multipart_abort(KEY, UploadId(upload_id))


async def test_a_link_to_the_root_itself_is_fine(root: Path) -> None:
    os.mkdir(root)
    (root.parent / "alias").symlink_to(root)
    store = LocalStore(root.parent / "alias")
    await store.put(KEY, b"x")
    assert (root / KEY).read_bytes() == b"x"
    await store.aclose()


async def test_an_object_cannot_be_a_directory_as_well(store: LocalStore) -> None:
    await store.put(Key("a"), b"x")
    await store.put(Key("d/e"), b"x")
    for key in (Key("a/b"), Key("a/b/c"), Key("d")):
        for mode in (None, CreateOnly()):
            with pytest.raises(StoreError, match="both a and a/b") as caught:
                await (store.put(key, b"y", mode=mode) if mode else store.put(key, b"y"))
            assert not isinstance(caught.value, ObjectExistsError)
        with pytest.raises(ObjectNotFoundError):
            await store.get(key)
        await store.delete(key)
    assert [info.key async for info in store.list_objects("")] == ["a", "d/e"]


async def test_foreign_things_are_not_objects(store: LocalStore, root: Path) -> None:
    await store.put(Key("a"), b"x")
    os.mkfifo(root / "pipe")
    (root / "back\\slash").touch()
    (root / "empty").mkdir()
    assert [info.key async for info in store.list_objects("")] == ["a"]
    for name in ("pipe", "empty"):
        with pytest.raises(ObjectNotFoundError):
            await store.get(Key(name))


async def test_deleting_the_last_object_removes_the_directories(
    store: LocalStore, root: Path
) -> None:
    await store.put(KEY, b"x")
    await store.put(Key("runs/other"), b"x")
    await store.delete(KEY)
    assert sorted(os.listdir(root)) == [".uploads", "runs"]
    assert os.listdir(root / "runs") == ["other"]
    await store.put(KEY, b"again")  # And they come back.
    assert await store.get(KEY) == b"again"


async def test_a_directory_that_vanishes_meanwhile_is_made_again(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace
    removed: list[str] = []

    def racing(source: str, target: str) -> None:
        if not removed:
            removed.append(target)
            os.rmdir(os.path.dirname(target))
        real(source, target)

    monkeypatch.setattr(os, "replace", racing)
    await store.put(KEY, b"x")
    assert removed
    assert (root / KEY).read_bytes() == b"x"


SEGMENT = st.text(alphabet="ab.-/é", min_size=1, max_size=6)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(names=st.sets(SEGMENT, max_size=12), prefix=st.text(alphabet="ab.-/", max_size=3))
async def test_listing_is_sorted_like_the_keys_themselves(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], prefix: str
) -> None:
    root = tmp_path_factory.mktemp("store")
    store = LocalStore(root)
    keys: set[str] = set()
    for name in names:
        try:
            await store.put(parse_key(name), b"")
            keys.add(name)
        except (ValueError, StoreError):  # Not a key, or a directory by now.
            continue
    found = [info.key async for info in store.list_objects(prefix)]
    assert found == sorted(key for key in keys if key.startswith(prefix))
    await store.aclose()
