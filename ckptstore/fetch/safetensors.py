"""The head of a safetensors file: what tensors it holds, and where. Pure."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ckptstore.errors import IntegrityError
from ckptstore.manifest.dtypes import SAFETENSORS
from ckptstore.manifest.model import TensorEntry

ALIGNMENT_BYTES: Final = 8
RESERVED_NAME: Final = "__metadata__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A tensor to be stored: all of one, or a chunk that stands for one.

    A type that the format has no name for is stored as raw bytes, with one axis more, so that
    no reader can take them for numbers of another type.
    """

    name: str
    dtype: str
    item_bytes: int
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes

    def entry(self, start: int) -> dict[str, object]:
        dtype = SAFETENSORS.get(self.dtype)
        return {
            "dtype": dtype.name if dtype else "U8",
            "shape": self.shape if dtype else (*self.shape, self.item_bytes),
            "data_offsets": (start, start + self.size_bytes),
        }


def chunk_slot(chunk: TensorEntry) -> Slot:
    """Return the chunk as a tensor of its own, or raise because its bytes are not as many."""
    size_bytes, count = chunk.stop - chunk.start, math.prod(chunk.sizes)
    known = SAFETENSORS.get(chunk.dtype)
    item_bytes = known.item_size_bytes if known else size_bytes // (count or 1)
    if count * item_bytes != size_bytes:
        raise IntegrityError(
            f"a chunk of {chunk.name} takes {size_bytes} bytes, and {count} items of type "
            f"{chunk.dtype} do not"
        )
    return Slot(name=chunk.name, dtype=chunk.dtype, item_bytes=item_bytes, shape=chunk.sizes)


def file_head(slots: Sequence[Slot], metadata: Mapping[str, str]) -> tuple[bytes, list[int]]:
    """Return the bytes before the data, and at which byte of the file each tensor begins."""
    entries: dict[str, object] = {RESERVED_NAME: dict(metadata)}
    starts: list[int] = []
    at = 0
    for slot in slots:
        if slot.name in entries:
            raise IntegrityError(f"safetensors cannot hold {slot.name!r} twice in one file")
        starts.append(at)
        entries[slot.name] = slot.entry(at)
        at += slot.size_bytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % ALIGNMENT_BYTES)
    head = struct.pack("<Q", len(header)) + header
    return head, [len(head) + start for start in starts]
