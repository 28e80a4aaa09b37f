"""What tests of the torch backend share: stores of their own, failures unwrapped, states."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from ckptstore.clock import Deadline
from ckptstore.commit.catalog import CheckpointInfo, list_checkpoints
from ckptstore.load import find_checkpoint, read_manifest
from ckptstore.location import parse_run
from ckptstore.manifest.model import Manifest
from ckptstore.opening import opened_store
from ckptstore.runtime import run_sync
from ckptstore.settings import CommitSettings, Settings, TransferSettings
from ckptstore.torch import StorageReader, StorageWriter

# Small parts, so that small tensors are sent and read in many.
SMALL = Settings(
    transfer=TransferSettings(block_size_bytes=64, part_size_bytes=256, in_flight_bytes_max=1024),
    commit=CommitSettings(poll_s_first=0.002, poll_s_max=0.05, watch_s=0.1),
)
_names = itertools.count()


def fresh_url() -> str:
    """The URL of a run in a store in memory that nobody else uses."""
    return f"memory://test-{next(_names)}/prefix/llama"


def save(state: dict[str, Any], writer: StorageWriter, **options: Any) -> Metadata:  # noqa: ANN401
    """``dcp.save`` in a world of one, raising what the rank raised."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            metadata: Metadata = dcp_save(state, storage_writer=writer, **options)
            return metadata
    except CheckpointException as error:
        raise failure(error) from None


def load(state: dict[str, Any], reader: StorageReader, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """``dcp.load`` in a world of one, raising what the rank raised."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            dcp_load(state, storage_reader=reader, **options)
    except CheckpointException as error:
        raise failure(error) from None
    return state


def failure(error: CheckpointException) -> BaseException:
    """Return what the lowest failed rank raised."""
    return error.failures[min(error.failures)][0]


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    """Return what makes two tensors the same, also where NaNs and signed zeros are about."""
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tuple(tensor.shape), data


def random_bits(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Return a tensor whose every byte was drawn at random, except that bools are bools."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    return (
        (raw % 2).bool().reshape(shape) if dtype == torch.bool else raw.view(dtype).reshape(shape)
    )


def manifest_of(url: str) -> Manifest:
    async def read() -> Manifest:
        location = parse_run(url)
        async with opened_store(location.store, Settings()) as store:
            commit = await find_checkpoint(store, location.run, location.selector)
            return await read_manifest(store, commit)

    return run_sync(read, timeout_s=30)


def checkpoints_of(url: str) -> list[CheckpointInfo]:
    async def look() -> list[CheckpointInfo]:
        location = parse_run(url)
        async with (
            opened_store(location.store, Settings()) as store,
            Deadline.after(30).enforce("ls"),
        ):
            return await list_checkpoints(store, location.run)

    return run_sync(look, timeout_s=30)
