from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import UsageError
from ckptstore.torch.tensors import byte_view, bytes_between, dtype_name, dtype_named, is_plain


def value_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of the tensor's value, by way of a copy that owes nothing to ours."""
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return bytes(plain.reshape(-1).view(torch.uint8).tolist())


def joined(tensor: torch.Tensor, start: int, stop: int) -> bytes:
    return b"".join(bytes_between(tensor, start, stop))


BASE = torch.arange(120, dtype=torch.int16).reshape(4, 5, 6)
LAYOUTS = {
    "plain": BASE,
    "a view into a larger storage": BASE[1:3],
    "transposed": BASE.permute(2, 0, 1),
    "strided": BASE[:, ::2, 1:5],
    "one column": BASE[:, 3, 2],
    "expanded": BASE[:, :1, :].expand(4, 3, 6),
    "channels last": torch.arange(120.0).reshape(1, 4, 5, 6).to(memory_format=torch.channels_last),
    "lazily conjugated": torch.arange(24).reshape(4, 6).to(torch.complex64).mul(1j).conj(),
    "lazily negated": torch.arange(24).reshape(4, 6).to(torch.complex64).mul(1j).conj().imag,
    "of no dimension": torch.tensor(7.5, dtype=torch.float64),
    "of no element": torch.empty(0, 3),
    "a parameter": torch.nn.Parameter(torch.arange(12.0).reshape(3, 4)),
    "a bool": torch.tensor([True, False, True]),
    "bfloat16": torch.arange(9).to(torch.bfloat16),
    "float8": torch.arange(9).to(torch.float8_e5m2),
    "complex128": torch.arange(9).to(torch.complex128),
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_all_bytes_of_a_tensor_are_its_value(tensor: torch.Tensor) -> None:
    assert joined(tensor, 0, tensor.numel() * tensor.element_size()) == value_bytes(tensor)


@given(st.sampled_from(sorted(LAYOUTS)), st.data())
def test_any_range_of_bytes_is_that_range_of_its_value(name: str, data: st.DataObject) -> None:
    tensor = LAYOUTS[name]
    size = tensor.numel() * tensor.element_size()
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    assert joined(tensor, start, stop) == value_bytes(tensor)[start:stop]


@pytest.mark.parametrize(
    "name", ["plain", "a view into a larger storage", "a parameter", "bfloat16", "float8"]
)
def test_memory_that_is_in_order_is_not_copied(name: str) -> None:
    tensor = LAYOUTS[name]
    (view,) = bytes_between(tensor, 4, 8)
    assert torch.frombuffer(view, dtype=torch.uint8).data_ptr() == tensor.data_ptr() + 4


def test_of_anything_else_only_the_range_is_copied() -> None:
    tensor = torch.arange(1 << 20, dtype=torch.uint8).reshape(1024, 1024).T
    views = bytes_between(tensor, 1024 * 10 + 5, 1024 * 12 + 7)
    assert sum(len(memoryview(view.obj)) for view in views) <= 3 * 1024


def test_the_view_of_a_plain_tensor_writes_into_it() -> None:
    tensor = torch.zeros(4, dtype=torch.float32)
    byte_view(tensor)[4:8] = b"\x00\x00\x80?"
    assert tensor.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_view_keeps_the_memory_alive() -> None:
    view = byte_view(torch.full((1000,), 7, dtype=torch.uint8))
    torch.zeros(1000, dtype=torch.uint8)
    assert bytes(view) == b"\x07" * 1000


@pytest.mark.parametrize(
    "name", ["transposed", "strided", "lazily conjugated", "lazily negated", "channels last"]
)
def test_what_is_not_plain_is_never_filled_in_place(name: str) -> None:
    assert not is_plain(LAYOUTS[name])


@pytest.mark.parametrize(
    "tensor", [torch.eye(3).to_sparse(), torch.empty(3, device="meta")], ids=["sparse", "meta"]
)
def test_tensors_without_dense_data_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(UsageError, match="only dense tensors"):
        bytes_between(tensor, 0, 4)


def test_dtypes_have_names_that_lead_back() -> None:
    assert dtype_named(dtype_name(torch.float8_e4m3fn)) is torch.float8_e4m3fn
    for name in ("float1024", "Tensor"):
        with pytest.raises(UsageError, match="no dtype"):
            dtype_named(name)
