"""The objects of the sink, and what S3 would answer about them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.sink_http import Answer, Request, failure, xml

MODIFIED_HTTP: Final = "Thu, 01 Jan 2026 00:00:00 GMT"
MODIFIED_ISO: Final = "2026-01-01T00:00:00.000Z"
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Stored:
    """An object, or a part of one. ``size_bytes`` stays also where the bytes were dropped."""

    pieces: list[memoryview]
    size_bytes: int
    etag: str

    def between(self, start: int, stop: int) -> list[memoryview]:
        found: list[memoryview] = []
        at = 0
        for piece in self.pieces:
            if at < stop and start < at + len(piece):
                found.append(piece[max(start - at, 0) : stop - at])
            at += len(piece)
        return found


@dataclass
class Upload:
    parts: dict[int, Stored] = field(default_factory=dict)


class Objects:
    """Everything in all buckets. Not safe for threads: whoever calls holds a lock."""

    def __init__(self) -> None:
        self._stored: dict[str, Stored] = {}
        self._uploads: dict[str, Upload] = {}
        self._serial = itertools.count(1)

    @property
    def uploads_open(self) -> tuple[str, ...]:
        return tuple(self._uploads)

    def forget(self) -> None:
        self._stored.clear()
        self._uploads.clear()

    def answer(self, request: Request) -> Answer:
        """Return the answer; ``KeyError`` means that there is no such thing."""
        if not request.key:
            return self._bucket(request)
        handlers: dict[str, Callable[[Request, str], Answer]] = {
            "HEAD": self._head,
            "GET": self._get,
            "PUT": self._put,
            "POST": self._post,
            "DELETE": self._delete,
        }
        return handlers[request.method](request, f"{request.bucket}/{request.key}")

    def _bucket(self, request: Request) -> Answer:
        if "delete" in request.query:
            for key in re.findall(rb"<Key>(.*?)</Key>", request.body):
                self._stored.pop(f"{request.bucket}/{key.decode()}", None)
            return xml("<DeleteResult></DeleteResult>")
        if "location" in request.query:
            return xml("<LocationConstraint></LocationConstraint>")
        if request.method == "GET":
            return self._list(request)
        return Answer()

    def _list(self, request: Request) -> Answer:
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        root = f"{request.bucket}/"
        contents, folders = "", dict[str, None]()
        keys = (path.removeprefix(root) for path in sorted(self._stored) if path.startswith(root))
        for key in (key for key in keys if key.startswith(prefix)):
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders[prefix + rest.partition(delimiter)[0] + delimiter] = None
                continue
            stored = self._stored[root + key]
            contents += (
                f"<Contents><Key>{escape(key)}</Key><LastModified>{MODIFIED_ISO}</LastModified>"
                f"<ETag>{stored.etag}</ETag><Size>{stored.size_bytes}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            for folder in folders
        )
        return xml(
            f"<ListBucketResult><Name>{request.bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{contents.count('<Contents>') + len(folders)}</KeyCount>"
            f"<MaxKeys>1000000</MaxKeys><IsTruncated>false</IsTruncated>{contents}{common}"
            "</ListBucketResult>"
        )

    def _head(self, request: Request, path: str) -> Answer:
        stored = self._stored[path]
        return Answer(200, _facts(stored), length=stored.size_bytes)

    def _get(self, request: Request, path: str) -> Answer:
        stored = self._stored[path]
        match = _RANGE.fullmatch(request.headers.get("range", ""))
        if match is None:
            return Answer(200, _facts(stored), stored.pieces)
        start = int(match[1])
        stop = min(int(match[2]) + 1, stored.size_bytes) if match[2] else stored.size_bytes
        if start >= stored.size_bytes:
            return failure(416, "InvalidRange")
        headers = _facts(stored)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{stored.size_bytes}"
        return Answer(206, headers, stored.between(start, stop))

    def _put(self, request: Request, path: str) -> Answer:
        source = request.headers.get("x-amz-copy-source")
        if source is not None:
            self._stored[path] = stored = self._stored[source.lstrip("/")]
            return xml(
                f"<CopyObjectResult><LastModified>{MODIFIED_ISO}</LastModified>"
                f"<ETag>{stored.etag}</ETag></CopyObjectResult>"
            )
        stored = self._new([request.body], request.size_bytes)
        if "uploadId" in request.query:
            parts = self._uploads[request.query["uploadId"]].parts
            parts[int(request.query["partNumber"])] = stored
        elif request.headers.get("if-none-match") == "*" and path in self._stored:
            return failure(412, "PreconditionFailed")
        else:
            self._stored[path] = stored
        return Answer(200, {"ETag": stored.etag, **_checksums(request)})

    def _post(self, request: Request, path: str) -> Answer:
        if "uploads" in request.query:
            upload_id = f"upload-{next(self._serial)}"
            self._uploads[upload_id] = Upload()
            answer = xml(
                f"<InitiateMultipartUploadResult><Bucket>{request.bucket}</Bucket>"
                f"<Key>{escape(request.key)}</Key><UploadId>{upload_id}</UploadId>"
                "</InitiateMultipartUploadResult>"
            )
            return Answer(200, {**answer.headers, **_checksums(request)}, answer.pieces)
        parts = self._uploads.pop(request.query["uploadId"]).parts
        pieces = [piece for _, part in sorted(parts.items()) for piece in part.pieces]
        stored = self._new(pieces, sum(part.size_bytes for part in parts.values()))
        self._stored[path] = stored
        return xml(
            f"<CompleteMultipartUploadResult><Bucket>{request.bucket}</Bucket>"
            f"<Key>{escape(request.key)}</Key><ETag>{stored.etag}</ETag>"
            "</CompleteMultipartUploadResult>"
        )

    def _delete(self, request: Request, path: str) -> Answer:
        if "uploadId" in request.query:
            self._uploads.pop(request.query["uploadId"], None)
        else:
            self._stored.pop(path, None)
        return Answer(204)

    def _new(self, pieces: Sequence[memoryview], size_bytes: int) -> Stored:
        return Stored(list(pieces), size_bytes, f'"{next(self._serial):032x}-1"')


def _facts(stored: Stored) -> dict[str, str]:
    return {
        "ETag": stored.etag,
        "Last-Modified": MODIFIED_HTTP,
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
    }


def _checksums(request: Request) -> dict[str, str]:
    """Return the checksum headers of a request, because some clients look for them."""
    return {
        name: value for name, value in request.headers.items() if name.startswith("x-amz-checksum-")
    }
