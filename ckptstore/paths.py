"""Names of files that are safe to create in anybody's directory. Pure: no file is touched.

Both directions use the same rules, so that whatever was pushed can be restored anywhere.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from ckptstore.types import parse_key

_DRIVE: Final = re.compile(r"[A-Za-z]:")
_RESERVED: Final = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")


def check_path(text: str) -> str:
    """Return ``text`` if it is a relative path that stays where it is put, or raise.

    Raises ``ValueError`` for what is absolute, empty, dotted, longer than a key may be, not
    Unicode, or holds a backslash, a control character, a drive letter or a name that Windows
    keeps for its devices. Two dots inside a name are fine. Nothing is ever repaired.
    """
    try:
        parse_key(text)
    except UnicodeEncodeError as error:
        raise ValueError(f"path is not valid Unicode: {text!r}") from error
    for segment in text.split("/"):
        if _DRIVE.match(segment):
            raise ValueError(f"path has a drive letter: {text!r}")
        if _RESERVED.fullmatch(segment):
            raise ValueError(f"path has a name that Windows reserves: {text!r}")
    return text


def check_distinct(paths: Iterable[str]) -> None:
    """Raise ``ValueError`` if two of these paths would be one file somewhere.

    They are if they differ only by case or by Unicode normalization, or if one is a directory
    on the way to the other. A path that comes twice is one too many as well.
    """
    files: dict[str, str] = {}
    directories: dict[str, str] = {}
    for path in paths:
        folded = _folded(path)
        if folded in files:
            raise ValueError(_clash(files[folded], path))
        files[folded] = path
        head = path
        while head := head.rpartition("/")[0]:
            known = directories.setdefault(_folded(head), head)
            if known != head:
                raise ValueError(_clash(known, head))
    for folded in files.keys() & directories.keys():
        raise ValueError(f"{files[folded]!r} is a file and also a directory of other files")


def _folded(path: str) -> str:
    """Return what a case-insensitive, normalizing file system makes of ``path``."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _clash(one: str, other: str) -> str:
    if one == other:
        return f"{one!r} comes twice"
    return f"{one!r} and {other!r} are the same name on some file systems"
