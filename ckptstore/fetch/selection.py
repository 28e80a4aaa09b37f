"""Which tensors, items or files of which ranks are wanted. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from ckptstore.errors import UsageError
from ckptstore.manifest.model import Manifest, Ready

NAMES_SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Shell patterns over names, and a rank; what is not given does not narrow anything."""

    patterns: tuple[str, ...] = ()
    rank: int | None = None

    def __contains__(self, name: str) -> bool:
        return not self.patterns or any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def records(self, manifest: Manifest) -> tuple[Ready, ...]:
        """Return the records of the wanted ranks, in the order of ranks.

        Raises ``UsageError`` for a rank that there is not, and for a pattern that no name in
        these records matches.
        """
        records = manifest.records
        if self.rank is not None:
            if self.rank >= len(records):
                raise UsageError(
                    f"{manifest.attempt.uid} was written by ranks 0 to {len(records) - 1}; "
                    f"there is no rank {self.rank}"
                )
            records = records[self.rank : self.rank + 1]
        names = sorted({name for record in records for name in _names(record)})
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                shown = ", ".join(names[:NAMES_SHOWN_MAX])
                raise UsageError(
                    f"--only {pattern!r} matches nothing in {manifest.attempt.uid}; it holds "
                    f"{len(names)} names: {shown}{', ...' if names[NAMES_SHOWN_MAX:] else ''}"
                )
        return records


def _names(record: Ready) -> set[str]:
    names = {tensor.name for tensor in record.tensors} | {item.name for item in record.items}
    return names | {file.path for file in record.files}
