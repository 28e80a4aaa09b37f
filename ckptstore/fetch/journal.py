"""What of a restore is on the disk already, so that one that was killed can go on."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ckptstore.errors import ConflictError

_LINE: Final = re.compile(r"(\d+) ([0-9a-f]{16})")


class Journal:
    """The checksum of each batch that was written, a line each. One process has it at a time.

    A line only says what to look at: what it speaks of counts once the bytes on the disk have
    that checksum. So a line that was torn, or that a crash kept while it lost the bytes, costs
    a batch and no more.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o666)
        try:
            self._lock(path)
            self._crcs = self._found()
        except BaseException:
            os.close(self._descriptor)
            raise
        self.resumed = bool(self._crcs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def __len__(self) -> int:
        return len(self._crcs)

    def crc_of(self, batch: int) -> int | None:
        return self._crcs.get(batch)

    def note(self, batch: int, crc: int) -> None:
        self._crcs[batch] = crc
        os.write(self._descriptor, f"{batch} {crc:016x}\n".encode())

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(
                f"another process restores the same into {path.parent} just now; wait for it"
            ) from error
        except OSError:
            pass  # A disk without locks: two restores of the same write the same bytes.

    def _found(self) -> dict[int, int]:
        size_bytes = os.fstat(self._descriptor).st_size
        text = os.pread(self._descriptor, size_bytes, 0).decode("ascii", "replace")
        matches = map(_LINE.fullmatch, text.splitlines())
        return {int(match[1]): int(match[2], 16) for match in matches if match}
