from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.torch import reads
from ckptstore.torch.reads import Box, Piece, cut_piece, plan_pieces
from ckptstore.torch.targets import narrowed

EXTENTS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(0, 3)), min_size=0, max_size=4
)


def filled(sizes: tuple[int, ...], pieces: list[Piece], box: Box) -> torch.Tensor:
    """Fill a tensor of the box's size from the bytes that the pieces name, and no others."""
    chunk = torch.arange(math.prod(sizes), dtype=torch.int32)
    target = torch.full(box.lengths, -1, dtype=torch.int32)
    for piece in pieces:
        read = chunk[piece.start // 4 : piece.stop // 4].reshape(piece.shape)
        within = tuple(a - b for a, b in zip(piece.box.offsets, box.offsets, strict=True))
        part = narrowed(target, Box(within, piece.box.lengths))
        assert bool((part == -1).all()), "filled twice"
        part.copy_(narrowed(read, Box(piece.at, piece.box.lengths)))
    return target


@given(EXTENTS, st.integers(1, 400), st.integers(1, 100))
def test_pieces_hold_the_box_however_they_are_cut(
    extents: list[tuple[int, int, int]], bytes_max: int, run_bytes_min: int
) -> None:
    box = Box(tuple(e[0] for e in extents), tuple(e[1] for e in extents))
    sizes = tuple(sum(extent) for extent in extents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "RUN_BYTES_MIN", run_bytes_min)
        pieces = plan_pieces(sizes, box, 4)
        small = [cut for piece in pieces for cut in cut_piece(sizes, piece, 4, bytes_max)]
    whole = narrowed(torch.arange(math.prod(sizes), dtype=torch.int32).reshape(sizes), box)
    assert torch.equal(filled(sizes, pieces, box), whole)
    assert torch.equal(filled(sizes, small, box), whole)
    assert all(cut.stop - cut.start <= max(bytes_max, 4) for cut in small)


def test_rows_of_a_chunk_are_one_exact_run() -> None:
    (piece,) = plan_pieces((100, 30), Box((10, 0), (5, 30)), 2)
    assert (piece.exact, piece.start, piece.stop) == (True, 600, 900)


def test_columns_are_read_with_their_neighbours_but_not_with_other_rows() -> None:
    (piece,) = plan_pieces((100, 30), Box((10, 3), (5, 4)), 2)
    assert (piece.exact, piece.start, piece.stop) == (False, 600, 900)


def test_long_runs_are_read_one_by_one_and_nothing_beside_them() -> None:
    sizes = (4, 1000, 1000)
    pieces = plan_pieces(sizes, Box((1, 500, 0), (2, 300, 1000)), 4)
    assert [piece.exact for piece in pieces] == [True, True]
    assert sum(piece.stop - piece.start for piece in pieces) == 2 * 300 * 1000 * 4
