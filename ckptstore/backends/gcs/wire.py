"""Connections that can be cut from outside, because a thread that waits for one cannot be."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.poolmanager import PoolManager

from ckptstore.backends._files import Stop

if TYPE_CHECKING:
    import requests


class Line:
    """The connection that one call uses: known from its request on, until the call has ended."""

    def __init__(self, stop: Stop, stall_s: float) -> None:
        self.stall_s = stall_s
        self._stop = stop
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def __enter__(self) -> Line:
        _HERE.line = self
        self._stop.then(self.cut)
        return self

    def __exit__(self, *_: object) -> None:
        _HERE.line = None
        with self._lock:  # From here on, the connection may serve somebody else.
            self._socket = None

    def connected(self, connection: socket.socket) -> None:
        with self._lock:
            self._socket = connection
        self.moving()
        self.check()

    def check(self) -> None:
        self._stop.check()

    def moving(self) -> None:
        """From here on, bytes are due all the time."""
        with self._lock:
            if self._socket is not None:
                self._socket.settimeout(self.stall_s)

    def cut(self) -> None:
        """End whatever the thread waits for; called from another one."""
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    # Also where TLS is on it: closing in good order would wait for the peer.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


_HERE: Final = threading.local()


def _line() -> Line | None:
    """Return the line of the call that this thread works for; token requests have none."""
    return getattr(_HERE, "line", None)


class _Noting(HTTPConnection):
    """Tells the line which connection it is, new or used before."""

    def request(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        line = _line()
        if line is not None and self.sock is not None:
            line.connected(self.sock)
            self.timeout = line.stall_s  # What the client is about to set on the socket.
        super().request(*args, **kwargs)

    def connect(self) -> None:
        super().connect()
        line = _line()
        if line is not None and self.sock is not None:
            line.connected(self.sock)


class _NotingTls(_Noting, HTTPSConnection):
    pass


class _Plain(HTTPConnectionPool):
    ConnectionCls = _Noting


class _Tls(HTTPSConnectionPool):
    ConnectionCls = _NotingTls


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        connections, maxsize = args[:2]
        self.poolmanager = PoolManager(num_pools=connections, maxsize=maxsize, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Plain, "https": _Tls}

    def close(self) -> None:
        """Close what is kept open too; dropping the pools leaves that to the garbage collector."""
        for key in self.poolmanager.pools.keys():  # noqa: SIM118 - it is no mapping to iterate.
            pool = self.poolmanager.pools.get(key)
            if pool is not None:
                pool.close()
        super().close()


def prepare(made: requests.Session, connections_max: int) -> None:
    """Give a session our connections, as many as there are threads; it repeats nothing."""
    for scheme in ("http://", "https://"):
        made.mount(scheme, _Adapter(1, connections_max, max_retries=0))
