"""Checkpoints of torch training jobs: a storage backend for ``torch.distributed.checkpoint``."""

from __future__ import annotations

from ckptstore.torch.checkpointer import Checkpointer
from ckptstore.torch.reader import StorageReader
from ckptstore.torch.writer import StorageWriter

__all__ = ["Checkpointer", "StorageReader", "StorageWriter"]
