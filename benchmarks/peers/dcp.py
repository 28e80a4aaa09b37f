"""Backends of torch.distributed.checkpoint, in one process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.peers.base import REGION, Go, Task
from benchmarks.peers.ours import settings_for

if TYPE_CHECKING:
    from torch import Tensor

Storage: TypeAlias = Callable[[Task, str], Any]
"""Makes a writer or a reader for the state of that name."""


def state_of(size_bytes: int, tensors: int) -> dict[str, Tensor]:
    """Return a state dict of that size in bfloat16, with values that no two tensors share."""
    import torch

    numbers = size_bytes // 2 // tensors
    return {
        f"layers.{index}.weight": torch.full((numbers,), float(index % 100), dtype=torch.bfloat16)
        for index in range(tensors)
    }


def saver(writer: Storage) -> Callable[[Task], Any]:
    @contextmanager
    def save(task: Task) -> Iterator[Go]:
        states = _states(task)

        def go(key: str, size_bytes: int) -> None:
            _save(states[size_bytes], writer(task, key))

        with _quiet():
            yield go

    return save


def loader(writer: Storage, reader: Storage) -> Callable[[Task], Any]:
    """Return a workload that loads what it saved before, into memory that is there."""

    @contextmanager
    def load(task: Task) -> Iterator[Go]:
        from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

        states = _states(task)

        def go(key: str, size_bytes: int) -> None:
            dcp_load(states[size_bytes], storage_reader=reader(task, key), no_dist=True)

        with _quiet():
            for key, size_bytes in (("warm-up", task.warm_up_bytes), ("object", task.size_bytes)):
                _save(states[size_bytes], writer(task, key))
            for state in states.values():
                for tensor in state.values():
                    tensor.zero_()
            yield go
            for index, tensor in enumerate(states[task.size_bytes].values()):
                if not bool((tensor == float(index % 100)).all()):
                    raise RuntimeError(f"{task.peer} loaded something else than was saved")

    return load


def our_writer(task: Task, key: str) -> Any:  # noqa: ANN401
    from ckptstore.torch import StorageWriter

    return StorageWriter(_our_run(task, key), step=_step(key), settings=settings_for(task))


def our_reader(task: Task, key: str) -> Any:  # noqa: ANN401
    from ckptstore.torch import StorageReader

    return StorageReader(f"{_our_run(task, key)}@{_step(key)}", settings=settings_for(task))


def s3torch_writer(task: Task, key: str) -> Any:  # noqa: ANN401
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3StorageWriter

    config = S3ClientConfig(part_size=task.part_size_bytes, force_path_style=True)
    return S3StorageWriter(REGION, f"s3://{task.bucket}/{key}", s3client_config=config)


def s3torch_reader(task: Task, key: str) -> Any:  # noqa: ANN401
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3StorageReader

    config = S3ClientConfig(part_size=task.part_size_bytes, force_path_style=True)
    return S3StorageReader(REGION, f"s3://{task.bucket}/{key}", s3client_config=config)


def fsspec_writer(task: Task, key: str) -> Any:  # noqa: ANN401
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    return FsspecWriter(f"s3://{task.bucket}/{key}", **_s3fs_options(task))


def fsspec_reader(task: Task, key: str) -> Any:  # noqa: ANN401
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    return FsspecReader(f"s3://{task.bucket}/{key}", **_s3fs_options(task))


def file_writer(task: Task, key: str) -> Any:  # noqa: ANN401
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    return FileSystemWriter(Path(task.directory) / "filesystem" / key)


def file_reader(task: Task, key: str) -> Any:  # noqa: ANN401
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    return FileSystemReader(Path(task.directory) / "filesystem" / key)


def _our_run(task: Task, key: str) -> str:
    """Return one run, as in a job; in a directory two, so that their sizes can be told apart."""
    return f"s3://{task.bucket}/ckptstore/run" if task.bucket else f"{task.directory}/{key}/run"


def _step(key: str) -> int:
    return int(key == "object")


def _s3fs_options(task: Task) -> dict[str, Any]:
    return {"endpoint_url": task.endpoint, "key": "test", "secret": "test"}


def _states(task: Task) -> dict[int, dict[str, Tensor]]:
    return {
        task.warm_up_bytes: state_of(task.warm_up_bytes, 1),
        task.size_bytes: state_of(task.size_bytes, task.tensors),
    }


def _save(state: dict[str, Tensor], writer: Any) -> None:  # noqa: ANN401
    from torch.distributed.checkpoint.state_dict_saver import save

    save(state, storage_writer=writer, no_dist=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let DCP's word that there is one process only, and its deprecations, be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
