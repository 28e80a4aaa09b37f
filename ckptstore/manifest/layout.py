"""Where things live. Every key an attempt writes holds its uid.

So a retry of the same step, or a process that wakes up long after its attempt was given up,
can never touch what another attempt wrote.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ckptstore.types import Key, parse_key

STORE_RECORD_KEY: Final = Key("ckptstore.json")
DATA_PREFIX: Final = "data/"
INCARNATION_MAX: Final = 999_999
STEP_MAX: Final = 999_999_999_999
RANK_MAX: Final = 999_999
RUN_LENGTH_MAX: Final = 100
TAG_LENGTH_MAX: Final = 100

_RUN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TAG: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{TAG_LENGTH_MAX - 1}}}")
_UID: Final = re.compile(r"i(\d{6})-s(\d{12})-a(\d{2})-([0-9a-f]{8})")
_DATA: Final = re.compile(r"data/[0-9a-f]{2}/([^/]+)/([^/]+)/\d{6}-\d{4}\.[a-z]+")
_DECISION: Final = re.compile(r"(\d{6})-(\d{12})-([^/]+)\.json")


class ShardKind(Enum):
    """What a data object holds, told by the end of its name."""

    TENSORS = "safetensors"
    ITEMS = "bytes"
    FILE = "file"
    PACKED = "packed"  # Any of them, compressed; the rank record says which.


@dataclass(frozen=True, slots=True, order=True)
class Uid:
    """The parts of an attempt's uid. They sort by incarnation, then step, then try."""

    incarnation: int
    step: int
    attempt: int
    nonce: str

    def __str__(self) -> str:
        return f"i{self.incarnation:06d}-s{self.step:012d}-a{self.attempt:02d}-{self.nonce}"


def parse_uid(text: str) -> Uid:
    """Return the parts of a uid, or raise ``ValueError``."""
    match = _UID.fullmatch(text)
    if match is None:
        raise ValueError(f"not the uid of an attempt: {text!r}")
    incarnation, step, attempt, nonce = match.groups()
    return Uid(int(incarnation), int(step), int(attempt), nonce)


def check_uid(text: str) -> str:
    """Return ``text`` if it is a well-formed uid, or raise ``ValueError``."""
    parse_uid(text)
    return text


def check_run(text: str) -> str:
    """Return ``text`` if it can name a run on every store and file system, or raise."""
    if not _RUN.fullmatch(text) or len(text) > RUN_LENGTH_MAX or text.endswith("."):
        raise ValueError(
            f"not a run name: {text!r}; use 1 to {RUN_LENGTH_MAX} letters, digits, '.', '_' and "
            "'-', starting with a letter or digit and not ending with '.'"
        )
    return text


def check_tag(text: str) -> str:
    """Return ``text`` if it can name a tag, or raise ``ValueError``."""
    if not _TAG.fullmatch(text):
        raise ValueError(
            f"not a tag: {text!r}; use 1 to {TAG_LENGTH_MAX} letters, digits, '.', '_' and '-', "
            "starting with a letter or digit"
        )
    return text


def check_step(step: int) -> int:
    """Return ``step`` if it fits the layout, or raise ``ValueError``."""
    if not 0 <= step <= STEP_MAX:
        raise ValueError(f"step must be from 0 to {STEP_MAX}: {step}")
    return step


def data_key(run: str, uid: str, rank: int, index: int, kind: ShardKind, *, fan_out: int) -> Key:
    """Return the key of a rank's ``index``-th shard, spread over ``fan_out`` directories.

    The directory comes first, because stores split hot key ranges by leading bytes; it is a
    stable hash, because they take long to do so and each save must find it done.
    """
    digest = hashlib.sha256(f"{uid}/{rank}/{index}".encode()).digest()
    spread = int.from_bytes(digest[:4]) % fan_out
    name = f"{rank:06d}-{index:04d}.{kind.value}"
    return parse_key(f"{DATA_PREFIX}{spread:02x}/{check_run(run)}/{check_uid(uid)}/{name}")


def data_prefixes(run: str | None) -> tuple[str, ...]:
    """Return prefixes that all data of a run, or of the whole store, lies under.

    Every directory is among them, whatever the store's fan-out: keys stay as they are when a
    checkpoint is copied from a store with another one.
    """
    if run is None:
        return (DATA_PREFIX,)
    return tuple(f"{DATA_PREFIX}{spread:02x}/{check_run(run)}/" for spread in range(256))


