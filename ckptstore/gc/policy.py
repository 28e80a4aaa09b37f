"""Which committed checkpoints a policy keeps. Pure: no I/O, no clock, no store."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, TypeAlias

from ckptstore.errors import UsageError
from ckptstore.manifest.layout import parse_uid

Metrics: TypeAlias = Mapping[str, float]

_BEST: Final = re.compile(r"(.+?):(\d+)(?::(min|max))?")


@dataclass(frozen=True, slots=True)
class KeepBest:
    """Keep the ``count`` checkpoints with the lowest value of a metric, or the highest."""

    metric: str
    count: int
    highest: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"keep the best by {self.metric}: at least 1, not {self.count}")

    def __str__(self) -> str:
        return f"{self.metric}:{self.count}:{'max' if self.highest else 'min'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What to keep; a checkpoint that no rule keeps is let go of. Without a rule, all are kept.

    ``keep_last`` keeps that many of the newest checkpoints, ``keep_every`` the newest one of
    each step that it divides, ``keep_tagged`` those with a tag. Tagged ones are kept in any
    case; ``keep_tagged`` is for those who want nothing else. Only committed checkpoints count,
    and with ``only_verified`` only those that a full verify found intact; what is newer than
    the newest of them is kept until it was verified too.
    """

    keep_last: int | None = None
    keep_every: int | None = None
    keep_best: tuple[KeepBest, ...] = ()
    keep_tagged: bool = False
    only_verified: bool = False

    def __post_init__(self) -> None:
        for name in ("keep_last", "keep_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1: {value}")

    @property
    def keeps_all(self) -> bool:
        return replace(self, only_verified=False) == KEEP_ALL

    def kept(
        self, checkpoints: Mapping[str, Metrics | None], verified: Collection[str] = ()
    ) -> dict[str, list[str]]:
        """Return which checkpoints the rules keep, and why, by uid.

        ``checkpoints`` has the metrics of each; ``None`` where they cannot be known, which
        keeps the checkpoint as long as a rule asks for the best. ``verified`` are those that
        were found intact.
        """
        reasons: dict[str, list[str]] = {}
        newest_first = sorted(checkpoints, key=parse_uid, reverse=True)
        if self.keeps_all:
            return {uid: ["no retention rule was given"] for uid in newest_first}
        if self.only_verified:
            for uid in takewhile(lambda uid: uid not in verified, newest_first):
                reasons[uid] = ["not verified yet, and newer than what is"]
            newest_first = [uid for uid in newest_first if uid in verified]
        for place, uid in enumerate(newest_first[: self.keep_last or 0], start=1):
            reasons.setdefault(uid, []).append(f"number {place} of the last {self.keep_last}")
        for uid in _every(newest_first, self.keep_every):
            reasons.setdefault(uid, []).append(f"every {self.keep_every} steps")
        for best in self.keep_best:
            for uid, reason in _best(newest_first, checkpoints, best):
                reasons.setdefault(uid, []).append(reason)
        return reasons


KEEP_ALL: Final = RetentionPolicy()


def parse_keep_best(text: str) -> KeepBest:
    """Return the rule that ``METRIC:N`` or ``METRIC:N:max`` means."""
    match = _BEST.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is no rule for the best; write METRIC:N for the N lowest (loss:3) or "
            "METRIC:N:max for the N highest (accuracy:3:max)"
        )
    return KeepBest(match.group(1), int(match.group(2)), match.group(3) == "max")


def _every(newest_first: Sequence[str], steps: int | None) -> list[str]:
    newest: dict[int, str] = {}
    for uid in newest_first:
        step = parse_uid(uid).step
        if steps is not None and step % steps == 0:
            newest.setdefault(step, uid)
    return list(newest.values())


def _best(
    newest_first: Sequence[str], checkpoints: Mapping[str, Metrics | None], best: KeepBest
) -> list[tuple[str, str]]:
    """Return the best and their reasons; of equals, the newer one is better."""
    values: dict[str, float] = {}
    unknown: list[tuple[str, str]] = []
    for uid in newest_first:
        metrics = checkpoints[uid]
        if metrics is None:
            unknown.append((uid, f"its {best.metric} cannot be read"))
        elif best.metric in metrics:
            values[uid] = metrics[best.metric]
    ranked = sorted(values, key=lambda uid: -values[uid] if best.highest else values[uid])
    return unknown + [
        (uid, f"number {place} by {best.metric} ({values[uid]:g})")
        for place, uid in enumerate(ranked[: best.count], start=1)
    ]
