"""``ckptstore completion``: what a shell needs to complete verbs and options."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ckptstore.cli.command import Command


class Shell(Enum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


async def completion(
    command: Command,
    shell: Annotated[Shell, typer.Argument(help="Which shell.")],
) -> int:
    """Print what completes this command in a shell.

    For bash: ckptstore completion bash >> ~/.bashrc. For zsh the same into a file _ckptstore in a
    directory of $fpath, for fish into ~/.config/fish/completions/ckptstore.fish.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(
        prog_name="ckptstore", complete_var="_CKPTSTORE_COMPLETE", shell=shell.value
    )
    command.output.summary(script, exit_code=0, shell=shell.value, script=script)
    return 0
