"""Connection: uvicorn's HTTP protocol, with limits that it does not have.

    header_timeout_s   from a connection's start, or a request's first byte, to the end of its headers
    body_timeout_s     from there to the end of the body
    idle_timeout_s     between the end of an answer and the next request's first byte (uvicorn's own keep-alive)
    write_timeout_s    while the client reads nothing, and what was written fills the buffers or is left at the end
    max_connections    one more is answered with a 503 and closed

Clients that take longer are told so (408) if they may still be listening, and cut off. One timer runs per connection: what
it is for changes as the request proceeds. Headers that arrive in pieces may have 16 KiB, h11's limit; gate.py
checks those that arrive together. A client that shuts its sending side is taken for gone: nobody could tell it from one
that closed the connection.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from nanoinfer.server.errors import ApiError
from nanoinfer.server.settings import ServerSettings


class Connection(H11Protocol):
    """One connection. `connection_class` makes the class for a server's settings."""

    settings: ServerSettings
    app_state: dict[str, Any]  # what `scope["state"]` begins as
    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers, or refuse the connection."""
        self.app_state = {**self.app_state, "body_is_coming": lambda: self.conn.their_state is h11.SEND_BODY}
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            most = self.settings.max_connections
            self._refuse(ApiError(503, f"too many connections: {most} are open", code="overloaded"))
            return
        self._wait("headers", self.settings.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._stop_waiting()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived, and decide what is waited for now."""
        if self.transport.is_closing():
            return
        if self.conn.their_state in (h11.IDLE, h11.DONE, h11.MUST_CLOSE) and not self.conn.trailing_data[0]:
            data = data.lstrip(b"\r\n")  # some clients send an empty line after a body (RFC 9112, 2.2)
            if not data:
                return
        if self._timer is None and self.conn.their_state is h11.IDLE:
            self._wait("headers", self.settings.header_timeout_s)
        before = self.conn.their_state
        super().data_received(data)
        self._listen_on()
        self._follow(before)

    def on_response_complete(self) -> None:
        """The next request may be there already."""
        super().on_response_complete()
        self._follow(None)
        self._wait_for_reader_if_closing()

    def timeout_keep_alive_handler(self) -> None:
        """No other request came."""
        super().timeout_keep_alive_handler()
        self._wait_for_reader_if_closing()

    def pause_writing(self) -> None:
        """The client reads nothing: give it some time."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._stop_write_timer()
        self._wait_for_reader_if_closing()

    def send_400_response(self, msg: str) -> None:
        """An error in OpenAI's shape instead of plain text."""
        self._refuse(
            ApiError(400, "this is not a valid HTTP request, or its headers are too large", code="invalid_http")
        )

    def _unsupported_upgrade_warning(self) -> None:
        """A wish to change the protocol may be ignored. uvicorn's advice to install more would mislead."""

    def _listen_on(self) -> None:
        """uvicorn reads nothing while a request is answered and more has come already: it would not see its client go."""
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()

    def _follow(self, before: Any) -> None:
        """Start or stop the timer when a request has reached its next part."""
        now = self.conn.their_state
        if self.transport.is_closing() or now is before:
            return
        if now is h11.SEND_BODY:
            self._wait("the body", self.settings.body_timeout_s)
        elif now is not h11.IDLE:
            self._stop_waiting()
        elif before is None and self.conn.trailing_data[0]:
            self._wait("headers", self.settings.header_timeout_s)

    def _wait(self, what: str, seconds: float) -> None:
        self._unset_keepalive_if_required()
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self._give_up_reading, what, seconds)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _give_up_reading(self, what: str, seconds: float) -> None:
        self._timer = None
        self._refuse(ApiError(408, f"{what} took longer than {seconds:g} seconds", code="timeout"))

    def _wait_for_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread and self._write_timer is None:
            self._write_timer = self.loop.call_later(self.settings.write_timeout_s, self._look_at_reader, unread)

    def _wait_for_reader_if_closing(self) -> None:
        """A transport that closes keeps the connection until the client has read everything."""
        if self.transport.is_closing():
            self._wait_for_reader()

    def _look_at_reader(self, unread: int) -> None:
        """Give the client time again if it has read some of what was `unread`. Nothing is added meanwhile."""
        self._write_timer = None
        if self.transport.get_write_buffer_size() < unread:
            self._wait_for_reader()
            return
        if self.scope is not None:
            self.scope["state"]["is_slow"] = True
        self.transport.abort()

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error, as far as HTTP allows it now, and close."""
        self._stop_waiting()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application's answer would be a second one
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("content-type", "application/json"), ("content-length", str(len(error.body)))]
            more = [*error.headers.items(), ("connection", "close")]
            try:
                response = h11.Response(
                    status_code=error.status, reason=STATUS_PHRASES[error.status], headers=[*headers, *more]
                )
                written = [self.conn.send(event) for event in (response, h11.Data(data=error.body), h11.EndOfMessage())]
                self.transport.write(b"".join(part for part in written if part))
            except h11.LocalProtocolError:  # the connection is past the point where an answer fits
                pass
        self.transport.close()
        self._wait_for_reader_if_closing()


def connection_class(settings: ServerSettings) -> type[Connection]:
    """The class of connections for uvicorn's `http=`."""
    return type("Connection", (Connection,), {"settings": settings})
