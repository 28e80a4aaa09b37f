"""A flipped bit anywhere: verify and restore name the object, and nothing is left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("stored_as_it_is")

Damage = Callable[[bytes, int], bytes]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def cut(data: bytes, at: int) -> bytes:
    return data[:at]


@pytest.mark.parametrize("kind", ["rank-000000.json.zst", "decisions/", ".file"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("damage", [flipped, cut])
def test_any_damage_is_an_integrity_failure_that_names_the_object(
    cli: Cli, run: str, store: Path, tmp_path: Path, kind: str, share: float, damage: Damage
) -> None:
    paths = [path for path in store.rglob("*") if path.is_file() and kind in str(path)]
    victims = [p for p in paths if "s000000000200" in str(p) and p.stat().st_size > 2]
    assert victims
    for victim in victims:
        sound = victim.read_bytes()
        victim.write_bytes(damage(sound, int(share * len(sound))))
        for command in (("verify", run), ("restore", run, tmp_path / "dest")):
            ended = cli(*command)
            assert ended.code == 4, ended.err
            assert str(victim.relative_to(store)) in ended.out + ended.err
        assert not (tmp_path / "dest").exists()
        assert not list(tmp_path.glob(".dest*"))
        victim.write_bytes(sound)
    assert cli("restore", run, tmp_path / "dest").code == 0


@pytest.mark.parametrize("kind", ["rank-000000.json.zst", ".file"])
def test_an_object_of_another_step_is_not_taken_for_this_one(
    cli: Cli, run: str, store: Path, tmp_path: Path, kind: str
) -> None:
    old, new = (
        sorted(p for p in store.rglob(f"*{kind}") if step in str(p) and p.stat().st_size > 2)[0]
        for step in ("s000000000100", "s000000000200")
    )
    shutil.copyfile(old, new)
    if kind == ".file":
        new.write_bytes(old.read_bytes()[::-1])  # Both steps hold the same bytes here.
    for command in (("verify", run), ("restore", run, tmp_path / "dest")):
        ended = cli(*command)
        assert ended.code == 4
        assert str(new.relative_to(store)) in ended.out + ended.err
    assert not (tmp_path / "dest").exists()
