"""How long a client may take: for headers, for a body, between requests, and to read. Timers run when a test says so."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from nanoinfer.server import ServerSettings, make_app
from nanoinfer.server.connections import Connection, connection_class
from nanoinfer.server.run import make_server
from tests.helpers.engines import make_engine
from tests.helpers.servers import request_bytes
from tests.helpers.waiting import run, until_async

HEADERS, BODY, IDLE, WRITE = 1001, 1002, 1003, 1004  # seconds, by which a timer is told from the others
REQUEST = request_bytes("/", b"content")
CHUNKED = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


class HandLoop:
    """The running event loop, but for its timers."""

    def __init__(self) -> None:
        self.timers: list[HandTimer] = []
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, seconds: float, call: Callable[..., None], *args: Any) -> "HandTimer":
        self.timers.append(HandTimer(self.timers, seconds, call, args))
        return self.timers[-1]

    @property
    def waits(self) -> list[float]:
        """The seconds of the timers that run."""
        return [timer.seconds for timer in self.timers]

    def run_timer(self, seconds: float) -> None:
        (due,) = [timer for timer in self.timers if timer.seconds == seconds]
        self.timers.remove(due)
        due.call(*due.args)


class HandTimer:
    def __init__(self, timers: "list[HandTimer]", seconds: float, call: Callable[..., None], args: tuple[Any, ...]):
        self._timers, self.seconds, self.call, self.args = timers, seconds, call, args

    def cancel(self) -> None:
        if self in self._timers:
            self._timers.remove(self)


class HandTransport:
    """`unread`: how many bytes the client has not taken yet."""

    def __init__(self) -> None:
        self.unread, self.written, self.is_closed, self.is_aborted = 100_000, b"", False, False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def write(self, data: bytes) -> None:
        assert not self.is_closing()
        self.written += data

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True


class Opened:
    """A new connection."""

    def __init__(self) -> None:
        self.loop, self.transport, self.calls, self.bodies = HandLoop(), HandTransport(), 0, 0
        settings = ServerSettings(header_timeout_s=HEADERS, body_timeout_s=BODY, write_timeout_s=WRITE)
        config = uvicorn.Config(self._app, log_config=None, interface="asgi3", lifespan="off", timeout_keep_alive=IDLE)
        made = connection_class(settings)(config, ServerState(), {}, self.loop)  # type: ignore[arg-type]
        self.connection: Connection = made
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request whose body has come."""
        self.calls += 1
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.request":
            self.bodies += 1
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    def receive(self, data: bytes) -> None:
        self.connection.data_received(data)

    async def answered(self, count: int) -> None:
        await until_async(lambda: self.transport.written.count(b"HTTP/1.1 200 ") == count)

    async def gives_up(self, seconds: float) -> None:
        """These seconds alone are waited for; then the client is told so, and nothing is served."""
        assert self.loop.waits == [seconds]
        before, bodies = self.transport.written, self.bodies
        self.loop.run_timer(seconds)
        answer = self.transport.written.removeprefix(before)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code": "timeout"' in answer
        assert b"connection: close" in answer.lower()
        assert self.transport.is_closed
        assert self.loop.waits == []
        await until_async(lambda: not self.connection.tasks)
        assert self.bodies == bodies


def opened(test: Callable[[Opened], Awaitable[None]]) -> Callable[[], None]:
    """A test that gets a new connection, in an event loop."""

    async def body() -> None:
        await test(Opened())

    def call() -> None:
        run(body)

    call.__name__, call.__doc__ = test.__name__, test.__doc__
    return call


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


# --- writing ----------------------------------------------------------------------------------------------------------


@opened
async def test_a_client_that_reads_slowly_is_not_cut_off(client: Opened) -> None:
    client.connection.pause_writing()
    for _ in range(20):
        client.transport.unread -= 1
        client.loop.run_timer(WRITE)
        assert not client.transport.is_aborted
    client.loop.run_timer(WRITE)
    assert client.transport.is_aborted, "now it has read nothing"


@opened
async def test_a_client_that_reads_everything_is_left_alone(client: Opened) -> None:
    client.connection.pause_writing()
    client.connection.resume_writing()
    assert WRITE not in client.loop.waits
    client.connection.pause_writing()
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
