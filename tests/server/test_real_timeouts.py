"""Limits of time for clients, as the clock of this machine has them, and very many connections.

What follows from a limit that is over is in test_connection_timers.py, without a clock.
"""

import json
import select
import socket
from collections.abc import Iterator

import pytest

from tests.helpers.engines import make_engine
from tests.helpers.servers import Running, patient_app, read_all, request_bytes, running
from tests.helpers.waiting import until

pytestmark = pytest.mark.soak
CONTENT = json.dumps({"model": "nanoinfer", "prompt": "abc", "max_tokens": 4, "temperature": 0}).encode()
SHORT = dict.fromkeys(("header_timeout_s", "body_timeout_s", "idle_timeout_s", "write_timeout_s"), 0.3)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(patient_app(make_engine(rows=8, slots=1024), **SHORT)) as up:
        yield up


@pytest.fixture(autouse=True)
def still_serves(server: Running) -> Iterator[None]:
    yield
    until(lambda: not server.server.server_state.connections)
    server.check_idle()


def talk(server: Running, *parts: bytes) -> bytes:
    """Send parts, and read until the server closes the connection."""
    with server.connect() as sock:
        for part in parts:
            sock.sendall(part)
        return read_all(sock)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_code(answer: bytes) -> str:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]


@pytest.mark.parametrize("cut", [1, 60, 150])
def test_a_request_that_never_goes_on_is_told_so_and_closed(server: Running, cut: int) -> None:
    answer = talk(server, request_bytes("/v1/completions", CONTENT)[:cut])
    assert (status(answer), error_code(answer)) == (408, "timeout")


def test_a_connection_that_says_nothing_is_closed(server: Running) -> None:
    assert status(talk(server)) == 408


def test_slowloris_gets_no_more_time_for_each_byte(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
        while True:
            readable, _, _ = select.select([sock], [], [], 0.05)
            if readable:
                break
            try:
                sock.sendall(b"a")
            except OSError:
                break
        assert status(read_all(sock)) == 408


def test_a_body_byte_by_byte_gets_no_more_time_either(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(request_bytes("/v1/completions", b"", length=1000))
        while True:
            readable, _, _ = select.select([sock], [], [], 0.05)
            if readable:
                break
            try:
                sock.sendall(b" ")
            except OSError:
                break
        assert status(read_all(sock)) == 408


def test_an_idle_connection_is_closed(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = read_all(sock)
    assert status(answer) == 200


def test_ten_thousand_connections_that_open_and_drop(server: Running) -> None:
    for _ in range(50):
        socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        for sock in socks:
            sock.close()
