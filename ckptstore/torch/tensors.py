"""The memory of tensors as bytes, without a copy wherever there is one to avoid."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ckptstore.errors import UsageError


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """Undo ``dtype_name``, or raise ``UsageError`` because this torch has no such type."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"torch {torch.__version__} has no dtype {name!r}; use a newer one")
    return dtype


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether the tensor's own memory on this host is its value, byte for byte."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def byte_view(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a plain tensor, writable and kept alive by the view."""
    # Not reshape(-1): of a single element that keeps a stride, which nothing can view as bytes.
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def bytes_between(tensor: torch.Tensor, start: int, stop: int) -> list[memoryview]:
    """Return bytes ``[start, stop)`` of the tensor's elements in order, as pieces.

    Memory that is in order on this host is not copied. Of anything else (strided, on a
    device, lazily conjugated) only these elements are, never the whole tensor.
    """
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise UsageError(
            f"cannot save a tensor of layout {tensor.layout} on {tensor.device}: "
            "only dense tensors that hold data"
        )
    size = tensor.element_size()
    first, last = start // size, -(-stop // size)
    views = [byte_view(_on_host(run)) for run in _runs(tensor.detach(), first, last)]
    if views:
        views[-1] = views[-1][: len(views[-1]) - (last * size - stop)]
        views[0] = views[0][start - first * size :]
    return views


def _on_host(run: torch.Tensor) -> torch.Tensor:
    return run.resolve_conj().resolve_neg().contiguous().cpu()


def _runs(tensor: torch.Tensor, start: int, stop: int) -> Iterator[torch.Tensor]:
    """Yield sub-tensors that make up elements ``[start, stop)``, in order."""
    if start >= stop:
        return
    if tensor.is_contiguous():
        yield tensor.reshape(-1)[start:stop]
        return
    row = tensor[0].numel()
    first, last = -(-start // row), stop // row
    if first > last:  # All of it lies inside one row.
        yield from _runs(tensor[last], start - last * row, stop - last * row)
        return
    if first * row > start:
        yield from _runs(tensor[first - 1], start - (first - 1) * row, row)
    if first < last:
        yield tensor[first:last]
    if last * row < stop:
        yield from _runs(tensor[last], 0, stop - last * row)
