"""Start servers to test against as plain processes, and stop them again.

Only the standard library is used. Each server is installed into a virtual environment of its
own the first time it is wanted, with the versions pinned here.

    python -m localstack.servers up      start the S3 servers LocalStack and SeaweedFS, wait until
                                         they answer, print the variables
    python -m localstack.servers env     print the variables again (NAME: localstack, seaweedfs)
    python -m localstack.servers down    stop them and throw away what they hold
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from localstack.kinds import KINDS, Kind, Speech, node, send

ROOT: Final = Path(__file__).resolve().parent.parent
STATE: Final = ROOT / ".servers"
UP: Final = STATE / "up"
BUCKET: Final = "ckptstore"
READY_S_MAX: Final = 120.0
STOP_S_MAX: Final = 2.0
INSTALL_S_MAX: Final = 900.0
_PR_SET_PDEATHSIG: Final = 1
_TOGETHER: Final = [kind for kind in KINDS.values() if kind.together]


class Server:
    """A running server. ``url`` waits until it is ready."""

    def __init__(self, kind: Kind, home: Path, *, outlive_us: bool = False) -> None:
        programs = installed(kind)
        self.name = kind.name
        self._speech = kind.speech
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
            self._ready = _works(self._speech, self._url)
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
    """Servers that are started when they are asked for, and with them those that go together."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._running: dict[str, Server] = {}

    def url(self, name: str) -> str:
        """Return the endpoint of a server, when it is ready."""
        if name not in self._running:
            for kind in _TOGETHER if KINDS[name] in _TOGETHER else [KINDS[name]]:
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
    wanted = "\n".join(kind.requirements + kind.packages)
    with (STATE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Two test runs may want it at the same time.
        if not stamp.exists() or stamp.read_text() != wanted:
            print(f"installing {kind.name} into {environment} ...", file=sys.stderr)
            _run([sys.executable, "-m", "venv", "--clear", str(environment)])
            pip = [str(environment / "bin" / "python"), "-m", "pip"]
            quiet = ["-qq", "--disable-pip-version-check"]
            _run([*pip, "install", *quiet, *kind.requirements])
            if kind.packages:
                _install_packages(environment, kind.packages)
            stamp.write_text(wanted)
    return environment / "bin"


def _install_packages(environment: Path, packages: tuple[str, ...]) -> None:
    program = node(environment / "bin")
    npm = program.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    quiet = ["--silent", "--no-audit", "--no-fund", "--no-update-notifier"]
    _run([str(program), str(npm), "install", *quiet, "--prefix", str(environment), *packages])


def variables(name: str, url: str) -> dict[str, str]:
    """Return what to set so that its own tools, and ckptstore, talk to that server."""
    return KINDS[name].speech.variables(url)


def up() -> None:
    if not UP.exists():
        started = [Server(kind, UP / kind.name, outlive_us=True) for kind in _TOGETHER]
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
    """Make the bucket that everything here uses, on a server that speaks S3."""
    send("PUT", f"{url}/{BUCKET}")


def _works(speech: Speech, url: str) -> bool:
    try:
        speech.store(url, f"{BUCKET}-ready")
    except OSError:  # urllib's errors are OSErrors.
        return False
    return True


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_S_MAX, stdout=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=("up", "down", "env"))
    names = [kind.name for kind in _TOGETHER]
    parser.add_argument("name", choices=names, nargs="?", default="localstack")
    chosen = parser.parse_args()
    if chosen.action == "env":
        env(chosen.name)
    else:
        {"up": up, "down": down}[chosen.action]()


if __name__ == "__main__":
    main()
