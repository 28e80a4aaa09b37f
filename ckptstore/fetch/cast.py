"""Numbers of one floating-point type become those of another, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ckptstore.errors import SettingsError, UsageError
from ckptstore.manifest.dtypes import SAFETENSORS

if TYPE_CHECKING:
    from types import ModuleType

FLOATS: Final = ("float64", "float32", "float16", "bfloat16")
_NUMPY: Final = {"float64": "<f8", "float32": "<f4", "float16": "<f2"}


@dataclass(frozen=True, slots=True)
class Cast:
    """What becomes of the numbers of the tensor ``name``; both types are of ``FLOATS``."""

    name: str
    source: str
    target: str

    @property
    def source_bytes(self) -> int:
        return SAFETENSORS[self.source].item_size_bytes

    @property
    def target_bytes(self) -> int:
        return SAFETENSORS[self.target].item_size_bytes

    def placed_bytes(self, size_bytes: int) -> int:
        return size_bytes // self.source_bytes * self.target_bytes

    def __call__(self, data: memoryview) -> memoryview:
        """Return the numbers, each rounded to the nearest that the target has, ties to even.

        Numbers of 64 bits are rounded to 32 bits first. Raises ``UsageError`` for a number that
        the target has no room for: it would silently become infinite.
        """
        numpy = require_numpy()
        with numpy.errstate(over="ignore"):
            numbers = as_float32(numpy, data, self.source)
            cast = _from_float32(numpy, numbers, self.target)
        if self.target == "float16" and bool(
            (numpy.isinf(cast) & numpy.isfinite(numbers)).any()  # Of bfloat16 the range is enough.
        ):
            raise UsageError(
                f"{self.name} holds numbers beyond those of float16; restore it as bf16 or fp32"
            )
        return memoryview(cast.view(numpy.uint8))


def cast_of(name: str, source: str, target: str | None) -> Cast | None:
    """Return what makes a tensor one of type ``target``; only floating-point ones change."""
    if target is None or source == target or source not in FLOATS:
        return None
    return Cast(name, source, target)


def require_numpy() -> ModuleType:
    """Return numpy, or raise ``SettingsError`` saying how to get it."""
    try:
        import numpy
    except ImportError as error:
        raise SettingsError(
            "--dtype needs numpy, which is not installed: pip install numpy"
        ) from error
    return numpy


def as_float32(numpy: ModuleType, data: memoryview, source: str) -> Any:  # noqa: ANN401
    """Return the numbers as an array; ``source`` is one of ``FLOATS``."""
    if source == "bfloat16":
        halves = numpy.frombuffer(data, "<u2").astype("<u4")
        return (halves << 16).view("<f4")
    return numpy.frombuffer(data, _NUMPY[source]).astype("<f4")


def _from_float32(numpy: ModuleType, numbers: Any, target: str) -> Any:  # noqa: ANN401
    if target != "bfloat16":
        return numbers.astype(_NUMPY[target])
    bits = numbers.view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40  # Rounding could make a NaN infinite.
    return numpy.where(numpy.isnan(numbers), quiet, rounded).astype("<u2")
