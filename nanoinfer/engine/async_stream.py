"""AsyncStream: the end from which a coroutine reads one request of an AsyncEngine. Delivery: the engine thread's end."""

import asyncio
from collections.abc import Callable

from nanoinfer.errors import EngineClosedError, StepFailedError
from nanoinfer.outputs import RequestOutput, StreamPiece
from nanoinfer.requests.pieces import PieceReader

Item = StreamPiece | RequestOutput | EngineClosedError  # what a stream receives; the last two end it


class Delivery:
    """The engine thread's end of a stream: what it needs to serve a request. It holds no reference to the AsyncStream, so
    a stream without readers is garbage-collected, which aborts its request.

    `hold(delivery, True)` is called when its reader is `max_unread` pieces behind, and with False when half are read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_unread: int | None = None,
        hold: "Callable[[Delivery, bool], None] | None" = None,
    ):
        self.loop = loop
        self.queue: asyncio.Queue[Item] = asyncio.Queue()  # used only in its event loop, as are the next four
        self.max_unread, self.hold, self.is_held = max_unread, hold, False
        self.request_id: int | None = None
        self.pieces: PieceReader | None = None

    def put(self, item: Item) -> None:
        """Give an item to the reader."""
        self.queue.put_nowait(item)
        if self.max_unread is not None and not self.is_held and self.queue.qsize() >= self.max_unread:
            self._set_held(True)

    def note_read(self) -> None:
        """The reader has taken items."""
        if self.is_held and self.max_unread is not None and self.queue.qsize() <= self.max_unread // 2:
            self._set_held(False)

    def repeat_hold(self) -> None:
        """Another engine goes on with the request: say to it, too, that the reader is behind, if it is."""
        if self.is_held:
            self._set_held(True)

    def _set_held(self, held: bool) -> None:
        self.is_held = held
        if self.hold is not None:
            self.hold(self, held)


class AsyncStream:
    """The stream of one request, which `AsyncEngine.add` returns: an asynchronous iterator over its StreamPieces.

    `request_id` identifies the request. The request is aborted if the stream is closed or garbage-collected before its end.
    A stream has one reader at a time, in the event loop where the stream was made.
    """

    def __init__(self, delivery: Delivery, request_id: int, drop: Callable[[Delivery, bool], None]):
        self._delivery, self.request_id, self._drop = delivery, request_id, drop
        self._output: RequestOutput | EngineClosedError | None = None

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> StreamPiece:
        """The next piece. StepFailedError when a step that computed the request raised, EngineClosedError when it
        was lost because of a bug."""
        if self._output is None:
            item = await self._delivery.queue.get()
            self._delivery.note_read()
            if isinstance(item, StreamPiece):
                return item
            self._output = item
        self._check_end()
        raise StopAsyncIteration

    async def read(self) -> list[StreamPiece]:
        """Everything that has arrived since the last read, joined into one piece per completion; waits until there is
        something. Empty when the stream has ended. Errors as in `__anext__`, once all pieces have been read."""
        queue, pieces = self._delivery.queue, dict[int, StreamPiece]()
        while self._output is None and not (pieces and queue.empty()):
            item = await queue.get()
            if isinstance(item, StreamPiece):
                before = pieces.get(item.index)
                pieces[item.index] = item if before is None else before + item
            else:
                self._output = item
        self._delivery.note_read()
        if not pieces:
            self._check_end()
        return list(pieces.values())

    @property
    def final(self) -> RequestOutput | None:
        """The request's last output, once the stream has been read to the end."""
        return self._output if isinstance(self._output, RequestOutput) else None

    def _check_end(self) -> None:
        """Raise what ended the request, if it was an error."""
        if isinstance(self._output, EngineClosedError):
            raise self._output
        assert self._output is not None
        if self._output.error is not None:
            error = self._output.error
            raise StepFailedError(
                f"request {self.request_id} ended because its step failed: {type(error).__name__}: {error}"
            ) from error

    async def output(self) -> RequestOutput:
        """Read to the end and return the request's last output. Errors as in `__anext__`."""
        async for _ in self:
            pass
        assert isinstance(self._output, RequestOutput)
        return self._output

    def close(self) -> None:
        """Abort the request unless it has ended. The remaining pieces can still be read; the last one has the reason."""
        if self._output is None:
            self._drop(self._delivery, True)

    def __del__(self) -> None:
        if self._output is None:
            self._drop(self._delivery, False)


def send(loop: asyncio.AbstractEventLoop, items: list[tuple[Delivery, Item]]) -> bool:
    """Send items to streams in one event loop, from another thread. False if it is closed, so that nothing reads them."""
    try:
        loop.call_soon_threadsafe(_put, items)
    except RuntimeError:
        return False
    return True


def _put(items: list[tuple[Delivery, Item]]) -> None:
    for delivery, item in items:
        delivery.put(item)
