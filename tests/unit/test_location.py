"""What a URL means, and what is said about one that means nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import UsageError
from ckptstore.location import (
    AtStep,
    ByUid,
    Latest,
    StoreLocation,
    parse_run,
    parse_selector,
    parse_store,
)

UID = "i000001-s000000001000-a00-00c0ffee"


@pytest.mark.parametrize(
    ("url", "store", "run", "selector"),
    [
        ("s3://b/ckpts/llama-7b", ("s3", "b", "ckpts"), "llama-7b", Latest()),
        ("s3://b/ckpts/llama-7b@1000", ("s3", "b", "ckpts"), "llama-7b", AtStep(1000)),
        ("s3://b/llama@latest", ("s3", "b", ""), "llama", Latest()),
        ("S3://b/a/llama/", ("s3", "b", "a"), "llama", Latest()),
        (f"/data/ckpts/llama@{UID}", ("file", "", "/data/ckpts"), "llama", ByUid(UID)),
        ("file:///a%20b/llama@00c0ffee", ("file", "", "/a b"), "llama", ByUid("00c0ffee")),
        ("s3://b/user@host/llama", ("s3", "b", "user@host"), "llama", Latest()),
        ("memory://name/llama", ("memory", "name", ""), "llama", Latest()),
        ("/llama", ("file", "", "/"), "llama", Latest()),
    ],
)
def test_a_url_names_store_run_and_checkpoint(
    url: str, store: tuple[str, str, str], run: str, selector: object
) -> None:
    location = parse_run(url)
    assert location.store == StoreLocation(*store)
    assert (location.run, location.selector) == (run, selector)


def test_a_path_without_a_scheme_is_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/tmp")
    assert parse_run("run").store == StoreLocation("file", "", "/tmp")
    assert parse_run(Path("ckpts/run")).store == StoreLocation("file", "", "/tmp/ckpts")


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("", "not a run name"),
        ("gs+x://b/run", "unknown scheme"),
        ("http://b/run", "unknown scheme"),
        ("s3://b", "names a bucket and no run"),
        ("s3:///p/run", "names no bucket"),
        (Path("s3://b/p/run"), "pathlib eats the other"),
        ("s3://b/../run", "dotted segment"),
        ("s3://b//a/run", "empty or dotted segment"),
        ("s3://b/p/..", "must name a run"),
        ("/data/..", "must name a run"),
        ("s3://b/p/a b", "not a run name"),
        ("s3://b/p/run@", "selects nothing"),
        ("s3://b/p/run@newest", "selects nothing"),
        ("s3://b/p/run@-1", "selects nothing"),
        ("s3://b/p/run@1234567890123", "selects nothing"),
        ("s3://b/p?x=1/run", "no '\\?'"),
        ("file://host/dir/run", "three slashes"),
    ],
)
def test_a_url_that_means_nothing_says_how_to_write_it(url: str | Path, advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        parse_run(url)


@given(st.text())
def test_any_text_is_a_run_or_a_usage_error(text: str) -> None:
    try:
        location = parse_run(text)
    except UsageError:
        return
    assert "/" not in location.run
    assert ".." not in location.store.prefix.split("/")


@pytest.mark.parametrize("text", ["latest", "1000", "00c0ffee", UID])
def test_a_selector_prints_as_it_was_written(text: str) -> None:
    assert str(parse_selector(text)) == text


def test_a_store_url_prints_without_a_trailing_slash() -> None:
    assert str(parse_store("s3://b/a/")) == "s3://b/a"
    assert str(parse_store("s3://b")) == "s3://b"
