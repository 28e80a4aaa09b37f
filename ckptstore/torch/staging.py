"""Copies of what is to be saved, so that training may go on while they are sent.

The memory is kept and used again from save to save: at most one copy of what this rank saves.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from ckptstore.torch.devices import synchronize

_Place: TypeAlias = tuple[str, tuple[int, ...]]


class Staging:
    def __init__(self) -> None:
        self._buffers: dict[_Place, torch.Tensor] = {}

    @property
    def size_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def staged(self, plan: SavePlan, planner: DefaultSavePlanner) -> StagedPlanner:
        """Copy all that ``plan`` names, and return a planner that hands out the copies.

        When this returns, the state may change. The copies are good until the next call.
        """
        copies: dict[_Place, torch.Tensor | io.BytesIO] = {}
        copying_devices: set[torch.device] = set()
        for item in plan.items:
            data = planner.resolve_data(item)
            if isinstance(data, torch.Tensor):
                copying_devices.add(data.device)
                data = self._copied(_place(item), data.detach())
            copies[_place(item)] = data
        for device in copying_devices - {torch.device("cpu")}:
            synchronize(device)
        self._buffers = {
            place: copy for place, copy in copies.items() if isinstance(copy, torch.Tensor)
        }
        return StagedPlanner(copies)

    def _copied(self, place: _Place, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(place)
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            on_device = tensor.device.type != "cpu"
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_device)
        return buffer.copy_(tensor, non_blocking=True)


@dataclass(frozen=True)
class StagedPlanner(DefaultSavePlanner):
    """Resolves the items of a plan to their staged copies."""

    copies: dict[_Place, torch.Tensor | io.BytesIO]

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        return self.copies[_place(write_item)]


def _place(item: WriteItem) -> _Place:
    if item.type == WriteItemType.BYTE_IO:
        return item.index.fqn, ()
    return item.index.fqn, tuple(item.tensor_data.chunk.offsets) if item.tensor_data else ()
