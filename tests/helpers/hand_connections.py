"""A connection of the server without a network: a test plays the event loop's timers and the transport."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from nanoinfer.server import ServerSettings
from nanoinfer.server.connections import Connection, connection_class
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
        self.unread, self.written, self.is_reading = 0, b"", True
        self.is_closed, self.is_aborted = False, False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def write(self, data: bytes) -> None:
        assert not self.is_closing()
        self.written += data

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

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
