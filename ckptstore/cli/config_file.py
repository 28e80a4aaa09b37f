"""Options out of a file. Imported by every verb, so it imports next to nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import typer  # noqa: TC002  # It reads annotations at run time.

from ckptstore.errors import SettingsError

PREFIX: Final = "CKPTSTORE_"


def variable_of(flags: Iterable[str]) -> str:
    """Return the environment variable of an option: ``--max-shard-size``'s ends in its name."""
    long = next(flag for flag in flags if flag.startswith("--"))
    return PREFIX + long.removeprefix("--").replace("-", "_").upper()


def configure(context: typer.Context, path: str | None) -> str | None:
    """Let the options of this verb default to what the file says."""
    found = read_config(path)
    if found and not context.resilient_parsing:
        root = context.find_root().command
        context.default_map = options_of(found, context.info_name or "", verbs_of(root))
    return path


def read_config(path: str | None) -> dict[str, Any]:
    """Return what the file says; nothing if it was not named and is not there.

    Raises ``SettingsError`` if it cannot be read or is no TOML.
    """
    location = Path(path) if path else default_path()
    try:
        data = location.read_bytes()
    except OSError as error:
        if path is None and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return {}
        raise SettingsError(f"{location}: cannot be read: {error.strerror}") from error
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except ValueError as error:  # Of the encoding, or of TOML.
        raise SettingsError(f"{location} is not TOML: {error}") from error


def default_path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "ckptstore" / "config.toml"


def verbs_of(root: Any) -> dict[str, dict[str, str]]:  # noqa: ANN401
    """Return the options of every verb: the parameter's name by the flag, without dashes."""
    verbs: dict[str, dict[str, str]] = {}
    for name, command in root.commands.items():
        verbs[name] = {
            flag.removeprefix("--"): parameter.name
            for parameter in command.params
            for flag in parameter.opts
            if flag.startswith("--") and flag not in ("--help", "--config")
        }
    return verbs


def options_of(
    found: Mapping[str, Any], verb: str, verbs: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return the values of one verb's options, by parameter. Pure.

    What stands in the verb's table wins over what stands above all tables. Raises
    ``SettingsError`` for what is no option of any verb, or not of that one.
    """
    chosen: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            known = verbs.get(name)
            if known is None:
                raise SettingsError(f"configuration: there is no verb {name!r} for [{name}]")
            for option in value:
                if _flag(option) not in known:
                    raise SettingsError(f"configuration: {name} has no option --{_flag(option)}")
        elif not any(_flag(name) in known for known in verbs.values()):
            raise SettingsError(f"configuration: there is no option --{_flag(name)}")
    for name, value in [*found.items(), *found.get(verb, {}).items()]:
        parameter = verbs.get(verb, {}).get(_flag(name))
        if parameter is not None and not isinstance(value, dict):
            chosen[parameter] = value
    return chosen


def _flag(name: str) -> str:
    return name.replace("_", "-")
