"""What no HTTP library sends. After each attack the next client is served, and every slot has its owner.

How long a client may take is in test_connection_timers.py.
"""

import json
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.helpers.engines import make_engine
from tests.helpers.servers import Running, patient_app, read_all, request_bytes, running
from tests.helpers.waiting import until

BODY = {"model": "nanoinfer", "prompt": "abc", "max_tokens": 4, "temperature": 0}
CONTENT = json.dumps(BODY).encode()
CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(patient_app(make_engine(rows=8, slots=1024), max_body_bytes=100_000, max_connections=300)) as up:
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
            try:
                sock.sendall(part)
            except OSError:  # it has closed already
                break
        return read_all(sock)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_code(answer: bytes) -> str:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]


@pytest.mark.parametrize("cut", [1, 20, 60, 150])
def test_a_request_that_is_cut_off_by_its_client(server: Running, cut: int) -> None:
    whole = request_bytes("/v1/completions", CONTENT)
    with server.connect() as sock:
        sock.sendall(whole[: min(cut, len(whole) - 1)])


def test_several_requests_on_one_connection(server: Running) -> None:
    request, last = (request_bytes("/v1/completions", CONTENT, *more) for more in ((), ("connection: close",)))
    answer = talk(server, request + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b"defg") == 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"HELLO\r\n\r\n",
        b"GET / HTTP/9.9\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # without a Host header
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: example.org\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost : localhost\r\n\r\n",
        b"GET /he\x00lth HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1e9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_http_request(server: Running, garbage: bytes) -> None:
    answer = talk(server, garbage)
    assert 400 <= status(answer) < 500
    assert b'{"error": {"message": ' in answer


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (b"zz\r\nhello\r\n0\r\n\r\n", 400),
        (b"5\r\nhello\r\n0\r\n\r\n", 400),  # a body, but no JSON
        (b"5\r\nhelloworld\r\n0\r\n\r\n", 400),
        (b"3\r\nabc\r\n" * 40_000 + b"0\r\n\r\n", 413),
    ],
)
def test_chunked_nonsense(server: Running, chunks: bytes, expected: int) -> None:
    answer = talk(server, CHUNKED, chunks)
    assert answer == b"" or status(answer) == expected, answer[:200]  # empty: it was closed while this was sent


def test_a_chunked_body_is_a_body(server: Running) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, CONTENT[i : i + 1]) for i in range(len(CONTENT))) + b"0\r\n\r\n"
    answer = talk(server, CHUNKED + chunks)
    assert status(answer) == 200
    assert b"defg" in answer


def test_a_body_with_two_lengths_is_refused_and_nothing_after_it_is_served(server: Running) -> None:
    """A proxy that believes the length takes for a body what this server would take for a request (RFC 9112, 6.1)."""
    smuggled = request_bytes("/flush_cache", b"")
    first = request_bytes("/v1/completions", b"0\r\n\r\n" + smuggled, "transfer-encoding: chunked")
    answer = talk(server, first)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert (status(answer), error_code(answer)) == (400, "invalid_http")
    assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize("head", [b"GET /health", b"POST /v1/completions"])
