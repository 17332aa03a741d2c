"""AsyncDoor: the way from coroutines to the thread that owns an engine, and back.

Whoever wants something of the engine posts a command, which the loop runs between two steps. What comes out goes to the
Deliveries.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from nanoinfer.engine.engine import Engine
from nanoinfer.engine.engine_loop import loop_of
from nanoinfer.errors import EngineClosedError
from nanoinfer.frontends.async_stream import Delivery, Item, send
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.request_group import RequestGroup, Update, made
from nanoinfer.requests.stream_pieces import PieceReader, StreamPiece

T = TypeVar("T")
logger = logging.getLogger("nanoinfer.engine")


class AsyncDoor:
    """A door of the engine's `loop`, until `close`. `is_closed`: it accepts no more requests."""

    def __init__(self, engine: Engine):
        self._engine, self.loop = engine, loop_of(engine)
        self._deliveries = Deliveries()  # used between two steps
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
        self.loop.check_may_wait()
        self.loop.post(command)
        return await asyncio.wrap_future(future)

    async def add(self, deliveries: Sequence[Delivery], groups: Sequence[RequestGroup]) -> list[int]:
        """Queue requests, all or none, and return their ids. Errors as in `Engine.submit_all`."""

        def submit() -> list[int]:
            request_ids = self.loop.submit(groups, self)
            for delivery, group in zip(deliveries, groups, strict=True):
                self._deliveries.add(delivery, group)
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
            if delivery.request_id is not None and delivery.request_id in self._deliveries:
                self.abort(delivery.request_id, deliver=keep_reading)

        self._engine.turns.soon(abort)

    def hold(self, delivery: Delivery, hold: bool) -> None:
        """Pause the request of a stream whose reader is too far behind, or resume it. Never waits."""

        def pause() -> None:  # as the reader is by then: what is done soon has no order
            if delivery.request_id is not None and self._engine.is_unfinished(delivery.request_id):
                (self._engine.pause if delivery.is_held else self._engine.resume)(delivery.request_id)

        self._engine.turns.soon(pause)

    def close(self, with_engine: bool) -> None:
        """Abort the requests of this door, whose streams get their last outputs, and accept no more.

        `with_engine`: shut the engine down, too, and end its loop.
        """
        with self._engine.turns.visit():
            self.is_closed = True
            for request_id in self._deliveries.request_ids():
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
            self._deliveries.forget(request_id)
            self.loop.drop(request_id)

    def hand_out(self, updates: Sequence[Update]) -> None:
        """Give the streams what is new, and abort the requests of those that nobody can read any more."""
        errors = [update.error for update in updates if isinstance(update, RequestOutput) and update.error is not None]
        for error in dict.fromkeys(errors):
            logger.error("a step failed", exc_info=error)
        for request_id in self._deliveries.hand_out(updates):
            self.loop.drop(request_id)

    def lose(self, failure: BaseException) -> None:
        """Tell all streams that no more outputs come."""
        self._deliveries.lose(failure)

    def after_fork(self) -> None:
        """In a forked process, in which no event loop goes on: abort all requests."""
        for request_id in self._deliveries.request_ids():
            self._deliveries.forget(request_id)
            self.loop.drop(request_id)


class Deliveries:
    """A Delivery per request that has not ended. Used between two steps."""

    def __init__(self) -> None:
        self._by_id: dict[int, Delivery] = {}

    def __contains__(self, request_id: int | None) -> bool:
        return request_id in self._by_id

    def request_ids(self) -> list[int]:
        """The requests that have not ended."""
        return list(self._by_id)

    def add(self, delivery: Delivery, group: RequestGroup) -> None:
        """A request that the engine has queued."""
        delivery.request_id, delivery.pieces = group.request_id, PieceReader(group)
        self._by_id[group.request_id] = delivery

    def forget(self, request_id: int) -> None:
        """Nobody reads the request any more, if anybody did."""
        self._by_id.pop(request_id, None)

    def hand_out(self, updates: Sequence[Update]) -> list[int]:
        """Send each stream its new pieces and, if its request has ended, the last output: one call per event loop.

        Returns the requests that go on although nobody can read them any more: their event loop is closed, or their pieces
        cannot be made, which is an error for this stream and no other.
        """
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Delivery, Item]]] = {}
        last: dict[int, Item] = {}  # by request id
        for update in updates:
            if (delivery := self._by_id.get(update.request_id)) is not None:
                for item in _items(delivery, update):
                    by_loop.setdefault(delivery.loop, []).append((delivery, item))
                    last[update.request_id] = item
        closed = [loop for loop, items in by_loop.items() if not send(loop, items)]
        over = [i for i, item in last.items() if not isinstance(item, StreamPiece) or self._by_id[i].loop in closed]
        for request_id in over:  # only now: `lose` must find what is not sent yet
            self.forget(request_id)
        finished = {update.request_id for update in updates if update.finished}
        return [request_id for request_id in over if request_id not in finished]

    def lose(self, failure: BaseException) -> None:
        """Tell all streams that are left that their last outputs will not come, whatever happens."""
        for request_id, delivery in self._by_id.items():
            lost = EngineClosedError(f"request {request_id} was lost: {failure!r}")
            lost.__cause__ = failure
            try:
                send(delivery.loop, [(delivery, lost)])
            except Exception:  # the others must be told all the same
                logger.exception("a stream cannot be told that its request was lost")
        self._by_id.clear()


def _items(delivery: Delivery, update: Update) -> list[Item]:
    """What is new in a stream. If it cannot be made, the last item says so."""
    assert delivery.pieces is not None
    items: list[Item] = []
    try:
        items += delivery.pieces.read()
    except Exception as error:
        logger.exception("the pieces of request %d cannot be made", update.request_id)
        output = made(update)
        return [*items, replace(output, error=output.error or error)]
    return [*items, made(update)] if update.finished else items
