"""Which tensors, items or files of which ranks are wanted. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from ckptstore.errors import UsageError
from ckptstore.manifest.model import Manifest, Ready

NAMES_SHOWN_MAX: Final = 5


# What a job keeps beside its model, by the names that torch, Lightning, DeepSpeed, Megatron and
# the trainers of Hugging Face give it.
_TRAINING_ANYWHERE: Final = re.compile(
    r"(^|.*_)optim(izer)?s?(_.*)?|exp_avg(_sq)?|momentum_buffer", re.IGNORECASE
)
_TRAINING_AT_TOP: Final = re.compile(
    r"((lr_)?scheduler|rng|rng_states?|.*_rng_state|random_states?|(train_)?dataloader|sampler"
    r"|(grad_|loss_)?scaler|step|epoch|global_step)s?",
    re.IGNORECASE,
)
_TRAINING_FILE: Final = re.compile(
    r"(.*[._-])?(optim|optimizer|optim_states?|rng_states?|random_states|scaler)([._-].*)?"
    r"\.(pt|pth|bin|pkl|json|safetensors|distcp)"
    r"|(.*[._-])?scheduler([._-].*)?\.(pt|pth|bin|pkl)"  # The .json are diffusion models'.
    r"|training_args\.bin|trainer_state\.json",
    re.IGNORECASE,
)
TOP_PARTS: Final = 2  # "app.optimizer...": what wraps the parts of a state has a name too.


def is_weight(name: str) -> bool:
    """Tell whether a model needs this, by its name: not what only training goes on from.

    Left out are optimizers, their moments, learning-rate schedulers, random states, data
    loaders, scalers and counters. Whatever else has a name belongs to the model.
    """
    *directories, last = name.split("/")
    if "/" in name or _TRAINING_FILE.fullmatch(last):
        parts = [*directories, *last.split(".")[:1]]
        return not (_TRAINING_FILE.fullmatch(last) or any(map(_TRAINING_ANYWHERE.fullmatch, parts)))
    parts = name.split(".")
    return not (
        any(map(_TRAINING_ANYWHERE.fullmatch, parts))
        or any(map(_TRAINING_AT_TOP.fullmatch, parts[:TOP_PARTS]))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Shell patterns over names, and a rank; what is not given does not narrow anything."""

    patterns: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    weights_only: bool = False
    rank: int | None = None

    def __contains__(self, name: str) -> bool:
        return (
            (not self.patterns or _matches(name, self.patterns))
            and not _matches(name, self.excluded)
            and (not self.weights_only or is_weight(name))
        )

    @property
    def narrows(self) -> bool:
        """Tell whether names are chosen at all."""
        return bool(self.patterns or self.excluded or self.weights_only)

    def records(self, manifest: Manifest) -> tuple[Ready, ...]:
        """Return the records of the wanted ranks, in the order of ranks.

        Raises ``UsageError`` for a rank that there is not, for a pattern that no name in these
        records matches, and if all patterns together leave nothing.
        """
        records = manifest.records
        uid = manifest.attempt.uid
        if self.rank is not None:
            if self.rank >= len(records):
                raise UsageError(
                    f"{uid} was written by ranks 0 to {len(records) - 1}; "
                    f"there is no rank {self.rank}"
                )
            records = records[self.rank : self.rank + 1]
        names = sorted({name for record in records for name in _names(record)})
        for option, patterns in (("--only", self.patterns), ("--not", self.excluded)):
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for name in names):
                    raise UsageError(
                        f"{option} {pattern!r} matches nothing in {uid}; it holds {_shown(names)}"
                    )
        if self.narrows and names and not any(name in self for name in names):
            raise UsageError(f"nothing of {uid} is left to restore; it holds {_shown(names)}")
        return records


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _shown(names: Sequence[str]) -> str:
    first = ", ".join(names[:NAMES_SHOWN_MAX])
    return f"{len(names)} names: {first}{', ...' if names[NAMES_SHOWN_MAX:] else ''}"


def _names(record: Ready) -> set[str]:
    names = {tensor.name for tensor in record.tensors} | {item.name for item in record.items}
    return names | {file.path for file in record.files}