def test_a_body_that_is_malformed_at_once_has_one_answer_and_is_no_bug(
    server: Running, head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = talk(server, head + b" HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
    assert (status(answer), error_code(answer)) == (400, "invalid_http")
    until(lambda: not server.server.server_state.tasks)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_flood_of_headers(server: Running) -> None:
    many = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(20_000))
    one = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 200_000
    for flood in (many, one):
        answer = talk(server, flood)
        assert answer == b"" or (status(answer), error_code(answer)) == (400, "invalid_http")


@pytest.mark.parametrize("headers", [b"x: " + b"y" * 20_000 + b"\r\n", b"x: y\r\n" * 5000])
def test_headers_that_arrive_together_are_bounded_too(server: Running, headers: bytes) -> None:
    answer = talk(server, b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + headers + b"\r\n")
    assert (status(answer), error_code(answer)) in ((431, "headers_too_large"), (400, "invalid_http")), answer[:200]


def test_a_length_beyond_the_limit_is_refused_before_anything_is_sent(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(request_bytes("/v1/completions", b"", "expect: 100-continue", length=10**12))
        answer = read_all(sock)
    assert status(answer) == 413
    assert b"100 Continue" not in answer


@pytest.mark.parametrize("path", ["/v1/completions", "/health"])
def test_an_answer_before_the_bodys_end_closes_the_connection(server: Running, path: str) -> None:
    """Otherwise the next request would be read as the rest of this one's body."""
    first = request_bytes(path, b"{", "host: attacker.example", length=50)
    first = first.replace(b"host: 127.0.0.1\r\n", b"")
    answer = talk(server, first)
    assert (status(answer), error_code(answer)) == (403, "host_not_allowed")
    assert b"\r\nconnection: close\r\n" in answer


def test_a_refusal_after_the_bodys_end_keeps_the_connection(server: Running) -> None:
    refused = request_bytes("/v1/completions", b"{}", "host: attacker.example").replace(b"host: 127.0.0.1\r\n", b"")
    answer = talk(server, refused + request_bytes("/v1/completions", CONTENT, "connection: close"))
    assert answer.startswith(b"HTTP/1.1 403 ")
    refusal, _, second = answer.partition(b"HTTP/1.1 200 OK")
    assert b"connection: close" not in refusal
    assert b"defg" in second


def test_a_client_that_shuts_its_side_is_taken_for_gone(server: Running) -> None:
    """Half-closed connections are not served: nobody could tell them from a client that went."""
    with server.connect() as sock:
        sock.sendall(request_bytes("/v1/completions", json.dumps({**BODY, "stream": True, "max_tokens": 50}).encode()))
        sock.shutdown(socket.SHUT_WR)
        read_all(sock)


def test_a_client_that_resets_the_connection_in_the_middle_of_a_stream(server: Running) -> None:
    for _ in range(10):
        sock = server.connect()
        sock.sendall(request_bytes("/v1/completions", json.dumps({**BODY, "stream": True, "max_tokens": 60}).encode()))
        sock.recv(200)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


def test_an_upgrade_that_is_not_to_be_had(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n"
    assert status(talk(server, head)) == 200
    assert "pip install" not in caplog.text


def test_a_thousand_connections_that_open_and_drop(server: Running) -> None:
    for _ in range(5):
        socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        for sock in socks:
            sock.close()
    # Served after those that came before: till then, some may not even have been accepted, or are open still.
    until(lambda: server.get("/health").status_code == 200, "a place")


def test_more_connections_than_allowed_are_refused_and_the_others_are_served(server: Running) -> None:
    socks = [server.connect() for _ in range(301)]
    answer = read_all(socks[-1])
    assert (status(answer), error_code(answer)) == (503, "overloaded")
    assert b"\r\nretry-after: 1\r\n" in answer
    for sock in (socks[299], socks[0]):
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert status(read_all(sock)) == 200
    for sock in socks:
        sock.close()


@pytest.mark.parametrize("start", ["", "http://localhost", "HTTPS://127.0.0.1:80"])
def test_a_request_in_absolute_form_is_routed_as_any_other(server: Running, start: str) -> None:
    head = f"GET {start}/v1/models?a=1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    answer = talk(server, head.encode())
    assert status(answer) == 200, answer
    assert b'"id":"nanoinfer"' in answer
    post = request_bytes("/v1/completions", CONTENT, "connection: close").replace(
        b"POST /", b"POST " + start.encode() + b"/"
    )
    assert status(talk(server, post)) == 200


def test_the_host_of_an_absolute_form_counts(server: Running) -> None:
    end = b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    assert status(talk(server, b"GET http://attacker.example/v1/models" + end)) == 403
    assert status(talk(server, b"GET http://localhost" + end)) == status(talk(server, b"GET /" + end))
