"""Clients that go, that do not read, or are too many: nothing is generated for them, and they hold nothing."""

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.async_engines import with_barrier
from tests.helpers.engines import make_engine
from tests.helpers.servers import (
    BODY,
    Running,
    in_a_pass,
    patient_app,
    read_all,
    request_bytes,
    running,
    send,
    sent_events,
    server_behind_barrier,
)
from tests.helpers.waiting import run, until, until_async


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", ["a", ["a", "b"]])
def test_a_client_that_goes_is_aborted_within_a_step(stream: bool, prompts: Any) -> None:
    with server_behind_barrier() as (server, barrier, engine):
        sock = server.connect()
        send(sock, {**BODY, "prompt": prompts, "stream": stream, "max_tokens": 40})
        until(lambda: server.service.open and in_a_pass(engine))
        sock.close()
        until(lambda: all(server.closed_by()))
        barrier.let_one_through()
        until(lambda: not server.service.open)
        assert (engine.stats().aborted, barrier.passes) == (len(prompts), 1)
        barrier.open()
        server.check_idle()
        until(lambda: 'http_responses_total{model_name="nanoinfer",status="0"} 1.0' in server.get("/metrics").text)
        assert 'status="5' not in server.get("/metrics").text, "a client that goes is no error of the server"
        assert server.metric('nanoinfer:requests_aborted_total{model_name="nanoinfer",reason="disconnect"}') == 1


def test_a_reader_that_does_not_read_is_paused_and_goes_on_when_it_reads() -> None:
    """The bound is on unread pieces. A client that reads nothing fills the buffers first, so this uses the application
    itself, whose `send` waits."""
    engine, barrier = with_barrier(False)
    app = patient_app(engine, max_unread=4)
    service = app.state.service

    async def talk() -> bytes:
        sent: list[bytes] = []
        go = asyncio.Event()
        body = json.dumps({**BODY, "max_tokens": 40, "stream": True}).encode()
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                sent.append(message["body"])
                await go.wait()

        headers = [(b"host", b"test"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
        task = asyncio.create_task(
            app({**scope, "root_path": "", "http_version": "1.1", "scheme": "http"}, receive, send)
        )
        await until_async(lambda: service.open)
        (generation,) = service.open
        unread = generation.streams[0]._delivery.queue
        barrier.let_one_through()
        await until_async(lambda: sent, "the first token")
        for i in range(1, 5):
            barrier.let_one_through()
            await until_async(lambda: unread.qsize() == i)  # noqa: B023
        barrier.open()  # the fourth unread token has paused the request; one more pass may have begun before
        stats = await service.engine.stats()
        assert (stats.paused, stats.request_slots) == (1, 0), "it holds no slots meanwhile"
        for _ in range(3):
            await service.engine.stats()  # answered between two passes, if there are any
        assert unread.qsize() == barrier.passes - 1 in (4, 5)
        go.set()
        await task
        await service.close()
        return b"".join(sent)

    texts = [event["choices"][0]["text"] for event in sent_events(run(talk).decode())]
    assert "".join(texts) == "".join(chr(98 + i) for i in range(40) if 98 + i < 128) + "".join(map(chr, range(10)))


# --- what no HTTP library sends ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Iterator[Running]:
    with running(patient_app(make_engine(rows=8, slots=1024))) as up:
        yield up


@pytest.mark.parametrize("how", ["in the head", "in the body", "half-closed", "reset"])
def test_connections_that_end_in_the_middle(small: Running, how: str) -> None:
    body = {**BODY, "stream": True, "max_tokens": 50}
    whole = request_bytes("/v1/completions", json.dumps(body).encode())
    for _ in range(5):
        with small.connect() as sock:
            sock.sendall(whole[: {"in the head": 60, "in the body": -1}.get(how)])
            if how == "half-closed":  # nobody could tell it from a client that went
                sock.shutdown(socket.SHUT_WR)
                read_all(sock)
            elif how == "reset":
                sock.recv(200)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: not small.server.server_state.connections)
    small.check_idle()


def test_more_requests_than_allowed_are_refused_but_not_who_asks_for_health() -> None:
    with server_behind_barrier(settings={"max_requests": 1}) as (server, barrier, engine):
        sock = server.connect()
        send(sock, {**BODY, "max_tokens": 2}, "connection: close")
        until(lambda: in_a_pass(engine))
        refused = server.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert server.get("/health").status_code == 200
        barrier.open()
        read_all(sock)
        assert server.get("/v1/models").status_code == 200
