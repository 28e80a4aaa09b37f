"""Sizes and times as people write and read them."""

from __future__ import annotations

import pytest

from ckptstore.cli.units import counted, human_bytes, human_seconds, human_time, parse_seconds
from ckptstore.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("0.5s", 0.5), ("30m", 1800), ("2h", 7200), ("1h30m5s", 5405)],
)
def test_a_length_of_time_is_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5s", "30 m", "m", "soon", "1w", "5m30", "nan"])
def test_what_is_no_length_of_time_is_refused_with_how_to_write_it(text: str) -> None:
    if text == "5m30":  # A number at the end is seconds.
        assert parse_seconds(text) == 330
        return
    with pytest.raises(UsageError, match="write it like 90s, 30m or 1h30m"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (812.4 * 2**30, "812.4 GiB"),
        (3 * 2**50, "3.0 PiB"),
    ],
)
def test_a_size_is_shown_in_the_unit_that_suits_it(size_bytes: float, text: str) -> None:
    assert human_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0s"), (9.94, "9.9s"), (42, "42s"), (59.7, "1m00s"), (362, "6m02s"), (3900, "1h05m")],
)
def test_a_length_of_time_is_shown_short(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_moments_are_in_utc_and_nouns_agree() -> None:
    assert human_time(0) == "1970-01-01 00:00:00Z"
    assert human_time(None) == "-"
    assert (counted(1, "file"), counted(0, "file")) == ("1 file", "0 files")
