"""``ckptstore man``: the manual page, out of the help texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ckptstore.cli.command import Command


async def man(command: Command) -> int:
    """Print the manual page: ckptstore man | man -l -."""
    from importlib.metadata import version
    from inspect import cleandoc

    from typer.main import get_command

    from ckptstore.cli.main import EPILOG, app

    root: Any = get_command(app)
    lines = [
        f'.TH CKPTSTORE 1 "" "ckptstore {version("ckptstore")}"',
        ".SH NAME",
        "ckptstore \\- checkpoints in object stores",
        ".SH SYNOPSIS",
        ".B ckptstore",
        "VERB [OPTIONS] ARGUMENTS",
        ".SH DESCRIPTION",
        *_paragraphs(cleandoc(root.help or "")),
        *_paragraphs(EPILOG),
    ]
    for name, verb in root.commands.items():
        lines += [f".SH {_plain(name).upper()}", *_verb(name, verb)]
    text = "\n".join(lines)
    command.output.summary(text, exit_code=0, page=text)
    return 0


def _verb(name: str, verb: Any) -> Iterator[str]:  # noqa: ANN401
    arguments = " ".join(str(p.metavar or p.name) for p in verb.params if not _flags(p))
    yield f".B ckptstore {_plain(name)}"
    yield f"[OPTIONS] {_plain(arguments)}"
    yield ".PP"
    yield from _paragraphs(verb.help or "")
    for parameter in verb.params:
        if flags := _flags(parameter):
            yield ".TP"
            yield f".B {_plain(', '.join(flags))}"
            yield _plain(parameter.help or "")


def _flags(parameter: Any) -> list[str]:  # noqa: ANN401
    return [flag for flag in parameter.opts if flag.startswith("-")]


def _paragraphs(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        yield _plain(line) or ".PP"


def _plain(text: str) -> str:
    """Return the text so that nothing in it is taken for a command of the formatter."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
