"""What a directory holds is known, and known to be pushable, before a byte is sent."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ckptstore.errors import UsageError
from ckptstore.push.walk import walk
from tests.cli.files import write_files


def test_every_file_is_found_with_its_size_and_whether_it_may_be_run(tmp_path: Path) -> None:
    write_files(tmp_path, {"b/deep/x": b"123", "a": b"", "run.sh": b"#!", "file..txt": b"."})
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "empty" / "directory").mkdir(parents=True)
    found = [(file.path, file.size_bytes, file.executable) for file in walk(tmp_path)]
    assert found == [
        ("a", 0, False),
        ("b/deep/x", 3, False),
        ("file..txt", 1, False),
        ("run.sh", 2, True),
    ]


def test_a_link_to_a_file_inside_stands_for_that_file(tmp_path: Path) -> None:
    write_files(tmp_path, {"real/file": b"123"})
    (tmp_path / "link").symlink_to(Path("real") / "file")
    assert [(file.path, file.size_bytes) for file in walk(tmp_path)] == [
        ("link", 3),
        ("real/file", 3),
    ]


def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    write_files(tmp_path / "real", {"file": b"123"})
    (tmp_path / "link").symlink_to("real")
    assert [file.path for file in walk(tmp_path / "link")] == ["file"]


def outside(directory: Path) -> None:
    write_files(directory.parent, {"secret": b"x"})
    (directory / "link").symlink_to(directory.parent / "secret")


def neighbour(directory: Path) -> None:
    """A directory whose name merely begins like ours is outside as well."""
    write_files(directory.parent / f"{directory.name}-more", {"secret": b"x"})
    (directory / "link").symlink_to(directory.parent / f"{directory.name}-more" / "secret")


def listening(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "socket"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (outside, r"link to .*secret, outside .* copy what it points to in its place"),
        (neighbour, "outside of the directory"),
        (lambda d: (d / "link").symlink_to("nowhere"), "leads nowhere; remove it"),
        (lambda d: (d / "link").symlink_to("link"), "leads nowhere; remove it"),
        (lambda d: (d / "link").symlink_to("."), "link to a directory.* pushed twice; remove it"),
        (lambda d: os.mkfifo(d / "pipe"), "a device, a pipe or a socket; only files"),
        (lambda d: (d / "con.txt").touch(), "Windows reserves.*; rename the file"),
        (lambda d: (d / "back\\slash").touch(), "backslash.*; rename the file"),
        (lambda d: (d / "line\nbreak").touch(), "control character.*; rename the file"),
        (lambda d: Path(os.fsdecode(bytes(d) + b"/\xff")).touch(), "not valid Unicode"),
        (lambda d: (d / "KEPT").touch(), "the same name on some file systems; rename one"),
    ],
)
def test_what_cannot_be_pushed_is_refused_with_what_to_do(
    tmp_path: Path, spoil: object, said: str
) -> None:
    directory = write_files(tmp_path / "dir", {"kept": b"x"})
    assert callable(spoil)
    spoil(directory)
    with pytest.raises(UsageError, match=said):
        walk(directory)


def test_a_socket_is_refused(tmp_path: Path) -> None:
    directory = write_files(tmp_path / "d", {"kept": b"x"})
    listening(directory)
    with pytest.raises(UsageError, match="cannot be read|only files can be pushed"):
        walk(directory)


def test_a_file_that_cannot_be_read_is_found_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"a": b"x", "locked": b"x"})
    real = os.open

    def refusing(path: Path, flags: int) -> int:
        if path.name == "locked":
            raise PermissionError(13, "Permission denied")
        return real(path, flags)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(UsageError, match="locked: cannot be read: Permission denied"):
        walk(tmp_path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda d: None, "there is no such directory to push"),
        (lambda d: d.mkdir(), "holds no file; there is nothing to push"),
        (lambda d: (d / "sub" / "sub").mkdir(parents=True), "holds no file"),
        (lambda d: d.touch(), "is a file; push the directory it lies in"),
    ],
)
def test_what_is_no_directory_of_files_is_refused(tmp_path: Path, make: object, said: str) -> None:
    assert callable(make)
    make(tmp_path / "dir")
    with pytest.raises(UsageError, match=said):
        walk(tmp_path / "dir")
