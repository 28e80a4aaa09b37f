"""Which names may become files."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.paths import check_distinct, check_path

NASTY = st.sampled_from(["", ".", "..", "/", "\\", "\0", "C:", "con", "NUL.txt", "a", "b c", "ü"])
PATHS = st.one_of(
    st.text(max_size=20), st.lists(NASTY, max_size=6).map("/".join), st.lists(NASTY).map("".join)
)


@pytest.mark.parametrize(
    "path",
    [
        "a/../../x",
        "/abs",
        "..\\x",
        "a\\b",
        "C:x",
        "sub/c:/x",
        "a\0b",
        "a//b",
        "a/",
        "",
        ".",
        "..",
        "a/./b",
        "con",
        "sub/NUL.txt",
        "Com1",
        "lpt9.tar.gz",
        "line\nbreak",
        "x" * 1025,
        "\udcff",
    ],
)
def test_a_path_that_means_something_else_somewhere_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"path|key"):
        check_path(path)


@pytest.mark.parametrize(
    "path", ["file..txt", "...", "a b", "12:30.log", "console", "com10", "ünïcode", "a/b/c", ".hid"]
)
def test_an_unusual_but_harmless_path_is_kept_as_it_is(path: str) -> None:
    assert check_path(path) == path


@given(PATHS)
def test_a_path_that_passes_never_leaves_its_directory(path: str) -> None:
    try:
        check_path(path)
    except ValueError:
        return
    for pure in (PurePosixPath("root") / path, PureWindowsPath("root") / path):
        assert ".." not in pure.parts
        assert not pure.is_absolute()
        assert pure.parts[0] == "root"
        assert len(pure.parts) == 1 + len(path.split("/"))
        assert not PureWindowsPath(path).drive


@pytest.mark.parametrize(
    "paths",
    [
        ["A", "a"],
        ["dir/x", "DIR/y"],
        ["e\u0301", "\u00e9"],
        ["stra\u00dfe", "STRASSE"],
        ["a", "a/b"],
        ["a/b/c", "a/B"],
        ["same", "same"],
    ],
)
def test_two_paths_that_are_one_file_somewhere_are_refused(paths: list[str]) -> None:
    with pytest.raises(ValueError, match=r"same name|also a directory|twice"):
        check_distinct(paths)


def test_paths_that_only_look_alike_are_fine() -> None:
    check_distinct(["a", "ab", "a.b", "d/a", "d/b", "d2/a", "d/e/a"])
