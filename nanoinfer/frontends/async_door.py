"""AsyncDoor: the way from coroutines to the thread that owns an engine, and back.

Whoever wants something of the engine posts a command, which the loop runs between two steps. What comes out goes to the
Deliveries.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from nanoinfer.engine.engine import Engine
from nanoinfer.engine.engine_loop import loop_of
from nanoinfer.errors import EngineClosedError
from nanoinfer.frontends.async_stream import Delivery
from nanoinfer.frontends.deliveries import Deliveries
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.request_group import RequestGroup, Update

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
