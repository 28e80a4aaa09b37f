from __future__ import annotations

import collections
import datetime
import io
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ckptstore.errors import UntrustedCodeError
from ckptstore.torch.items import checked_item


class Trap:
    """Unpickling this makes a directory, which proves that something was run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def saved(value: object, **options: Any) -> bytes:  # noqa: ANN401
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def archive_of(data: bytes) -> bytes:
    """An archive as torch.save writes it, with another pickle in it."""
    source, target = zipfile.ZipFile(io.BytesIO(saved(None))), io.BytesIO()
    with zipfile.ZipFile(target, "w") as out:
        for name in source.namelist():
            out.writestr(name, data if name.endswith("data.pkl") else source.read(name))
    return target.getvalue()


HARMLESS: dict[str, object] = {
    "numbers and strings": {"epoch": 3, "loss": 0.25, "name": "träning", "big": 1 << 2100},
    "nested": [(1, None, True), {2: b"bytes"}, {3, 4}, frozenset({5}), 1j, bytearray(b"x")],
    "python's random state": random.Random(7).getstate(),
    "numpy's random state": np.random.RandomState(7).get_state(),
    "a numpy generator's state": np.random.default_rng(7).bit_generator.state,
    "numpy scalars": [np.float32(1.5), np.int64(7), np.bool_(True)],
    "numpy arrays": (np.arange(6, dtype=np.uint32).reshape(2, 3), np.array(["a", "b"])),
    "a scheduler": torch.optim.lr_scheduler.StepLR(
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1), 10
    ).state_dict(),
    "collections": [
        collections.OrderedDict(a=1),
        collections.defaultdict(list, a=[1]),
        collections.deque([1], 5),
        collections.Counter("aab"),
    ],
    "times": [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), datetime.timedelta(3)],
    "a path": Path("a/b"),
    "torch's plain values": [torch.bfloat16, torch.Size([1, 2]), torch.device("cpu")],
    "tensors": (torch.arange(3), torch.nn.Parameter(torch.ones(2)), torch.tensor(1.0)),
    "types": [int, str, range(3), slice(1, 2)],
}


@pytest.mark.parametrize("value", HARMLESS.values(), ids=HARMLESS)
def test_what_training_states_hold_is_loaded(value: object) -> None:
    found = torch.load(checked_item("item", saved(value), frozenset()), weights_only=False)
    assert pickle.dumps(found) == pickle.dumps(value) or str(found) == str(value)


def test_a_name_that_is_not_known_to_be_safe_is_not_run(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    with pytest.raises(UntrustedCodeError, match=r"'sched' names posix\.mkdir.*trusted_globals"):
        checked_item("sched", saved({"deep": [Trap(trap)]}), frozenset())
    assert not trap.exists()
    torch.load(io.BytesIO(saved(Trap(trap))), weights_only=False)
    assert trap.exists()  # It was a trap.


def test_a_name_that_the_user_trusts_is_let_through() -> None:
    data = saved(collections.ChainMap({"a": 1}))
    with pytest.raises(UntrustedCodeError, match=r"collections\.ChainMap"):
        checked_item("x", data, frozenset())
    item = checked_item("x", data, frozenset({"collections.ChainMap"}))
    assert torch.load(item, weights_only=False) == {"a": 1}


@pytest.mark.parametrize(
    ("hostile", "why"),
    [
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "STACK_GLOBAL"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02(S'true'\niposix\nsystem\n.", r"posix\.system"),
        (b"\x80\x02cposix\nsystem\n.", r"posix\.system"),
        (b"\x80\x02c__builtin__\neval\n.", r"builtins\.eval"),
        (b"\x80\x02ctorch\nhub.load\n.", "refused"),
        (b"\x80\x02ctorch\nsave\n.", r"torch\.save"),
        (b"\x80\x02cos path\njoin\n.", "refused"),
        (b"\x80\x02\xff.", "not a pickle"),
        (b"\x80\x02]", "not a pickle"),
        (b"", "not a pickle"),
    ],
)
def test_no_way_to_name_code_gets_through(hostile: bytes, why: str) -> None:
    with pytest.raises(UntrustedCodeError, match=why):
        checked_item("x", archive_of(hostile), frozenset())


def test_formats_that_hold_more_than_one_pickle_are_refused() -> None:
    legacy = saved(1, _use_new_zipfile_serialization=False)
    for data in (legacy, pickle.dumps(1), b"", b"PK\x03\x04 and then nothing"):
        with pytest.raises(UntrustedCodeError):
            checked_item("x", data, frozenset())


def test_scripted_code_is_refused() -> None:
    target = io.BytesIO(saved(None))
    with zipfile.ZipFile(target, "a") as out:
        out.writestr("archive/constants.pkl", b"")
    with pytest.raises(UntrustedCodeError, match="scripted"):
        checked_item("x", target.getvalue(), frozenset())


def test_of_two_pickles_in_one_archive_the_one_that_is_loaded_is_looked_at(tmp_path: Path) -> None:
    """Two readers of one archive may disagree about which of two records counts."""
    trap = tmp_path / "sprung"
    hostile = zipfile.ZipFile(io.BytesIO(saved(Trap(trap)))).read("archive/data.pkl")
    for first, second in ((hostile, None), (None, hostile)):
        target = io.BytesIO()
        harmless = zipfile.ZipFile(io.BytesIO(saved(None))).read("archive/data.pkl")
        with zipfile.ZipFile(target, "w") as out:
            out.writestr("archive/data.pkl", first or harmless)
            with pytest.warns(UserWarning, match="Duplicate"):
                out.writestr("archive/data.pkl", second or harmless)
            out.writestr("archive/version", b"3\n")
            out.writestr("archive/byteorder", b"little")
        try:
            item = checked_item("x", target.getvalue(), frozenset())
        except UntrustedCodeError:
            continue
        torch.load(item, weights_only=False)
        assert not trap.exists()
