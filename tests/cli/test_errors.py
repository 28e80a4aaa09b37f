"""Bad input ends with a sentence that says what to do, and with its own exit code."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ckptstore.cli import push as push_verb
from ckptstore.integrity import sha256_hex
from ckptstore.manifest.codec import (
    decode_decision,
    decode_rank_record,
    encode_rank_record,
    encode_record,
)
from ckptstore.manifest.model import Commit
from tests.cli.conftest import Cli

RESTORE, PUSH, LS, SHOW, VERIFY, RESOLVE = (
    ("restore", "{url}", "out"),
    ("push", "source", "{url}"),
    ("ls", "{url}"),
    ("show", "{url}"),
    ("verify", "{url}"),
    ("resolve", "{url}"),
)
EVERY_VERB = (RESTORE, PUSH, LS, SHOW, VERIFY, RESOLVE)
READING_VERBS = (RESTORE, LS, SHOW, VERIFY, RESOLVE)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(verb: tuple[str, ...], url: object) -> list[str]:
    return [word.format(url=url) for word in verb]


@pytest.mark.parametrize("verb", EVERY_VERB, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("foo://bucket/run@1", "unknown scheme 'foo'; this release knows s3, "),
        ("s3:/bucket/run@1", "one slash after the scheme; pathlib eats the other"),
        ("s3:///run@1", "names no bucket; write s3://bucket/prefix"),
        ("s3://bucket/a/../run@1", "the prefix has an empty or dotted segment"),
        ("store/..@1", "the last component of the path must name a run"),
        ("store/.hidden@1", "not a run name: '.hidden'; use 1 to 100 letters"),
        ("store/run@yesterday", "selects nothing; write @latest, @STEP, @UID"),
        ("store/run@-1", "selects nothing; write @latest, @STEP, @UID"),
    ],
)
def test_a_url_that_makes_no_sense_is_a_usage_error(
    cli: Cli, here: Path, verb: tuple[str, ...], url: str, said: str
) -> None:
    ended = cli(*words(verb, url))
    assert ended.code in (2, 5)  # Where a store would do as well, what is not one is not found.
    assert said in ended.err
    assert ended.err.startswith("error: ")
    assert sorted(path.name for path in here.iterdir()) == ["source"]


@pytest.mark.parametrize("verb", READING_VERBS, ids=lambda verb: verb[0])
def test_a_store_that_is_not_one_is_not_found_and_not_made(
    cli: Cli, here: Path, verb: tuple[str, ...]
) -> None:
    ended = cli(*words(verb, "nowhere/run"))
    assert ended.code == 5
    assert "/nowhere is not a ckptstore store: it has no ckptstore.json; check the URL" in ended.err
    assert sorted(path.name for path in here.iterdir()) == ["source"]


@pytest.mark.parametrize("verb", EVERY_VERB, ids=lambda verb: verb[0])
def test_a_store_of_a_newer_format_says_to_upgrade(
    cli: Cli, run: str, store: Path, verb: tuple[str, ...]
) -> None:
    line, _, _ = (store / "ckptstore.json").read_bytes().partition(b"\n")
    line = line.replace(b'"format_version":1', b'"format_version":2')
    seal = msgspec.json.encode({"sha256": sha256_hex(line)})
    (store / "ckptstore.json").write_bytes(line + b"\n" + seal + b"\n")
    ended = cli(*words(verb, f"{run}@900" if verb is PUSH else run))
    assert ended.code == 6
    assert "format version 2 was written by another release" in ended.err
    assert "this one reads version 1: upgrade it" in ended.err


@pytest.mark.parametrize("verb", EVERY_VERB, ids=lambda verb: verb[0])
def test_without_credentials_it_says_where_it_looked(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(here / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(here / "none"))
    ended = cli(*words(verb, "s3://bucket/run@1" if verb is not LS else "s3://bucket/run"))
    assert ended.code == 6
    assert "no AWS credentials: looked at AWS_ACCESS_KEY_ID" in ended.err


def test_rank_records_of_another_world_are_damage(cli: Cli, run: str, store: Path) -> None:
    """The decision pins them, so they are what was decided on; still they do not fit."""
    path = min((store / "runs" / "llama" / "decisions").iterdir())
    commit = decode_decision(path.read_bytes(), "decision")
    assert isinstance(commit, Commit)
    (ref,) = commit.records
    record = decode_rank_record((store / ref.key).read_bytes(), "record")
    data = encode_rank_record(msgspec.structs.replace(record, world_size=3))
    (store / ref.key).write_bytes(data)
    ref = msgspec.structs.replace(ref, sha256=sha256_hex(data), size_bytes=len(data))
    path.write_bytes(encode_record(msgspec.structs.replace(commit, records=(ref,))))
    for verb in (RESTORE, SHOW):
        ended = cli(*words(verb, run))
        assert ended.code == 4
        assert "record of rank 0 belongs to another attempt" in ended.err
    (damage,) = cli("verify", run, "--json").summary["damaged"]
    assert "belongs to another attempt" in damage["found"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ls", "x", "--deadline", "soon"), "'soon' is no length of time; write it like 90s"),
        (("ls", "x", "--concurrency", "0"), "--concurrency"),
        (("ls", "x", "--concurrency", "many"), "--concurrency"),
        (("ls",), "Missing argument 'STORE[/RUN]'"),
        (("ls", "x", "--bogus"), "No such option: --bogus"),
        (("lss",), "No such command 'lss'"),
        (("push", "source", "x/y@1", "--rank", "3"), "no rank 3 in a world of 1"),
        (("restore", "x/y", "out", "--rank", "-1"), "--rank"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(
    cli: Cli, arguments: tuple[str, ...], said: str
) -> None:
    ended = cli(*arguments)
    assert ended.code == 2
    assert said in ended.err
    for_programs = cli(*arguments, "--json")
    (error,) = for_programs.of_type("error")
    assert error["code"] == "usage"
    assert said in error["message"]


def test_an_error_is_told_to_programs_with_what_to_do(cli: Cli) -> None:
    ended = cli("ls", "nowhere/run", "--json")
    (error,) = ended.of_type("error")
    assert error["code"] == "not_found"
    assert error["retryable"] is False
    assert "check the URL" in error["message"]


def test_a_bug_is_a_short_message_and_a_traceback_only_on_demand(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(url: str) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(push_verb, "parse_run", broken)
    ended = cli("push", "source", "store/run@1")
    assert ended.code == 1
    assert ended.err.splitlines() == [
        "error: ZeroDivisionError: a bug",
        "hint: run again with -v for the traceback",
    ]
    assert "Traceback" in cli("push", "source", "store/run@1", "-v").err


def test_an_abort_ends_with_the_code_of_what_caused_it(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptstore.push.source import FileSource

    def unreadable(self: FileSource, byte_range: object) -> bytearray:
        raise self._unreadable(OSError(24, "Too many open files"))

    monkeypatch.setattr(FileSource, "_read", unreadable)
    ended = cli("push", "source", "store/run@1")
    assert ended.code == 9
    assert "was aborted" in ended.err
    assert "ulimit -n" in ended.err
    assert cli("ls", "store/run", "--json").of_type("checkpoint")[0]["state"] == "aborted"
