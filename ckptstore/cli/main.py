"""The ``ckptstore`` command: its verbs, and nothing heavy until one of them runs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from ckptstore.cli.completion import completion
from ckptstore.cli.config import config
from ckptstore.cli.diff import diff
from ckptstore.cli.exit_codes import SIGINT, code_of
from ckptstore.cli.gc import gc
from ckptstore.cli.ls import ls
from ckptstore.cli.man import man
from ckptstore.cli.options import verb
from ckptstore.cli.output import Output
from ckptstore.cli.pin import pin
from ckptstore.cli.probe import probe
from ckptstore.cli.push import push
from ckptstore.cli.resolve import resolve
from ckptstore.cli.restore import export, restore
from ckptstore.cli.show import show
from ckptstore.cli.sync import sync
from ckptstore.cli.tag import tag
from ckptstore.cli.verify import verify
from ckptstore.cli.version import version, version_text
from ckptstore.errors import CkptStoreError

EPILOG = """\
STORE is s3://bucket/prefix, file:///dir or a directory. RUN is a named series of checkpoints in
it, the last component of a path. A checkpoint is STORE/RUN@SEL, where SEL is latest (the
default), a step, a uid, or the 8 characters a uid ends with. A trailing slash means nothing.

Each option can be set in the environment, as CKPTSTORE_ and its name: CKPTSTORE_DEADLINE=2h.
~/.config/ckptstore/config.toml (or --config FILE) holds options for every verb, and for one in
its table: [restore]. What stands after the verb wins, then the environment, then the file.
Credentials and endpoints come from where AWS's own tools look.

Exit codes: 0 done; 1 failed; 2 usage; 3 something could not be verified; 4 integrity; 5 not
found or not committed; 6 credentials or configuration; 7 unavailable after all retries; 8
deadline; 9 disk, memory or descriptors; 10 conflict; 130 and 143 ended by a signal.
"""

app = typer.Typer(
    name="ckptstore",
    add_completion="_CKPTSTORE_COMPLETE" in os.environ,  # Asked by what completion printed.
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(version_text())
        raise typer.Exit


@app.callback()
def _whole(
    show_version: Annotated[
        bool,
        typer.Option("--version", "-V", is_eager=True, callback=_show_version, help="Say which."),
    ] = False,
) -> None:
    """Checkpoints in object stores: complete and provably intact, or not there."""


for function in (
    push,
    restore,
    export,
    verify,
    sync,
    ls,
    show,
    diff,
    resolve,
    tag,
    pin,
    gc,
    probe,
    config,
    completion,
    man,
    version,
):
    app.command()(verb(function))


def main() -> NoReturn:
    """Be the ``ckptstore`` command.

    A thread that a hung disk holds cannot be ended, so it must not keep the process either.
    """
    code = execute(sys.argv[1:])
    if threading.active_count() > 1:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def execute(words: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        code = app(args=list(words), prog_name="ckptstore", standalone_mode=False)
    except typer.TyperException as error:
        output = Output("", as_json="--json" in words, quiet=False, verbosity=0)
        output.header()
        output.failure(error.format_message(), code=error.exit_code, hints=[_help_of(error)])
        output.summary("", exit_code=error.exit_code)
        return error.exit_code
    except CkptStoreError as error:  # In the configuration file.
        output = Output("", as_json="--json" in words, quiet=False, verbosity=0)
        output.header()
        output.error(error)
        output.summary("", exit_code=code_of(error))
        return code_of(error)
    except (KeyboardInterrupt, typer.Abort):
        return SIGINT
    return int(code or 0)


def _help_of(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'ckptstore'} --help shows how it is used"


if __name__ == "__main__":
    main()
