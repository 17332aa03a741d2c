"""EngineThread: the thread in which an AsyncEngine's engine makes its steps, and the way into it.

Whoever wants something of the engine posts a command, which the thread runs between two steps. What comes out goes to the
Deliveries.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from nanoinfer.engine.engine import Engine
from nanoinfer.errors import EngineClosedError
from nanoinfer.frontends.async_stream import Delivery
from nanoinfer.frontends.deliveries import Deliveries
from nanoinfer.requests.outputs import RequestGroup, RequestOutput
from nanoinfer.threads.exit_gate import exit_gate

T = TypeVar("T")
Command = Callable[[], None]
logger = logging.getLogger(__name__)


class EngineThread:
    """Serves with `engine`, which nobody else may step, until `end`. Then the engine is shut down.

    `after_step`: called in the thread after every step, before its outputs are handed out. `is_closed`: it accepts no more
    commands.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._deliveries = Deliveries()  # only the thread uses them
        self.after_step: Callable[[Engine], object] | None = None
        self._closing = threading.Lock()  # held to post a command with a waiting caller, and to stop accepting commands
        self.is_closed = False
        self._thread = threading.Thread(target=self._run, name="nanoinfer-engine", daemon=True)
        self._thread.start()
        exit_gate.before_closing(self.end)

    # --- for any thread ----------------------------------------------------------------------------------------------

    def post(self, command: Command) -> bool:
        """Have the thread run `command` between two steps. False if it has stopped. Never blocks: `__del__` calls it."""
        if self.is_closed:
            return False
        self._commands.put(command)
        return True

    async def call(self, function: Callable[[], T]) -> T:
        """Have the thread call `function`, wait, and return or raise what it does."""
        future: Future[T] = Future()

        def command() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # raise it in the calling coroutine, not in the thread
                    future.set_exception(error)

        with self._closing:
            if not self.post(command):
                raise EngineClosedError("this engine has been shut down")
        return await asyncio.wrap_future(future)

    def drop(self, delivery: Delivery, keep_reading: bool) -> None:
        """Abort the request of a stream that has no reader or, with `keep_reading`, was closed by its reader.

        The command that adds the request was posted earlier, so it has run by the time this one runs.
        """

        def command() -> None:
            if delivery.request_id in self._deliveries:
                self.abort(delivery.request_id, deliver=keep_reading)

        self.post(command)

    def hold(self, delivery: Delivery, hold: bool) -> None:
        """Pause the request of a stream whose reader is too far behind, or resume it."""

        def command() -> None:
            if delivery.request_id is not None and self._engine.is_unfinished(delivery.request_id):
                (self._engine.pause if hold else self._engine.resume)(delivery.request_id)

        self.post(command)

    def end(self) -> None:
        """Stop the thread, and wait until it has ended. Python also calls this when it exits."""
        self.post(self._close)
        self._thread.join()

    # --- in the thread: commands -------------------------------------------------------------------------------------

    def add(self, deliveries: Sequence[Delivery], groups: Sequence[RequestGroup]) -> list[int]:
        """Queue requests, all or none, and return their ids. Errors as in `Engine.submit_all`."""
        if self.is_closed:  # posted before the end, run after it: the engine itself may have failed to close
            raise EngineClosedError("this engine has been shut down")
        with self._engine.turns.visit():
            request_ids = self._engine.submit_all(groups)
        for delivery, group in zip(deliveries, groups, strict=True):
            self._deliveries.add(delivery, group)
        return request_ids

    def abort(self, request_id: int | None, deliver: bool = True) -> None:
        """Abort a request. Its stream ends with its last output if it is to `deliver`, otherwise nobody reads it."""
        if request_id is None:
            return
        output = self._engine.abort(request_id)
        if output is not None and deliver:
            self._hand_out([output])
        self._deliveries.forget(request_id)

    # --- in the thread: its work -------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while not self.is_closed:
                self._run_commands()
                if self._engine.has_unfinished() and not self.is_closed:
                    outputs = self._step()
                    self._show_step()
                    self._hand_out(outputs)
        except BaseException as error:  # a bug, but even then no coroutine may wait for a thread that has ended
            logger.exception("the engine's thread ends unexpectedly")
            failure = error
        self._close()
        self._end_all(failure)
        self._engine.turns.taken_by = None
        while not self._commands.empty():
            self._commands.get()()  # each is refused, because the engine is closed

    def _run_commands(self) -> None:
        """Run the posted commands. If there is no work, wait for a command or for the deadline of a paused request."""
        wait = not self._engine.has_unfinished()
        while not self.is_closed:
            try:
                command = self._commands.get(wait, self._engine.seconds_to_deadline() if wait else None)
            except Empty:
                return
            wait = False
            try:
                command()
            except Exception:  # no coroutine waits for this command
                logger.exception("a command failed")

    def _step(self) -> list[RequestOutput]:
        try:
            with self._engine.turns.step_unless(lambda: False):
                return self._engine.step()
        except BaseException as error:  # the thread has no caller that could handle it
            logger.exception("a step failed")
            if self._engine.scheduler.planned:
                return []  # the next step returns their outputs
            return self._engine.abort_all(error)  # no request can be blamed, and every further step would fail as well

    def _show_step(self) -> None:
        look = self.after_step
        if look is not None:
            try:
                look(self._engine)
            except Exception:  # requests go on without it
                logger.exception("after_step failed, and is not called any more")
                self.after_step = None

    def _hand_out(self, outputs: Sequence[RequestOutput]) -> None:
        """Give the streams what is new, and abort the requests of those that nobody can read any more."""
        for request_id in self._deliveries.hand_out(outputs):
            self._engine.abort(request_id)

    def _close(self) -> None:
        with self._closing:
            self.is_closed = True  # no command is posted after this

    def _end_all(self, failure: BaseException | None) -> None:
        """End every request and its stream, whatever state the engine is in."""
        outputs: list[RequestOutput] = []
        try:
            if failure is not None:
                outputs += self._engine.abort_all(failure)
            outputs += self._engine.shutdown()
        except BaseException as error:
            logger.exception("the engine could not be shut down")
            failure = failure or error
        try:
            self._deliveries.hand_out(outputs)
        except BaseException as error:
            logger.exception("the last outputs could not be handed out")
            failure = failure or error
        self._deliveries.lose(failure)
