"""AsyncStream: what a coroutine reads of one request of an AsyncEngine, and Delivery, the other end of it."""

import asyncio
from collections.abc import Callable

from nanoinfer.errors import EngineClosedError, StepFailedError
from nanoinfer.requests.outputs import PieceReader, RequestOutput, StreamPiece

Item = StreamPiece | RequestOutput | EngineClosedError  # what a stream receives; the last two end it


class Delivery:
    """The engine thread's end of a stream: what it needs to serve a request. It holds no reference to the AsyncStream, so
    that a stream without readers is garbage-collected and its request aborted."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self.queue: asyncio.Queue[Item] = asyncio.Queue()  # used in its event loop only
        self.request_id: int | None = None
        self.pieces: PieceReader | None = None


class AsyncStream:
    """The stream of one request, which `AsyncEngine.add` returns: an asynchronous iterator over its StreamPieces.

    `request_id` identifies the request. It is aborted when the stream is closed, or garbage-collected, before its end. For
    one reader at a time, in the event loop where the stream was made.
    """

    def __init__(self, delivery: Delivery, request_id: int, drop: Callable[[Delivery, bool], None]):
        self._delivery, self.request_id, self._drop = delivery, request_id, drop
        self._output: RequestOutput | EngineClosedError | None = None

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> StreamPiece:
        """The next piece. StepFailedError when a step that computed the request has raised, EngineClosedError when the
        engine's thread has ended unexpectedly."""
        if self._output is None:
            item = await self._delivery.queue.get()
            if isinstance(item, StreamPiece):
                return item
            self._output = item
        if isinstance(self._output, EngineClosedError):
            raise self._output
        if self._output.error is not None:
            error = self._output.error
            raise StepFailedError(
                f"request {self.request_id} ended because its step failed: {type(error).__name__}: {error}"
            ) from error
        raise StopAsyncIteration

    async def output(self) -> RequestOutput:
        """Read to the end; returns the request's last output. Errors as `__anext__`."""
        async for _ in self:
            pass
        assert isinstance(self._output, RequestOutput)
        return self._output

    def close(self) -> None:
        """Abort the request, unless it has ended. Its remaining pieces, the last one with the reason, can still be read."""
        if self._output is None:
            self._drop(self._delivery, True)

    def __del__(self) -> None:
        if self._output is None:
            self._drop(self._delivery, False)


def send(loop: asyncio.AbstractEventLoop, items: list[tuple[Delivery, Item]]) -> bool:
    """Give items to streams of one event loop, from another thread. False if it is closed: then they have no readers."""
    try:
        loop.call_soon_threadsafe(_put, items)
    except RuntimeError:
        return False
    return True


def _put(items: list[tuple[Delivery, Item]]) -> None:
    for delivery, item in items:
        delivery.queue.put_nowait(item)
