"""The parts of an upload as objects of their own: their names, and how they become one. Pure.

Cloud Storage has an upload in parts only where it cannot be told not to overwrite, and one in
order, which knows no parts. So a part is an object, and ``compose`` joins them.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ckptstore.types import Key, UploadId

SOURCES_MAX: Final = 32  # What one compose takes.
SUFFIX: Final = ".ckptstore-part"  # Lifecycle rules can ask for it, too: matchesSuffix.
BEGUN: Final = "begun"  # The component that is there as long as the upload is open.

_NAME: Final = re.compile(rf"(.+)\.([0-9a-f]{{16}})\.[^.]+{re.escape(SUFFIX)}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Component:
    """An object that holds some of an upload's bytes, of exactly this generation."""

    name: str
    generation: str
    size_bytes: int
    crc32c: int

    def __str__(self) -> str:
        """Return what stands in a part's etag, and ``parse_component`` reads again."""
        return f"{self.generation} {self.size_bytes} {self.crc32c:08x} {self.name}"


def parse_component(text: str) -> Component:
    generation, size_bytes, crc, name = text.split(" ", 3)
    return Component(name, generation, int(size_bytes), int(crc, 16))


def new_upload() -> UploadId:
    return UploadId(secrets.token_hex(8))


def all_of(key: Key, upload_id: UploadId) -> str:
    """Return what the names of all of an upload's components begin with, and no others."""
    return f"{key}.{upload_id}."


def begun_name(key: Key, upload_id: UploadId) -> str:
    return f"{all_of(key, upload_id)}{BEGUN}{SUFFIX}"


def new_name(key: Key, upload_id: UploadId, index: int) -> str:
    """Return a name for a component that nobody ever used.

    So a part that is sent again never meets its earlier try, which may be on its way still,
    nor the limit of one write a second for each name.
    """
    return f"{all_of(key, upload_id)}{index:05d}-{secrets.token_hex(4)}{SUFFIX}"


def upload_of(name: str) -> tuple[Key, UploadId] | None:
    """Return whose component an object is, by its name; None if it is none."""
    match = _NAME.fullmatch(name)
    return (Key(match[1]), UploadId(match[2])) if match else None


def grouped(components: Sequence[Component]) -> list[Sequence[Component]]:
    """Cut into as few groups as fit into one compose each, in order."""
    return [components[at : at + SOURCES_MAX] for at in range(0, len(components), SOURCES_MAX)]
