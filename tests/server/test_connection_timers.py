"""How long a client may take: for headers, for a body, between requests, and to read. Timers run when a test says so."""

import asyncio
from typing import Any

import pytest

from nanoinfer.server import make_app
from nanoinfer.server.connections import Connection
from nanoinfer.server.run import make_server
from tests.helpers.engines import make_engine
from tests.helpers.hand_connections import BODY, CHUNKED, HEADERS, IDLE, REQUEST, WRITE, Opened, opened
from tests.helpers.servers import request_bytes
from tests.helpers.waiting import run, until_async

# --- reading ----------------------------------------------------------------------------------------------------------


@opened
async def test_a_connection_that_says_nothing_is_closed(client: Opened) -> None:
    await client.gives_up(HEADERS)
    client.receive(REQUEST)  # too late
    assert client.calls == 0


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_headers_that_never_end_are_told_so_and_closed(cut: int) -> None:
    async def test(client: Opened) -> None:
        client.receive(REQUEST[:cut])
        await client.gives_up(HEADERS)

    opened(test)()


@opened
async def test_a_body_that_never_ends_is_told_so_and_closed(client: Opened) -> None:
    client.receive(REQUEST[:-1])
    await until_async(lambda: client.calls == 1)
    await client.gives_up(BODY)


@opened
async def test_slowloris_gets_no_more_time_for_each_byte(client: Opened) -> None:
    (timer,) = client.loop.timers
    for i in range(60):
        client.receive(REQUEST[i : i + 1])
        assert client.loop.timers == [timer]
    await client.gives_up(HEADERS)


@opened
async def test_a_body_byte_by_byte_gets_no_more_time_either(client: Opened) -> None:
    client.receive(request_bytes("/", b"", length=1000))
    (timer,) = client.loop.timers
    for _ in range(60):
        client.receive(b" ")
        await asyncio.sleep(0)
        assert client.loop.timers == [timer]
    await client.gives_up(BODY)


@pytest.mark.parametrize("chunks", [b"fffffffffffffffffff\r\nx", b"5;" + b"x" * 70_000 + b"\r\n"])
def test_chunks_that_never_end(chunks: bytes) -> None:
    async def test(client: Opened) -> None:
        client.receive(CHUNKED)
        client.receive(chunks)
        await client.gives_up(BODY)

    opened(test)()


@opened
async def test_an_idle_connection_is_closed_without_a_word(client: Opened) -> None:
    client.receive(REQUEST)
    await client.answered(1)
    assert client.loop.waits == [IDLE]
    written = client.transport.written
    client.loop.run_timer(IDLE)
    assert client.transport.is_closed
    assert client.transport.written == written


@opened
async def test_the_next_request_has_its_own_time(client: Opened) -> None:
    client.receive(REQUEST)
    await client.answered(1)
    client.receive(REQUEST[:1])
    assert client.loop.waits == [HEADERS]
    client.receive(REQUEST[1:-1])
    assert client.loop.waits == [BODY]
    client.receive(REQUEST[-1:])
    await client.answered(2)
    assert client.loop.waits == [IDLE]


@opened
async def test_what_follows_in_the_same_packet_has_time_too(client: Opened) -> None:
    client.receive(REQUEST + REQUEST + REQUEST[:30])
    await client.answered(2)
    await client.gives_up(HEADERS)


@opened
async def test_a_connection_that_is_lost_is_waited_for_no_more(client: Opened) -> None:
    client.receive(REQUEST[:20])
    client.transport.unread = 100_000
    client.connection.pause_writing()
    assert client.loop.waits == [HEADERS, WRITE]
    client.connection.connection_lost(None)
    assert client.loop.waits == []


@opened
async def test_a_connection_that_is_refused_is_waited_for_no_more(client: Opened) -> None:
    client.receive(b"\x00\r\n\r\n")
    assert client.transport.written.startswith(b"HTTP/1.1 400 ")
    assert client.transport.is_closed
    assert client.loop.waits == []


class Hasty(Opened):
    """Its application answers before it has the body, and closes."""

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def test_a_body_gets_no_more_time_once_its_answer_is_there() -> None:
    async def test() -> None:
        client = Hasty()
        client.receive(REQUEST[:-1])
        (timer,) = client.loop.timers
        await client.answered(1)
        assert client.transport.is_closed
        assert client.loop.timers == [timer]

    run(test)


# --- writing ----------------------------------------------------------------------------------------------------------


@opened
async def test_a_client_that_reads_slowly_is_not_cut_off(client: Opened) -> None:
    client.transport.unread = 100_000
    client.connection.pause_writing()
    for _ in range(20):
        client.transport.unread -= 1
        client.loop.run_timer(WRITE)
        assert not client.transport.is_aborted
    client.loop.run_timer(WRITE)
    assert client.transport.is_aborted, "now it has read nothing"


@opened
async def test_a_client_that_reads_everything_is_left_alone(client: Opened) -> None:
    client.transport.unread = 100_000
    client.connection.pause_writing()
    client.connection.resume_writing()
    assert WRITE not in client.loop.waits
    client.connection.pause_writing()
    client.loop.run_timer(WRITE)
    assert client.transport.is_aborted


@pytest.mark.parametrize("end", ["idle", "close", "refusal"])
def test_what_is_left_unread_at_the_end_holds_no_connection(end: str) -> None:
    """Though it is too little to stop the writing."""

    async def test(client: Opened) -> None:
        client.transport.unread = 1000
        if end == "refusal":
            client.receive(b"\x00\r\n\r\n")
        else:
            client.receive(REQUEST if end == "idle" else request_bytes("/", b"", "connection: close"))
            await client.answered(1)
        if end == "idle":
            assert client.loop.waits == [IDLE]
            client.loop.run_timer(IDLE)
        assert client.transport.is_closed
        client.transport.unread -= 1
        client.loop.run_timer(WRITE)
        assert not client.transport.is_aborted, "it has read something"
        client.loop.run_timer(WRITE)
        assert client.transport.is_aborted
        assert client.loop.waits == []

    opened(test)()


@opened
async def test_a_client_that_reads_less_and_less_of_what_is_left_is_cut_off(client: Opened) -> None:
    client.transport.unread = 100_000
    client.connection.pause_writing()
    client.transport.close()
    client.transport.unread = 1000
    client.connection.resume_writing()
    client.loop.run_timer(WRITE)
    assert client.transport.is_aborted


# --- the server that is run --------------------------------------------------------------------------------------------


def test_the_server_that_is_run_has_these_limits_and_is_there_for_this_machine_only() -> None:
    config = make_server(make_app(make_engine(), header_timeout_s=HEADERS, idle_timeout_s=IDLE)).config
    assert isinstance(config.http, type)
    assert issubclass(config.http, Connection)
    assert config.http.settings.header_timeout_s == HEADERS
    assert config.timeout_keep_alive == IDLE
    assert config.host == "127.0.0.1"
    assert (config.ws, config.proxy_headers, config.server_header, config.access_log) == ("none", False, False, False)