def owner_of_data(key: str) -> tuple[str, str]:
    """Return run and uid of the attempt that a data object belongs to, or raise ``ValueError``."""
    match = _DATA.fullmatch(key)
    if match is None:
        raise ValueError(f"not the key of a data object: {key!r}")
    return check_run(match.group(1)), check_uid(match.group(2))


def runs_prefix() -> str:
    return "runs/"


def run_prefix(run: str) -> str:
    return f"runs/{check_run(run)}/"


def incarnations_prefix(run: str) -> str:
    return f"{run_prefix(run)}incarnations/"


def incarnation_key(run: str, number: int) -> Key:
    if not 1 <= number <= INCARNATION_MAX:
        raise ValueError(f"incarnation must be from 1 to {INCARNATION_MAX}: {number}")
    return parse_key(f"{incarnations_prefix(run)}{INCARNATION_MAX - number:06d}-i{number:06d}.json")


def attempts_prefix(run: str) -> str:
    return f"{run_prefix(run)}attempts/"


def begin_key(run: str, uid: str) -> Key:
    return parse_key(f"{attempts_prefix(run)}{check_uid(uid)}/begin.json")


def rank_records_prefix(run: str, uid: str) -> str:
    return f"{attempts_prefix(run)}{check_uid(uid)}/rank-"


def rank_record_key(run: str, uid: str, rank: int) -> Key:
    return parse_key(f"{rank_records_prefix(run, uid)}{rank:06d}.json.zst")


def seat_key(run: str, uid: str, rank: int) -> Key:
    """Return where the one process says that it is this rank, where ranks are given by hand."""
    return parse_key(f"{attempts_prefix(run)}{check_uid(uid)}/seat-{rank:06d}")


def job_key(run: str, step: int, job: str) -> Key:
    """Return where the processes of a job, which share nothing but its id, find the attempt."""
    digest = hashlib.sha256(job.encode()).hexdigest()[:32]
    return parse_key(f"{run_prefix(run)}jobs/{check_step(step):012d}-{digest}.json")


def decisions_prefix(run: str) -> str:
    return f"{run_prefix(run)}decisions/"


def decision_key(run: str, uid: str) -> Key:
    """Return the one key under which this attempt is decided; the newest sort first."""
    parts = parse_uid(uid)
    newest_first = f"{INCARNATION_MAX - parts.incarnation:06d}-{STEP_MAX - parts.step:012d}"
    return parse_key(f"{decisions_prefix(run)}{newest_first}-{uid}.json")


def uid_of_decision(key: str) -> str:
    """Return whose decision lies under ``key``, or raise ``ValueError``."""
    match = _DECISION.fullmatch(key.rpartition("/")[2])
    if match is None:
        raise ValueError(f"not the key of a decision: {key!r}")
    return check_uid(match.group(3))


def retired_prefix(run: str) -> str:
    return f"{run_prefix(run)}retired/"


def retired_key(run: str, uid: str) -> Key:
    return parse_key(f"{retired_prefix(run)}{check_uid(uid)}")


def verified_prefix(run: str) -> str:
    return f"{run_prefix(run)}verified/"


def verified_key(run: str, uid: str, name: str) -> Key:
    return parse_key(f"{verified_prefix(run)}{check_uid(uid)}/{name}.json")


def sampled_prefix(run: str, uid: str) -> str:
    return f"{run_prefix(run)}sampled/{check_uid(uid)}/"


def sampled_key(run: str, uid: str, name: str) -> Key:
    return parse_key(f"{sampled_prefix(run, uid)}{name}.json")


def pins_prefix(run: str) -> str:
    return f"{run_prefix(run)}pins/"


def pin_key(run: str, uid: str, name: str) -> Key:
    return parse_key(f"{pins_prefix(run)}{check_uid(uid)}/{name}.json")


def tags_prefix(run: str) -> str:
    return f"{run_prefix(run)}tags/"


def tag_key(run: str, name: str) -> Key:
    return parse_key(f"{tags_prefix(run)}{check_tag(name)}.json")
