"""What to measure, as data: ``conf/*.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from benchmarks.peers import PEERS
from benchmarks.peers.base import MIB

CONF: Final = Path(__file__).parent / "conf"


class Series(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload, done by several peers in turn, in the sizes given.

    ``store`` is the sink, SeaweedFS, a directory on disk or one in memory. ``baseline`` is the
    peer whose cost is 1.
    """

    name: str
    workload: str
    store: Literal["sink", "seaweedfs", "disk", "memory"]
    peers: tuple[str, ...]
    baseline: str = ""
    sizes_mib: tuple[float, ...] = ()
    tensors: tuple[int, ...] = (1,)
    bytes_per_tensor: int = 0  # Instead of sizes.
    warm_up_mib: float = 16
    in_flight: int = 8
    part_size_mib: int = 16
    one_core: bool = True
    rounds: int = 0  # Instead of what holds for all series.

    def __post_init__(self) -> None:
        for peer in self.peers:
            if peer not in PEERS[self.workload]:
                raise ValueError(f"{self.name}: nobody called {peer!r} does {self.workload!r}")

    def cases(self) -> list[tuple[int, int]]:
        """Return sizes in bytes and numbers of tensors."""
        if self.bytes_per_tensor:
            return [(count * self.bytes_per_tensor, count) for count in self.tensors]
        return [(int(mib * MIB), count) for mib in self.sizes_mib for count in self.tensors]


class Conf(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    rounds: int
    series: tuple[Series, ...]


def read_conf(name: str) -> Conf:
    return msgspec.toml.decode((CONF / f"{name}.toml").read_bytes(), type=Conf)
