"""``ckptstore config``: what options are set, and where."""

from __future__ import annotations

import os
import re
from enum import Enum
from typing import Annotated, Any, Final

import typer

from ckptstore.cli.command import Command
from ckptstore.cli.config_file import default_path, options_of, read_config, variable_of, verbs_of
from ckptstore.errors import UsageError

COLUMNS = ("OPTION", "VALUE", "FROM")
ELSEWHERE: Final = ("AWS_", "GOOGLE_", "AZURE_", "STORAGE_EMULATOR_HOST")
_SECRET: Final = re.compile(r"secret|token|password|credential|_key$|connection_string|sas", re.I)
_USER_INFO: Final = re.compile(r"(?<=://)[^/@]*@")


class Action(Enum):
    SHOW = "show"


async def config(
    command: Command,
    action: Annotated[Action, typer.Argument(metavar="show", help="What to do.")],
    verb: Annotated[str, typer.Argument(metavar="[VERB]", help="Whose options.")] = "restore",
) -> int:
    """Show what each option of a verb is when it is not given, and where that comes from.

    The variables of the environment that the providers' own libraries heed are named as well.
    Secrets are not shown.
    """
    from typer.main import get_command

    from ckptstore.cli.main import app

    root: Any = get_command(app)
    if verb not in root.commands:
        raise UsageError(f"there is no verb {verb!r}")
    path = os.environ.get("CKPTSTORE_CONFIG")
    found = options_of(read_config(path), verb, verbs_of(root))
    rows = [
        _resolved(parameter, found, path or str(default_path()))
        for parameter in root.commands[verb].params
        if any(flag.startswith("--") for flag in parameter.opts) and parameter.name != "help"
    ]
    rows += [
        (name, redacted(name, value), "environment")
        for name, value in sorted(os.environ.items())
        if name.startswith(ELSEWHERE)
    ]
    for name, value, origin in rows:
        command.output.record("setting", name=name, value=value, origin=origin)
    command.output.table(COLUMNS, rows)
    command.output.summary("", exit_code=0, verb=verb, settings=len(rows))
    return 0


def _resolved(parameter: Any, found: dict[str, Any], path: str) -> tuple[str, str, str]:  # noqa: ANN401
    flag = next(flag for flag in parameter.opts if flag.startswith("--"))
    variable = variable_of([flag])
    if os.environ.get(variable):
        value, origin = os.environ[variable], variable
    elif parameter.name in found:
        value, origin = found[parameter.name], path
    else:
        value, origin = parameter.default, "default"
    shown = value.value if isinstance(value, Enum) else value
    return flag, "-" if shown is None else redacted(flag, str(shown)), origin


def redacted(name: str, value: str) -> str:
    """Return the value, or what may be shown of it."""
    if _SECRET.search(name):
        return "(set, not shown)"
    return _USER_INFO.sub("", value)
