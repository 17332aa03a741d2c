"""AsyncClient: the way from coroutines to the thread that owns an engine, and back.

Whoever wants something of the engine posts a command, which the loop runs between two steps. What comes out goes to the
Delivery of its request.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from nanoinfer.engine.async_stream import Delivery, Item, send
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.engine_loop import loop_of
from nanoinfer.errors import EngineClosedError
from nanoinfer.outputs import RequestOutput, StreamPiece
from nanoinfer.requests.pieces import PieceReader
from nanoinfer.requests.request_group import RequestGroup, Update, materialize

T = TypeVar("T")
logger = logging.getLogger("nanoinfer.engine")


class AsyncClient:
    """A client of the engine's `loop`, until `close`. `is_closed`: it accepts no more requests."""

    def __init__(self, engine: Engine):
        self._engine, self.loop = engine, loop_of(engine)
        self._deliveries: dict[int, Delivery] = {}  # by request id, until its last output; used between two steps
        self.is_closed = False

    # --- for any thread ----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """EngineClosedError when it has been closed, or its loop has ended."""
        self.loop.check_open()
        if self.is_closed:
            raise EngineClosedError("this AsyncEngine has been shut down")

    async def call(self, function: Callable[[], T]) -> T:
        """Have the loop call `function` between two steps, wait, and return or raise what it does."""
        future: Future[T] = Future()

        def command() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    self.check_open()
                    future.set_result(function())
                except BaseException as error:  # raise it in the calling coroutine, not in the loop
                    future.set_exception(error)

        self.check_open()
        self.loop.post(command)
        return await asyncio.wrap_future(future)

    async def add(self, deliveries: Sequence[Delivery], groups: Sequence[RequestGroup]) -> list[int]:
        """Queue requests, all or none, and return their ids. Errors as in `Engine.submit_all`."""

        def submit() -> list[int]:
            request_ids = self.loop.submit(groups, self)
            for delivery, group in zip(deliveries, groups, strict=True):
                delivery.request_id, delivery.pieces = group.request_id, PieceReader(group)
                self._deliveries[group.request_id] = delivery
            return request_ids

        self.loop.use_threads_of_caller()
        try:
            return await self.call(submit)
        except BaseException:  # it was cancelled, for example
            for delivery in deliveries:
                self.drop(delivery, keep_reading=False)
            raise

    def drop(self, delivery: Delivery, keep_reading: bool) -> None:
        """Abort the request of a stream that has no reader or, with `keep_reading`, was closed by its reader. Never
        waits: `__del__` calls it."""

        def abort() -> None:
            if delivery.request_id in self._deliveries:
                self.abort(delivery.request_id, deliver=keep_reading)

        self.loop.post_soon(abort)

    def hold(self, delivery: Delivery, hold: bool) -> None:
        """Pause the request of a stream whose reader is too far behind, or resume it. Never waits."""

        def pause() -> None:
            if delivery.request_id in self._deliveries:
                (self._engine.pause if hold else self._engine.resume)(delivery.request_id)

        self.loop.post_soon(pause)

    def close(self, with_engine: bool) -> None:
        """Abort the requests of this client, whose streams get their last outputs, and accept no more.

        `with_engine`: shut the engine down, too, and end its loop.
        """
        with self._engine.visit():
            self.is_closed = True
            for request_id in list(self._deliveries):
                self._engine.abort(request_id)
            if with_engine:
                self._engine.shutdown()
        if with_engine:
            self.loop.end()

    # --- for the loop ------------------------------------------------------------------------------------------------

    def abort(self, request_id: int, deliver: bool = True) -> None:
        """Abort a request. Its stream ends with its last output if it is to `deliver`, otherwise nobody reads it."""
        if deliver:
            self._engine.abort(request_id)
        else:
            self._deliveries.pop(request_id, None)
            self.loop.drop(request_id)

    def dispatch(self, updates: Sequence[Update]) -> None:
        """Send each stream its new pieces and, if its request has ended, the last output: one call per event loop.

        Aborts requests that nobody can read any more: their event loop is closed, or their pieces cannot be made, which is
        an error for this stream and no other.
        """
        errors = [update.error for update in updates if isinstance(update, RequestOutput) and update.error is not None]
        for error in dict.fromkeys(errors):
            logger.error("a step failed", exc_info=error)
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Delivery, Item]]] = {}
        over = set[int]()
        for update in updates:
            if (delivery := self._deliveries.get(update.request_id)) is not None:
                items = _items(delivery, update)
                by_loop.setdefault(delivery.loop, []).extend((delivery, item) for item in items)
                if items and not isinstance(items[-1], StreamPiece):
                    over.add(update.request_id)
        for loop, sent in by_loop.items():
            if not send(loop, sent):
                over.update(delivery.request_id for delivery, _ in sent if delivery.request_id is not None)
        finished = {update.request_id for update in updates if update.finished}
        for request_id in over:
            del self._deliveries[request_id]
            if request_id not in finished:
                self.loop.drop(request_id)

    def lose(self, failure: BaseException) -> None:
        """Tell all streams that are left that their last outputs will not come, whatever happens."""
        for request_id, delivery in self._deliveries.items():
            lost = EngineClosedError(f"request {request_id} was lost: {failure!r}")
            lost.__cause__ = failure
            send(delivery.loop, [(delivery, lost)])
        self._deliveries.clear()


def _items(delivery: Delivery, update: Update) -> list[Item]:
    """What is new in a stream. If it cannot be made, the last item says so."""
    assert delivery.pieces is not None
    items: list[Item] = []
    try:
        items += delivery.pieces.read()
    except Exception as error:
        logger.exception("the pieces of request %d cannot be made", update.request_id)
        output = materialize(update)
        return [*items, replace(output, error=output.error or error)]
    return [*items, materialize(update)] if update.finished else items
