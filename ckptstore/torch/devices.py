"""The device that training computes on, if there is one, in every torch that we support."""

from __future__ import annotations

from typing import Any

import torch

# torch.accelerator came with 2.6; before it, CUDA (or ROCm under its name) is what there is.
_accelerator: Any = getattr(torch, "accelerator", torch.cuda)


def current_stream() -> torch.Stream | None:
    """Return the stream on which this thread's device work is queued, if there is a device."""
    stream: torch.Stream | None = None
    if _accelerator.is_available():
        stream = _accelerator.current_stream()
    return stream


def synchronize(device: torch.device) -> None:
    """Return once all that is queued on the device is done."""
    _accelerator.synchronize(device)
