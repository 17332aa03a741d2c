"""Client: sends requests over raw connections and stores packets with the time at which they came. It reads nothing but
where an answer ends: client and server share the cores, so what the client does is taken from what it measures."""

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nanoinfer.bench.serve.answers import split_head

LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass
class Exchange:
    """A request and what came for it. `due`: when it was to be sent; a client that is late makes no server look faster.

    `ended`: when the answer was there; None while it is not. `failure`: what went wrong with the connection.
    """

    due: float
    packets: list[tuple[float, bytes]] = field(default_factory=list)
    ended: float | None = None
    failure: str | None = None


class Connection(asyncio.Protocol):
    """One connection, for one request after another. `is_open`: whether it can take the next one."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.is_open = True
        self._packets: list[tuple[float, bytes]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        self._has_head = False  # how an answer ends is known
        self._is_chunked = False  # it ends with its last chunk,
        self._left: int | None = None  # or after so many more bytes; neither: with the connection
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Store a packet; wake who waits for the answer if this is its end."""
        self._packets.append((time.perf_counter(), data))
        try:
            is_end = self._is_end(data)
        except ValueError as error:
            self._wake(error)
            return
        if is_end:
            self._wake(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """An answer without a length ends here; any other one is cut."""
        self.is_open = False
        ends_so = self._has_head and not self._is_chunked and self._left is None
        self._wake(None if ends_so else exc or ConnectionResetError("the server closed the connection"))

    async def ask(self, request: bytes, packets: list[tuple[float, bytes]]) -> None:
        """Send a request and wait for the end of its answer, whose packets are appended to `packets`.

        OSError when the connection is lost, ValueError for an answer that is not HTTP.
        """
        self._packets, self._head, self._has_head = packets, b"", False
        self._is_chunked, self._left = False, None
        self._waiter = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await self._waiter

    def _is_end(self, data: bytes) -> bool:
        if self._is_chunked:
            self._tail = (self._tail + data)[-len(LAST_CHUNK) :]
            return self._tail == LAST_CHUNK
        if self._left is not None:
            self._left -= len(data)
            return self._left <= 0
        if self._has_head:
            return False
        self._head += data
        head = split_head(self._head)
        if head is None:
            return False
        _, headers, start = head
        body, self._has_head = self._head[start:], True
        if headers.get("connection", "").lower() == "close":
            self.is_open = False  # for the next request
        if headers.get("transfer-encoding") == "chunked":
            self._is_chunked = True
            self._tail = b"\r\n"
            return self._is_end(body)
        if "content-length" in headers:
            self._left = int(headers["content-length"])
            return self._is_end(body)
        return False

    def _wake(self, error: Exception | None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


class Client:
    """Sends requests to one server over as many connections as are needed at the same time, and keeps those."""

    def __init__(self, port: int, host: str = "127.0.0.1"):
        self._host, self._port = host, port
        self._idle: list[Connection] = []

    async def ask(self, request: bytes, exchange: Exchange) -> None:
        """Send a request; what comes is stored in `exchange`, also when the server or the connection fails."""
        try:
            await self._ask(request, exchange)
            exchange.ended = time.perf_counter()
        except (OSError, ValueError) as error:
            exchange.failure = str(error) or type(error).__name__

    async def _ask(self, request: bytes, exchange: Exchange) -> None:
        while True:
            was_used, connection = await self._connection()
            try:
                await connection.ask(request, exchange.packets)
            except OSError:
                if was_used and not exchange.packets:
                    continue  # the server had closed an idle connection
                raise
            except BaseException:
                connection.transport.abort()
                raise
            if connection.is_open:
                self._idle.append(connection)
            else:
                connection.transport.abort()
            return

    async def _connection(self) -> tuple[bool, Connection]:
        """A connection, and whether it has been used before."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return True, connection
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._host, self._port)
        return False, connection

    def close(self) -> None:
        """Close all connections that are not in use."""
        for connection in self._idle:
            with suppress(OSError):
                connection.transport.abort()
        self._idle.clear()


def as_request(path: str, body: Mapping[str, Any]) -> bytes:
    """A POST as it goes over the wire."""
    content = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    return "\r\n".join([*head, f"content-length: {len(content)}", "", ""]).encode() + content
