"""How long training stands still for a save in the background, next to a plain copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers.base import Go, Task
from benchmarks.peers.dcp import state_of


@contextmanager
def memcpy(task: Task) -> Iterator[Go]:
    state = state_of(task.size_bytes, task.tensors)
    copies = {name: tensor.clone() for name, tensor in state.items()}

    def go(key: str, size_bytes: int) -> None:
        for name, tensor in state.items():
            copies[name].copy_(tensor)

    yield go


@contextmanager
def background_save(task: Task) -> Iterator[Go]:
    """Measure ``save`` until it returns. The memory that it stages in is there from before."""
    from ckptstore.torch import Checkpointer

    state = state_of(task.size_bytes, task.tensors)
    with Checkpointer(f"{task.directory}/run") as checkpointer:
        checkpointer.save(0, state)
        checkpointer.wait()
        steps = iter(range(1, 1000))

        def go(key: str, size_bytes: int) -> None:
            if key == "object":
                checkpointer.save(next(steps), state)

        yield go


@contextmanager
def first_background_save(task: Task) -> Iterator[Go]:
    """Measure the first ``save`` of all, which gets its memory from the kernel."""
    from ckptstore.torch import Checkpointer

    state = state_of(task.size_bytes, task.tensors)
    with Checkpointer(f"{task.directory}/run") as checkpointer:

        def go(key: str, size_bytes: int) -> None:
            if key == "object":
                checkpointer.save(1, state)

        yield go
