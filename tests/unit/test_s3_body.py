"""The body of an upload: botocore sees a file, aiohttp a payload, and nobody copies."""

from __future__ import annotations

import asyncio

import pytest

from ckptstore.backends.http.body import STEP_BYTES, BufferBody
from ckptstore.types import views


def body_of(*pieces: bytes | bytearray) -> BufferBody:
    return BufferBody(views(pieces), lambda *_: None)


def test_reading_goes_through_all_pieces() -> None:
    body = body_of(b"01", b"", b"234", b"5")
    assert len(body) == 6
    read = [bytes(body.read(2)) for _ in range(5)]
    assert read == [b"01", b"23", b"4", b"5", b""]
    assert body.tell() == 6


@pytest.mark.parametrize(("offset", "whence", "at"), [(3, 0, 3), (-2, 2, 3), (1, 1, 3)])
def test_seeking_is_that_of_a_file(offset: int, whence: int, at: int) -> None:
    body = body_of(b"012", b"34")
    body.read(2)
    assert body.seek(offset, whence) == at
    assert body.tell() == at
    assert bytes(body.read()) == b"34"


def test_what_is_read_is_the_caller_s_memory() -> None:
    memory = bytearray(b"0123456789")
    assert body_of(memory).read(4).obj is memory


class Wire:
    """Stands for aiohttp's writer."""

    def __init__(self) -> None:
        self.transport = self
        self.steps: list[memoryview] = []
        self.headers_sent = self.aborted = False

    def send_headers(self) -> None:
        self.headers_sent = True

    async def write(self, step: memoryview) -> None:
        assert self.headers_sent
        self.steps.append(step)
        await asyncio.sleep(0)

    def get_extra_info(self, name: str) -> Wire:
        assert name == "socket"
        return self

    def setsockopt(self, *_: object) -> None:
        raise OSError("closed already")

    def abort(self) -> None:
        self.aborted = True


async def test_writing_sends_steps_of_the_memory_and_tells_how_far_it_is() -> None:
    memory = bytearray(2 * STEP_BYTES + 5)
    progress: list[tuple[int, int]] = []
    body = BufferBody(views([b"head", memory]), lambda *so_far: progress.append(so_far))
    wire = Wire()
    await body.write(wire)  # type: ignore[arg-type]
    assert b"".join(wire.steps) == b"head" + memory
    assert all(step.obj is memory for step in wire.steps[1:])
    assert max(len(step) for step in wire.steps) <= STEP_BYTES
    total = 4 + len(memory)
    assert progress == [(4, total), (4 + STEP_BYTES, total), (total - 5, total), (total, total)]


async def test_a_second_connection_gets_everything_again() -> None:
    body = body_of(b"01", b"23")
    first, second = Wire(), Wire()
    await body.write(first)  # type: ignore[arg-type]
    await body.write(second)  # type: ignore[arg-type]
    assert b"".join(second.steps) == b"".join(first.steps) == b"0123"
    body.abort()
    assert second.aborted
    assert not first.aborted


def test_aborting_what_was_never_sent_is_fine() -> None:
    body_of(b"x").abort()
