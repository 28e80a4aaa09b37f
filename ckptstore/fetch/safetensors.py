"""The head of a safetensors file: what tensors it holds, and where. Pure."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ckptstore.errors import IntegrityError, UsageError

ALIGNMENT: Final = 8
RESERVED_NAME: Final = "__metadata__"


@dataclass(frozen=True, slots=True)
class Dtype:
    """What safetensors calls a type of numbers, and how many bytes one takes."""

    name: str
    item_bytes: int


DTYPES: Final = {  # By torch's names, as the records have them.
    "bool": Dtype("BOOL", 1),
    "uint8": Dtype("U8", 1),
    "int8": Dtype("I8", 1),
    "float8_e4m3fn": Dtype("F8_E4M3", 1),
    "float8_e4m3fnuz": Dtype("F8_E4M3FNUZ", 1),
    "float8_e5m2": Dtype("F8_E5M2", 1),
    "float8_e5m2fnuz": Dtype("F8_E5M2FNUZ", 1),
    "uint16": Dtype("U16", 2),
    "int16": Dtype("I16", 2),
    "float16": Dtype("F16", 2),
    "bfloat16": Dtype("BF16", 2),
    "uint32": Dtype("U32", 4),
    "int32": Dtype("I32", 4),
    "float32": Dtype("F32", 4),
    "uint64": Dtype("U64", 8),
    "int64": Dtype("I64", 8),
    "float64": Dtype("F64", 8),
    "complex64": Dtype("C64", 8),
}


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor to be stored: all of one, or a chunk that stands for one."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def item_bytes(self) -> int:
        return dtype_of(self.name, self.dtype).item_bytes

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes


def dtype_of(tensor: str, dtype: str) -> Dtype:
    try:
        return DTYPES[dtype]
    except KeyError:
        raise UsageError(
            f"{tensor} is of type {dtype}, which safetensors does not have; use --format native"
        ) from None


def file_head(slots: Sequence[Slot], metadata: Mapping[str, str]) -> tuple[bytes, list[int]]:
    """Return the bytes before the data, and at which byte of the file each tensor begins."""
    entries: dict[str, object] = {RESERVED_NAME: dict(metadata)}
    starts: list[int] = []
    at = 0
    for slot in slots:
        if slot.name in entries:
            raise IntegrityError(f"safetensors cannot hold {slot.name!r} twice in one file")
        starts.append(at)
        at += slot.size_bytes
        entries[slot.name] = {
            "dtype": dtype_of(slot.name, slot.dtype).name,
            "shape": list(slot.shape),
            "data_offsets": [starts[-1], at],
        }
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    head = struct.pack("<Q", len(header)) + header
    return head, [len(head) + start for start in starts]
