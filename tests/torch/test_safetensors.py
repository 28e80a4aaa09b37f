from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from ckptstore.errors import UsageError
from ckptstore.torch import safetensors
from ckptstore.torch.safetensors import DATA_ALIGNMENT_BYTES, Chunk, lay_out
from ckptstore.torch.tensors import dtype_name

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.float16,
    torch.bfloat16,
    torch.uint32,
    torch.int32,
    torch.float32,
    torch.uint64,
    torch.int64,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
NAMELESS = [torch.complex128, torch.complex32, torch.float4_e2m1fn_x2]


def chunk_of(name: str, dtype: torch.dtype, sizes: tuple[int, ...], at: int = 0) -> Chunk:
    offsets = (at, *(0 for _ in sizes[1:])) if sizes else ()
    return Chunk(
        name=name,
        dtype=dtype_name(dtype),
        item_size_bytes=dtype.itemsize,
        shape=tuple(size + offset for size, offset in zip(sizes, offsets, strict=True)),
        offsets=offsets,
        sizes=sizes,
    )


def written(path: Path, chunks: list[Chunk]) -> bytes:
    """Write the one file that these chunks make, with every byte a different one."""
    (layout,) = lay_out(chunks)
    data = b"".join(
        bytes((index + at) % 251 for at in range(chunks[index].size_bytes))
        for index in layout.chunks
    )
    path.write_bytes(layout.header + data)
    return layout.header


def header_of(header: bytes) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads(header[8:])
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("sizes", [(), (3,), (0, 4), (2, 3)], ids=str)
def test_any_reader_of_the_format_finds_each_dtype(
    tmp_path: Path, dtype: torch.dtype, sizes: tuple[int, ...]
) -> None:
    path = tmp_path / "shard.safetensors"
    written(path, [chunk_of("a", torch.uint8, (3,)), chunk_of("b", dtype, sizes)])
    with safe_open(path, framework="pt") as file:
        found = file.get_tensor("b")
    assert (found.dtype, tuple(found.shape)) == (dtype, sizes)
    expected = bytes((1 + at) % 251 for at in range(math.prod(sizes) * dtype.itemsize))
    assert found.reshape(-1).view(torch.uint8).numpy().tobytes() == expected


@pytest.mark.parametrize("dtype", NAMELESS, ids=dtype_name)
def test_a_dtype_without_a_name_is_raw_bytes_that_nobody_takes_for_numbers(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    path = tmp_path / "shard.safetensors"
    header = written(path, [chunk_of("a", dtype, (2, 3), at=4)])
    with safe_open(path, framework="pt") as file:
        found = file.get_tensor("a")
    assert (found.dtype, tuple(found.shape)) == (torch.uint8, (2, 3, dtype.itemsize))
    info = json.loads(str(header_of(header)["__metadata__"]["DCP_SHARDING_INFO"]))
    assert info == {"a": {"saved_offsets": [4, 0, 0]}}


def test_data_starts_on_a_page_and_every_tensor_on_a_multiple_of_its_items() -> None:
    chunks = [chunk_of(f"t{i}", dtype, (3,)) for i, dtype in enumerate([*DTYPES, *NAMELESS])]
    (layout,) = lay_out(chunks)
    assert len(layout.header) % DATA_ALIGNMENT_BYTES == 0
    start = len(layout.header)
    for index in layout.chunks:
        assert start % chunks[index].item_size_bytes == 0
        start += chunks[index].size_bytes


def test_chunks_of_one_tensor_go_to_different_files() -> None:
    chunks = [chunk_of("a", torch.float32, (2,), at=2 * i) for i in range(3)]
    chunks.insert(1, chunk_of("b", torch.float32, (2,)))
    layouts = lay_out(chunks)
    assert [layout.chunks for layout in layouts] == [(0, 1), (2,), (3,)]


def test_files_are_cut_between_tensors_and_a_large_tensor_is_alone() -> None:
    chunks = [chunk_of(str(i), torch.uint8, (size,)) for i, size in enumerate([4, 4, 4, 30, 4])]
    layouts = lay_out(chunks, shard_size_bytes_max=10)
    assert [layout.chunks for layout in layouts] == [(0, 1), (2,), (3,), (4,)]


def test_a_header_stays_below_what_readers_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors, "HEADER_SIZE_BYTES_MAX", 4000)
    chunks = [chunk_of('"\\' * 50 + str(i), torch.uint8, (1,)) for i in range(20)]
    layouts = lay_out(chunks)
    assert len(layouts) > 1
    for layout in layouts:
        assert len(layout.header.rstrip()) <= 4000
    assert sorted(index for layout in layouts for index in layout.chunks) == list(range(20))


def test_twenty_thousand_small_tensors_are_one_file() -> None:
    chunks = [chunk_of(f"layers.{i}.weight", torch.float32, (16,)) for i in range(20_000)]
    (layout,) = lay_out(chunks)
    assert len(layout.chunks) == 20_000
    assert len(layout.header) < 100_000_000


def test_a_tensor_with_the_format_s_own_name_is_refused() -> None:
    with pytest.raises(UsageError, match="rename"):
        lay_out([chunk_of("__metadata__", torch.uint8, (1,))])


def test_nothing_to_save_is_no_file() -> None:
    assert lay_out([]) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", "ä.\u2028"]),
            st.sampled_from([*DTYPES, *NAMELESS]),
            st.lists(st.integers(0, 5), max_size=3).map(tuple),
        ),
        max_size=12,
    ),
    st.integers(1, 200),
)
def test_every_chunk_lies_in_exactly_one_file_without_a_hole(
    plan: list[tuple[str, torch.dtype, tuple[int, ...]]], size_max: int
) -> None:
    chunks = [chunk_of(name, dtype, sizes) for name, dtype, sizes in plan]
    layouts = lay_out(chunks, shard_size_bytes_max=size_max)
    assert sorted(i for layout in layouts for i in layout.chunks) == list(range(len(chunks)))
    for layout in layouts:
        entries = header_of(layout.header)
        entries.pop("__metadata__")
        assert set(entries) == {chunks[index].name for index in layout.chunks}
        at = 0
        for index in layout.chunks:
            assert entries[chunks[index].name]["data_offsets"] == [
                at,
                at := at + chunks[index].size_bytes,
            ]
