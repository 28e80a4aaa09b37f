"""Files that are there completely and for good, or not at all. All of it blocks."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ckptstore.types import MIB

IOV_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024)
STEP_BYTES: Final = 8 * MIB  # Between two of these, a cancelled call notices.


class Stop:
    """Tells work in a thread, which cannot be cancelled, that nobody waits for it any more."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._act: Callable[[], None] = lambda: None

    def set(self) -> None:
        self._event.set()
        self._act()

    def then(self, act: Callable[[], None]) -> None:
        """Have ``act`` called when this is set, perhaps twice; at once if it is by now."""
        self._act = act
        if self._event.is_set():
            act()

    def check(self) -> None:
        if self._event.is_set():
            raise InterruptedError(errno.EINTR, "the call was cancelled")


@contextmanager
def opened(path: str, flags: int, mode: int = 0o666) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, pieces: Sequence[memoryview], offset: int, stop: Stop) -> None:
    """Write all of the pieces, one after the other, at ``offset``, from where they lie."""
    waiting = list(reversed(pieces))
    while waiting:
        stop.check()
        batch = _next_batch(waiting)
        written = os.pwritev(descriptor, batch, offset)
        offset += written
        _give_back(batch, written, waiting)


def _next_batch(waiting: list[memoryview]) -> list[memoryview]:
    batch: list[memoryview] = []
    room = STEP_BYTES
    while waiting and room and len(batch) < IOV_MAX:
        piece = waiting.pop()
        if len(piece) > room:
            waiting.append(piece[room:])
            piece = piece[:room]
        batch.append(piece)
        room -= len(piece)
    return batch


def _give_back(batch: list[memoryview], written: int, waiting: list[memoryview]) -> None:
    """Put what a short write left over back in front of what is waiting."""
    left: list[memoryview] = []
    for piece in batch:
        taken = min(written, len(piece))
        written -= taken
        if taken < len(piece):
            left.append(piece[taken:])
    waiting.extend(reversed(left))


def read_all(descriptor: int, target: memoryview, offset: int, stop: Stop) -> int:
    """Fill ``target`` from ``offset`` on; return how much there was."""
    filled = 0
    while filled < len(target):
        stop.check()
        got = os.preadv(descriptor, [target[filled : filled + STEP_BYTES]], offset + filled)
        if not got:
            break
        filled += got
    return filled


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # Some network file systems have no such thing.
                raise
