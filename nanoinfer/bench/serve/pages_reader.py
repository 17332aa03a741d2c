"""Watches a server as so many browsers do, and throws away what it reads.

    python -m nanoinfer.bench.serve.pages_reader PORT PAGES

It prints `ready` when every page has its first frame. When its standard input ends, it prints how many frames came.
"""

import asyncio
import sys
from functools import partial

REQUEST = b"GET /live/events HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n"
FRAME = b"event: frame\n"


class Page(asyncio.Protocol):
    """A connection that counts frames and keeps nothing of them."""

    def __init__(self, has_first: asyncio.Future[None]):
        self._has_first, self._end, self.frames = has_first, b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the feed."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        """Count frames, also those whose name came in two packets."""
        text = self._end + data
        self.frames += text.count(FRAME)
        self._end = text[-len(FRAME) + 1 :]
        if self.frames and not self._has_first.done():
            self._has_first.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """A server that sends nobody a frame is an error."""
        if not self._has_first.done():
            self._has_first.set_exception(exc or ConnectionResetError("the server has closed the feed"))


async def watch(port: int, pages: int) -> int:
    """Watch until standard input ends. Returns the number of frames that all pages got."""
    loop = asyncio.get_running_loop()
    opened = []
    for _ in range(pages):
        has_first: asyncio.Future[None] = loop.create_future()
        _, page = await loop.create_connection(partial(Page, has_first), "127.0.0.1", port)
        opened.append((page, has_first))
    await asyncio.gather(*(has_first for _, has_first in opened))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    return sum(page.frames for page, _ in opened)


if __name__ == "__main__":
    print(asyncio.run(watch(*map(int, sys.argv[1:]))), flush=True)
