"""Non-tensor items: never let a stored pickle name code that nobody declared safe.

DCP stores these with ``torch.save`` and reads them back with ``torch.load(weights_only=False)``,
which runs whatever a pickle says. A digest proves that the bytes are the ones that were saved,
not who saved them. So before a planner gets to see an item, the names in it are read, without
running anything, and held against a list.
"""

from __future__ import annotations

import io
import pickletools
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Iterator
from functools import cache
from typing import Final

import torch
from torch import _weights_only_unpickler

from ckptstore.errors import UntrustedCodeError
from ckptstore.types import Buffer

# Plain values of the standard library and numpy arrays: what random number generators,
# schedulers and data loaders keep. None of them runs code of the caller's choice.
_SAFE: Final = frozenset(
    {
        *(f"builtins.{name}" for name in ("bool", "bytes", "dict", "float", "frozenset", "int")),
        *(f"builtins.{name}" for name in ("list", "range", "slice", "str", "tuple")),
        *(f"collections.{name}" for name in ("defaultdict", "deque")),
        *(f"datetime.{name}" for name in ("date", "datetime", "time", "timedelta", "timezone")),
        *(f"pathlib.{name}" for name in ("PosixPath", "PurePosixPath")),
        *(f"pathlib._local.{name}" for name in ("PosixPath", "PurePosixPath")),
        *(f"numpy.{name}" for name in ("dtype", "ndarray")),
        *(f"numpy.core.multiarray.{name}" for name in ("_reconstruct", "scalar")),
        *(f"numpy._core.multiarray.{name}" for name in ("_reconstruct", "scalar")),
    }
)


def checked_item(name: str, data: Buffer, trusted: frozenset[str]) -> io.BytesIO:
    """Return the item for a planner to load, or raise ``UntrustedCodeError``.

    ``trusted`` are names (``package.module.Name``) to allow beside those that
    ``torch.load(weights_only=True)`` allows and a few plain types.
    """
    allowed = _allowed() | trusted
    refused = sorted({used for used in _names(name, data) if used not in allowed})
    if refused:
        raise UntrustedCodeError(
            f"item {name!r} names {', '.join(refused)}, which could run code; nothing was run. If "
            f"you trust whoever saved it: StorageReader(..., trusted_globals={refused!r})"
        )
    return io.BytesIO(data)


@cache
def _allowed() -> frozenset[str]:
    return _SAFE | frozenset(_weights_only_unpickler._get_allowed_globals())


def _names(name: str, data: Buffer) -> Iterator[str]:
    """Yield the full name of every global that the pickle looks up.

    All lookups of the protocol that ``torch.save`` writes name their global in place. Newer
    protocols can take the name from the stack, which only running would tell, so they and
    everything else that torch does not write are refused.
    """
    try:
        for opcode, argument, _ in pickletools.genops(_pickle(name, data)):
            if opcode.name in ("GLOBAL", "INST"):
                module, _, attribute = str(argument).partition(" ")
                if not attribute or " " in attribute or "." in attribute:
                    raise UntrustedCodeError(f"item {name!r} names {argument!r}, which is refused")
                # Protocol 2 has the names of Python 2, and unpickling translates them like this.
                today = (IMPORT_MAPPING.get(module, module), attribute)
                yield ".".join(NAME_MAPPING.get((module, attribute), today))
            elif opcode.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4", "PERSID"):
                raise UntrustedCodeError(
                    f"item {name!r} hides what it names ({opcode.name}, which torch.save does not "
                    "write); nothing was run"
                )
    except (ValueError, IndexError, UnicodeError) as error:
        raise UntrustedCodeError(
            f"item {name!r} is not a pickle that torch.save writes, and such are not run: {error}"
        ) from error


def _pickle(name: str, data: Buffer) -> bytes:
    """Return the pickle inside the archive, as torch's own reader would find it.

    With the same reader there is no second opinion about which of several records counts.
    Older formats, and archives of scripted code, hold more than one pickle: refused.
    """
    if bytes(data[:4]) != b"PK\x03\x04":
        raise UntrustedCodeError(
            f"item {name!r} was not written by torch.save; its format can run code"
        )
    try:
        archive = torch._C.PyTorchFileReader(io.BytesIO(data))
        if "constants.pkl" in archive.get_all_records():
            raise UntrustedCodeError(f"item {name!r} is an archive of scripted code")
        return bytes(archive.get_record("data.pkl"))
    except RuntimeError as error:
        raise UntrustedCodeError(
            f"item {name!r} is not an archive that torch.save writes: {error}"
        ) from error
