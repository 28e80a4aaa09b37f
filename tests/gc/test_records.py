"""The records and keys of retention."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import IntegrityError
from ckptstore.manifest.codec import (
    decode_pin,
    decode_rank_record,
    decode_tag,
    encode_rank_record,
    encode_record,
)
from ckptstore.manifest.layout import ShardKind, Uid, data_key, data_prefixes, owner_of_data
from ckptstore.manifest.model import Pin, Ready, Retired, Tag

UID = "i000001-s000000000007-a00-00c0ffee"
PIN = Pin(run="llama", uid=UID, holder="x", pinned_unix_s=1.5, expires_unix_s=2.5)
TAG = Tag(run="llama", name="best", uid=UID, tagged_unix_s=1.5)


def test_records_read_back() -> None:
    assert decode_pin(encode_record(PIN), "x") == PIN
    assert decode_tag(encode_record(TAG), "x") == TAG


@pytest.mark.parametrize("at", range(0, len(encode_record(PIN)), 3))
def test_a_flipped_bit_anywhere_is_found_and_named(at: int) -> None:
    data = bytearray(encode_record(PIN))
    data[at] ^= 0x10
    with pytest.raises(Exception, match="runs/llama/pins/x"):
        decode_pin(bytes(data), "runs/llama/pins/x")


def test_one_kind_of_record_is_not_taken_for_another() -> None:
    with pytest.raises(IntegrityError):
        decode_pin(encode_record(TAG), "x")
    with pytest.raises(IntegrityError):
        decode_tag(encode_record(PIN), "x")


@pytest.mark.parametrize("bad", [{"run": "../x"}, {"uid": "newest"}])
def test_a_record_names_a_run_and_an_attempt(bad: dict[str, str]) -> None:
    good = {"run": "llama", "uid": UID}
    with pytest.raises(ValueError, match="not "):
        Pin(**{**good, **bad}, holder="x", pinned_unix_s=0.0, expires_unix_s=0.0)
    with pytest.raises(ValueError, match="not "):
        Retired(**{**good, **bad}, reason="x", retired_unix_s=0.0)
    with pytest.raises(ValueError, match="not "):
        Tag(**{**good, **bad}, name="x", tagged_unix_s=0.0)


def test_metrics_are_kept_and_must_be_finite() -> None:
    ready = Ready(uid=UID, rank=0, world_size=1, metrics={"loss": 0.5, "steps": 7})
    assert decode_rank_record(encode_rank_record(ready), "x") == ready
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            Ready(uid=UID, rank=0, world_size=1, metrics={"loss": value})


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}[A-Za-z0-9]", fullmatch=True),
    st.integers(0, 999_999),
    st.integers(0, 9999),
    st.sampled_from(ShardKind),
    st.integers(1, 256),
)
def test_every_data_key_says_whose_it_is_and_is_listed(
    run: str, rank: int, index: int, kind: ShardKind, fan_out: int
) -> None:
    uid = str(Uid(3, 14, 1, "00c0ffee"))
    key = data_key(run, uid, rank, index, kind, fan_out=fan_out)
    assert owner_of_data(key) == (run, uid)
    assert sum(key.startswith(prefix) for prefix in data_prefixes(run)) == 1
    assert sum(key.startswith(prefix) for prefix in data_prefixes(None)) == 1


@pytest.mark.parametrize(
    "key",
    [
        f"data/00/llama/{UID}/000000-0000",
        f"data/00/llama/{UID}/x.file",
        f"data/0/llama/{UID}/000000-0000.file",
        f"data/00/llama/{UID}/more/000000-0000.file",
        f"data/00/llama./{UID}/000000-0000.file",
        "data/00/llama/i1-s2-a0-00c0ffee/000000-0000.file",
        f"more/00/llama/{UID}/000000-0000.file",
    ],
)
def test_a_key_that_is_not_exactly_ours_is_nobodys(key: str) -> None:
    with pytest.raises(ValueError, match="not "):
        owner_of_data(key)
