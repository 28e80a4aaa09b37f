"""The benchmarks measure what they say: the sink, the tasks, the page."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from benchmarks.child import Measurement, counted
from benchmarks.config import CONF, read_conf
from benchmarks.harness import Failure, Taken, absent
from benchmarks.measure import Cost
from benchmarks.peers import PEERS
from benchmarks.peers.base import MIB, Peer, Task
from benchmarks.report import markdown
from benchmarks.results_file import Results
from benchmarks.sink import DRAIN, Sink
from benchmarks.targets import targets


@pytest.fixture
def sink() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):  # The end of the test.
                Sink().serve(listener)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)


def ask(
    sink: tuple[str, int], method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*sink, timeout=5)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body or None, named)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_the_sink_gives_back_what_it_was_sent(sink: tuple[str, int]) -> None:
    assert ask(sink, "PUT", "/b/one", b"0123456789", If_None_Match="*")[0] == 200
    assert ask(sink, "PUT", "/b/one", b"x", If_None_Match="*")[0] == 412
    assert ask(sink, "GET", "/b/one", Range="bytes=2-4") == (206, b"234")
    assert ask(sink, "GET", "/b/one", Range="bytes=10-")[0] == 416
    assert b"<Key>one</Key>" in ask(sink, "GET", "/b?list-type=2&prefix=o")[1]
    assert b"<Key>" not in ask(sink, "GET", "/b?list-type=2&prefix=p")[1]
    assert ask(sink, "DELETE", "/b/one")[0] == 204
    assert ask(sink, "GET", "/b/one")[0] == 404


def test_the_sink_joins_parts_by_number(sink: tuple[str, int]) -> None:
    begun = ask(sink, "POST", "/b/two?uploads")[1].decode()
    upload = begun.partition("<UploadId>")[2].partition("<")[0]
    for number, body in ((2, b"cdef"), (1, b"ab")):
        ask(sink, "PUT", f"/b/two?partNumber={number}&uploadId={upload}", body)
    assert ask(sink, "GET", "/b/two")[0] == 404
    assert ask(sink, "POST", f"/b/two?uploadId={upload}")[0] == 200
    assert ask(sink, "GET", "/b/two", Range="bytes=1-3") == (206, b"bcd")


def test_the_sink_undoes_the_framing_of_a_body(sink: tuple[str, int]) -> None:
    framed = b"4;chunk-signature=x\r\nabcd\r\n2\r\nef\r\n0\r\nx-amz-checksum-crc32:AA==\r\n\r\n"
    ask(sink, "PUT", "/b/three", framed, Content_Encoding="aws-chunked")
    assert ask(sink, "GET", "/b/three")[1] == b"abcdef"


def test_what_is_drained_is_counted_and_gone(sink: tuple[str, int]) -> None:
    endpoint = f"http://{sink[0]}:{sink[1]}"
    assert ask(sink, "PUT", f"/{DRAIN}/big", bytes(3 * MIB))[0] == 200
    assert ask(sink, "GET", f"/{DRAIN}/big")[1] == b""
    assert counted(endpoint) == {"PUT": 1, "GET": 1}
    assert counted(endpoint) == {}


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("*.toml")))
def test_every_series_has_peers_and_cases(name: str) -> None:
    conf = read_conf(name)
    assert conf.rounds >= 1
    for series in conf.series:
        assert series.peers
        assert series.cases()
        assert series.baseline in series.peers or series.baseline == "s3torchconnector"


def test_a_peer_that_is_not_there_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer("ghost", PEERS["upload"]["raw sockets"].open, ["no_such_module"])
    monkeypatch.setitem(PEERS, "upload", {"ghost": peer})
    assert "no_such_module is not installed" in absent("upload", "ghost")


def test_memory_is_measured_above_what_was_there() -> None:
    child = (  # Of its own: what other children of this process once took is counted as well.
        "from benchmarks.measure import measured\n"
        "with measured() as cost:\n"
        f"    data = bytearray({64 * MIB})\n"
        "print(cost.peak_extra_bytes)"
    )
    command = [sys.executable, "-c", child]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert 60 * MIB < int(done.stdout) < 80 * MIB


def measurement(peer: str, cpu_s: float) -> Measurement:
    task = Task(workload="upload", peer=peer, size_bytes=1 << 30, warm_up_bytes=1)
    return Measurement(task=task, cost=Cost(wall_s=1, user_s=cpu_s), requests={"PUT": 3})


def test_the_page_says_what_was_found_missed_and_absent() -> None:
    series = "upload of 1 GiB"
    taken = [("ckptstore", 0.3), ("ckptstore", 0.5), ("ckptstore", 0.4)]
    taken += [("raw sockets", 0.2), ("obstore", 0.8)]
    results = Results(
        command="python -m benchmarks",
        commit="c0ffee",
        machine={"cores": "2"},
        versions={},
        taken=[Taken(series, measurement(peer, cpu_s)) for peer, cpu_s in taken],
        failures=[Failure(series, "rclone", "not installed")],
    )
    assert [(round(one.found, 2), one.met) for one in targets(results)] == [
        (2.0, False),
        (0.5, True),
    ]
    page = markdown(results, ["x.svg"])
    assert "| ckptstore | 0.40 [0.30, 0.50] |" in page
    assert "**missed**" in page
    assert "- upload of 1 GiB, rclone: not installed" in page
    assert "`c0ffee`" in page
