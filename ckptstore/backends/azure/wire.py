"""Block ids, checksums and XML as Azure writes them. Pure."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import unquote
from xml.etree import ElementTree

from ckptstore.types import Key, ObjectInfo, UploadId, Version

BEGUN: Final = "begun"
ENDED: Final = "ended"
CRC_METADATA: Final = "crc64nvme"
_CRC_HEADER: Final = f"x-ms-meta-{CRC_METADATA}"
_UPLOAD_CHARACTERS: Final = 32


def new_upload_id(unix_s: float) -> UploadId:
    """Return an id that nobody else has, and that tells when the upload was begun."""
    return UploadId(f"{int(unix_s):010x}{secrets.token_hex(11)}")


def begun_unix_s(upload_id: UploadId) -> float:
    return float(int(upload_id[:10], 16))


def new_block_id(upload_id: UploadId, what: int | str) -> str:
    """Return a block's id: of one length for all blocks, as Azure wants, and new at every try.

    Blocks lie under the name of the blob, not under an upload, so the id must say whose it is.
    """
    name = f"{what:05d}" if isinstance(what, int) else what
    return base64.b64encode(f"{upload_id}-{name}-{secrets.token_hex(4)}".encode()).decode()


def uploads_of(block_ids: Iterable[str]) -> tuple[set[UploadId], set[UploadId]]:
    """Return the uploads that blocks belong to, and which of them were aborted."""
    found: set[UploadId] = set()
    ended: set[UploadId] = set()
    for block_id in block_ids:
        text = base64.b64decode(block_id).decode(errors="replace")
        if text[_UPLOAD_CHARACTERS : _UPLOAD_CHARACTERS + 1] != "-":
            continue  # Somebody else's.
        upload_id = UploadId(text[:_UPLOAD_CHARACTERS])
        found.add(upload_id)
        if text.split("-")[1] == ENDED:
            ended.add(upload_id)
    return found, ended


def checksum_header(crc64nvme: int) -> str:
    """Return a CRC-64/NVME in base64, the least significant of its eight bytes first."""
    return base64.b64encode(crc64nvme.to_bytes(8, "little")).decode()


def block_list(block_ids: Iterable[str]) -> bytes:
    lines = "".join(f"<Latest>{block_id}</Latest>" for block_id in block_ids)
    return f'<?xml version="1.0" encoding="utf-8"?><BlockList>{lines}</BlockList>'.encode()


def uncommitted_ids(body: bytes) -> list[str]:
    tree = ElementTree.fromstring(body)
    return [entry.text or "" for entry in tree.iterfind("./UncommittedBlocks/Block/Name")]


def page_of(body: bytes) -> tuple[list[ObjectInfo], str]:
    """Return the blobs of one page of a listing, and where the next one begins, if any does."""
    tree = ElementTree.fromstring(body)
    found = [_info(entry) for entry in tree.iterfind("./Blobs/Blob") if not _is_directory(entry)]
    return found, tree.findtext("NextMarker") or ""


def _info(entry: ElementTree.Element) -> ObjectInfo:
    name = entry.find("Name")
    text = (name.text if name is not None else "") or ""
    if name is not None and name.get("Encoded") == "true":
        text = unquote(text)
    return ObjectInfo(
        Key(text),
        int(entry.findtext("Properties/Content-Length") or 0),
        Version(etag=(entry.findtext("Properties/Etag") or "").strip('"')),
        _crc(entry.findtext(f"Metadata/{CRC_METADATA}")),
        _unix_s(entry.findtext("Properties/Last-Modified")),
    )


def _is_directory(entry: ElementTree.Element) -> bool:
    """Tell what an account with a hierarchical namespace lists between the blobs."""
    kind = entry.findtext("Properties/ResourceType")
    return kind == "directory" or entry.findtext("Metadata/hdi_isfolder") == "true"


def info_of(key: Key, headers: Mapping[str, str]) -> ObjectInfo:
    size_bytes = int(headers["Content-Length"])
    crc, modified = _crc(headers.get(_CRC_HEADER)), _unix_s(headers.get("Last-Modified"))
    return ObjectInfo(key, size_bytes, version_of(headers), crc, modified)


def version_of(headers: Mapping[str, str]) -> Version:
    etag = headers.get("ETag")
    return Version(etag=etag.strip('"') if etag else None)


def crc_metadata(crc64nvme: int) -> dict[str, str]:
    """Return the header that makes a new blob remember the checksum of its whole."""
    return {_CRC_HEADER: f"{crc64nvme:016x}"}


def _crc(text: str | None) -> int | None:
    try:
        return int(text, 16) if text else None
    except ValueError:
        return None


def _unix_s(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None
