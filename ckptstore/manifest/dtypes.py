"""What safetensors calls the types that the records name as torch does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Dtype:
    """A type's name in the format, and how many bytes an item takes."""

    name: str
    item_size_bytes: int


SAFETENSORS: Final = {  # By torch's names. One that is not here is stored as raw bytes.
    "bool": Dtype("BOOL", 1),
    "uint8": Dtype("U8", 1),
    "int8": Dtype("I8", 1),
    "float8_e4m3fn": Dtype("F8_E4M3", 1),
    "float8_e4m3fnuz": Dtype("F8_E4M3FNUZ", 1),
    "float8_e5m2": Dtype("F8_E5M2", 1),
    "float8_e5m2fnuz": Dtype("F8_E5M2FNUZ", 1),
    "float8_e8m0fnu": Dtype("F8_E8M0", 1),
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
FLOAT_WIDTHS: Final = {  # In bytes. Of a complex number, each part is one.
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 4,
    "complex128": 8,
}
