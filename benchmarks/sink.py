"""A server that takes and gives S3 requests at memory speed, so that the client is what counts.

It keeps objects in memory, but for those of the bucket ``DRAIN``, whose bytes the kernel throws
away uncopied. It checks no signature and no checksum, sends the checksum headers back that it
was given, and counts requests. For measurements on one machine only.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
from collections import Counter
from typing import Final

from benchmarks.sink_http import Answer, Incoming, Request, failure, read_request
from benchmarks.sink_objects import Objects

DRAIN: Final = "drain"
CONTROL: Final = "-"
BACKLOG: Final = 1024


class Sink:
    def __init__(self) -> None:
        self._objects = Objects()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def uploads_open(self) -> tuple[str, ...]:
        with self._lock:
            return self._objects.uploads_open

    def serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def _connection(self, connection: socket.socket) -> None:
        with connection:
            incoming = Incoming(connection)
            try:
                while request := read_request(incoming):
                    keep = request.bucket != DRAIN
                    if request.headers.get("expect", "").lower() == "100-continue":
                        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    request.read_body(incoming, keep=keep)
                    self._answer(request).send(connection, head_only=request.method == "HEAD")
            except (ConnectionError, EOFError):
                return  # The client's business.

    def _answer(self, request: Request) -> Answer:
        with self._lock:  # Bodies travel outside of it.
            if request.bucket == CONTROL:
                return self._control(request)
            self._counts[request.operation] += 1
            try:
                return self._objects.answer(request)
            except KeyError:
                return failure(404, "NoSuchKey")

    def _control(self, request: Request) -> Answer:
        counts = json.dumps(self._counts).encode()
        if request.method == "POST":  # Reads and starts over: a new measurement.
            self._counts.clear()
            if "forget" in request.query:
                self._objects.forget()
        return Answer(200, {"Content-Type": "application/json"}, [memoryview(counts)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core", type=int, help="the only core to run on")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        print(listener.getsockname()[1], flush=True)
        Sink().serve(listener)


if __name__ == "__main__":
    main()
