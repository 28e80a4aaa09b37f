"""What a command says: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, Final, TextIO

from ckptstore.cli.exit_codes import NAMES, code_of
from ckptstore.errors import CkptStoreError

JSON_VERSION: Final = 1
STATS_S: Final = 30.0


class Output:
    """One command's voice: text for people, or with ``as_json`` one object a line for programs.

    Whoever reads stdout may go away at any time; then the command goes on in silence, and its
    exit code still tells the truth.
    """

    def __init__(self, verb: str, *, as_json: bool, quiet: bool, verbosity: int) -> None:
        self.verb = verb
        self.as_json = as_json
        self.quiet = quiet
        self.verbosity = verbosity
        self.stats_s = STATS_S  # How often to say how far it is, where there is no terminal.

    def header(self) -> None:
        if not self.as_json:
            return
        from importlib.metadata import version

        release = version("ckptstore")
        self._json({"v": JSON_VERSION, "type": "header", "verb": self.verb, "version": release})

    def record(self, kind: str, **fields: Any) -> None:  # noqa: ANN401
        """Say one thing of many to programs."""
        self._json({"type": kind, **fields})

    def summary(self, text: str, *, exit_code: int, **fields: Any) -> None:  # noqa: ANN401
        """Say how it went; always the last word. ``text`` is for people, and may be empty."""
        self._json({"type": "summary", "exit_code": exit_code, **fields})
        if text:
            self.text(text)

    def text(self, line: str) -> None:
        """Say a line of the result to people."""
        if not self.as_json:
            self._write(f"{_printable(line)}\n")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Show people a table; columns whose name starts with ``>`` are numbers."""
        lines = [[column.removeprefix(">") for column in columns], *map(list, rows)]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        for cells in lines:
            shown = [
                cell.rjust(width) if column.startswith(">") else cell.ljust(width)
                for column, cell, width in zip(columns, cells, widths, strict=True)
            ]
            self.text("  ".join(shown).rstrip())

    def note(self, line: str) -> None:
        """Say something on the side to people."""
        if not self.quiet:
            _to_stderr(line)

    def status(self, **fields: Any) -> None:  # noqa: ANN401
        """Say on stderr to programs how far it is, unless quiet."""
        if not self.quiet:
            _to_stderr(json.dumps({"type": "status", "verb": self.verb, **fields}))

    def error(self, error: BaseException) -> None:
        """Say what went wrong and what to do about it, also when quiet."""
        code = code_of(error)
        message, hints = _explained(error)
        if self.verbosity and not isinstance(error, CkptStoreError):
            _to_stderr("".join(traceback.format_exception(error)).rstrip())
        self.failure(message, code=code, hints=hints, retryable=_retryable(error))

    def failure(
        self, message: str, *, code: int, hints: Sequence[str] = (), retryable: bool = False
    ) -> None:
        self._json(
            {
                "type": "error",
                "code": NAMES[code],
                "message": message,
                "retryable": retryable,
                "hint": " ".join(hints) or None,
            }
        )
        _to_stderr(f"error: {message}")
        for hint in hints:
            _to_stderr(f"hint: {hint}")

    def _json(self, fields: dict[str, Any]) -> None:
        if self.as_json:
            self._write(json.dumps(fields) + "\n")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            stop_writing(sys.stdout)


def stop_writing(stream: TextIO) -> None:
    """Send what is still written to nowhere: the other end of the pipe is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _printable(text: str) -> str:
    """Return ``text`` without what would command a terminal: names can be anybody's."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _to_stderr(line: str) -> None:
    try:
        sys.stderr.write(f"{_printable(line)}\n")
        sys.stderr.flush()
    except BrokenPipeError:
        stop_writing(sys.stderr)


def _explained(error: BaseException) -> tuple[str, list[str]]:
    if isinstance(error, CkptStoreError):
        return str(error), list(getattr(error, "__notes__", ()))
    name = type(error).__name__
    return f"{name}: {error}" if str(error) else name, ["run again with -v for the traceback"]


def _retryable(error: BaseException) -> bool:
    """Tell whether the whole command may well succeed if it is run again as it is."""
    return NAMES[code_of(error)] in ("unavailable", "deadline")
