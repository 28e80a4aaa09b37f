"""Checksums of pieces, of blocks, and of what they make up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptstore.integrity import block_crcs, crc64nvme, joined_crc64nvme, whole_crc
from ckptstore.types import views


def test_the_polynomial_is_the_one_that_s3_checks() -> None:
    assert crc64nvme(b"123456789") == 0xAE8B14860A799888  # The check value of CRC-64/NVME.


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 16))
def test_blocks_do_not_depend_on_how_the_bytes_are_cut(pieces: list[bytes], block: int) -> None:
    data = b"".join(pieces)
    expected = tuple(crc64nvme(data[at : at + block]) for at in range(0, len(data), block))
    assert block_crcs(views(pieces), block) == expected
    assert whole_crc(expected, block, len(data)) == crc64nvme(data)


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_the_whole_follows_from_its_pieces(pieces: list[bytes]) -> None:
    parts = [(crc64nvme(piece), len(piece)) for piece in pieces]
    assert joined_crc64nvme(parts) == crc64nvme(b"".join(pieces))
