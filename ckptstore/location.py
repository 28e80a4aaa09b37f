"""URLs: which store, which run, which checkpoint of it. Pure; nothing is opened here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit

from ckptstore.errors import UsageError
from ckptstore.manifest.layout import check_run, check_step, parse_uid

NONCE_PREFIX_LENGTH_MIN: Final = 8
SCHEMES: Final = ("s3", "gs", "az", "abfss", "https", "file", "memory")

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_NONCE_PREFIX: Final = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest committed checkpoint."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class AtStep:
    """The newest committed checkpoint of one step."""

    step: int

    def __str__(self) -> str:
        return str(self.step)


@dataclass(frozen=True, slots=True)
class ByUid:
    """One attempt, by its uid or by its nonce."""

    text: str

    def __str__(self) -> str:
        return self.text


Selector: TypeAlias = Latest | AtStep | ByUid


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A provider's container and the prefix inside it; for local directories, a path."""

    scheme: str
    container: str
    prefix: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return self.prefix
        return f"{self.scheme}://{self.container}" + (f"/{self.prefix}" if self.prefix else "")


@dataclass(frozen=True, slots=True)
class RunLocation:
    """A run in a store, and which of its checkpoints."""

    store: StoreLocation
    run: str
    selector: Selector = Latest()

    def __str__(self) -> str:
        return f"{str(self.store).rstrip('/')}/{self.run}"


def parse_store(url: str | os.PathLike[str]) -> StoreLocation:
    """Return the store that ``url`` names, or raise ``UsageError`` saying how to write it."""
    text = os.fspath(url)
    if not text.strip():
        raise UsageError("the store's URL is empty; give a directory or s3://bucket/prefix")
    _refuse_query(text)
    match = _SCHEME.match(text)
    if match is None:
        return StoreLocation("file", "", os.path.abspath(os.path.expanduser(text)))
    scheme = match.group(1).lower()
    if not text[len(scheme) :].startswith("://"):
        raise UsageError(
            f"{text!r} has one slash after the scheme; pathlib eats the other: pass a string"
        )
    if scheme not in SCHEMES:
        raise UsageError(
            f"{text!r}: unknown scheme {scheme!r}; this release knows "
            f"{', '.join(SCHEMES)} and plain directories"
        )
    parts = urlsplit(text)
    if parts.query or parts.fragment:
        raise UsageError(f"{text!r}: a store's URL has no '?' or '#'")
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise UsageError(f"{text!r}: write file:///directory, with three slashes")
        return StoreLocation("file", "", os.path.abspath(unquote(parts.path)))
    if not parts.netloc:
        raise UsageError(f"{text!r} names no bucket; write {scheme}://bucket/prefix")
    container, prefix = _divided(scheme, parts.netloc, parts.path.removeprefix("/").rstrip("/"))
    if any(segment in ("", ".", "..") for segment in prefix.split("/") if prefix):
        raise UsageError(f"{text!r}: the prefix has an empty or dotted segment")
    return StoreLocation(scheme, container, prefix)


def _refuse_query(text: str) -> None:
    """Refuse a URL with a '?', and do not show what follows it: that may be a secret."""
    if _SCHEME.match(text) and "?" in text:
        raise UsageError(
            f"{text.partition('?')[0]!r}: a store's URL has no '?' or '#'; a shared access "
            "signature goes into AZURE_STORAGE_SAS_TOKEN"
        )


def _divided(scheme: str, host: str, path: str) -> tuple[str, str]:
    """Return container and prefix; in Azure's https URLs, the path begins with the container."""
    if scheme != "https":
        return host, path
    name, _, prefix = path.partition("/")
    return f"{host}/{name}", prefix


def parse_run(url: str | os.PathLike[str]) -> RunLocation:
    """Return the run (the last component of the path) and selector (after '@') of ``url``."""
    text = os.fspath(url).rstrip("/")
    _refuse_query(text)
    head, slash, last = text.rpartition("/")
    name, at, selector = last.partition("@")
    if name in (".", ".."):
        raise UsageError(f"{text!r}: the last component of the path must name a run")
    try:
        run = check_run(name)
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}") from error
    if not slash or not head.strip("/"):
        head = f"{head}/" if slash else "."
    if head.endswith(":/"):
        raise UsageError(f"{text!r} names a bucket and no run; write {head}/{name}/RUN")
    return RunLocation(parse_store(head), run, parse_selector(selector) if at else Latest())


def parse_selector(text: str) -> Selector:
    """Return what follows the '@': ``latest``, a step, a uid or a nonce."""
    if text == "latest":
        return Latest()
    if _NONCE_PREFIX.fullmatch(text) and not text.isdigit():
        return ByUid(text)
    try:
        if text.isascii() and text.isdigit():
            return AtStep(check_step(int(text)))
        return ByUid(str(parse_uid(text)))
    except ValueError as error:
        raise UsageError(
            f"'@{text}' selects nothing; write @latest, @STEP, @UID, or the 8 characters that a "
            "uid ends with"
        ) from error
