"""AsyncEngine: an engine in a thread of its own, and coroutines that submit, stream and cancel.

Two worlds, and one rule for each way between them:

    coroutines (any number, any event loop)              the engine's thread
    ──────────────────────────────────────              ───────────────────────────────────────────
    `_post(command)`  ──── SimpleQueue ────►             runs commands between two steps, then steps
    `AsyncStream._take`  ◄── call_soon_threadsafe ───    hands out what the step brought, loop by loop

Only the thread touches the engine, so the engine needs no locks. With nothing to do it sleeps in `SimpleQueue.get`.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TypeVar

from nanoinfer.engine import Engine
from nanoinfer.errors import EngineClosedError, StepFailedError
from nanoinfer.llm import LLM
from nanoinfer.requests.outputs import PieceReader, RequestOutput, StreamPiece
from nanoinfer.requests.request import Prompt, Request, params_or_default
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.stats import EngineStats

T = TypeVar("T")
Command = Callable[[], None]
Item = StreamPiece | RequestOutput | EngineClosedError  # what a reader is sent; the last two end its stream
logger = logging.getLogger(__name__)


class Delivery:
    """The engine thread's end of a stream: what it needs to serve a request, but not the AsyncStream that the caller
    holds, so that one nobody holds any more can be noticed."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self.queue: asyncio.Queue[Item] = asyncio.Queue()  # its loop's alone
        self.request_id: int | None = None
        self.pieces: PieceReader | None = None


class AsyncStream:
    """One request: an asynchronous iterator over its StreamPieces, as `AsyncEngine.add` returns it.

    `request_id`. The request is aborted when the stream is closed, or garbage-collected, before its end. For one reader
    at a time, in the event loop where it was made.
    """

    def __init__(self, engine: "AsyncEngine", delivery: Delivery, request_id: int):
        self._engine, self._delivery, self.request_id = engine, delivery, request_id
        self._output: RequestOutput | EngineClosedError | None = None

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> StreamPiece:
        """The next piece. StepFailedError when a step with the request in it has raised, EngineClosedError when the
        engine's thread has come to an end that was not planned."""
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
                f"request {self.request_id} ended with a step that failed: {type(error).__name__}: {error}"
            ) from error
        raise StopAsyncIteration

    async def output(self) -> RequestOutput:
        """Read to the end; the request's last output. Errors as `__anext__`."""
        async for _ in self:
            pass
        assert isinstance(self._output, RequestOutput)
        return self._output

    def close(self) -> None:
        """Abort the request, unless it has ended. Its other pieces, the last one with the reason, can still be read."""
        if self._output is None:
            self._engine._drop(self._delivery, keep_reading=True)

    def __del__(self) -> None:
        if self._output is None:
            self._engine._drop(self._delivery)


class AsyncEngine:
    """Serves one model to many coroutines at once, from a thread of its own: `async with AsyncEngine(llm) as engine: ...`.

    It takes the engine over: nobody else may step it or add to it until `shutdown`, and afterwards it takes no requests.
    All methods may be called from any number of tasks and event loops at the same time. A task that is cancelled while
    it waits for a request aborts that request. An exception in a step ends the requests of that step, whose readers get a
    StepFailedError, and the engine goes on.
    """

    def __init__(self, llm: LLM | Engine):
        self._engine = llm.engine if isinstance(llm, LLM) else llm
        if self._engine.has_unfinished():
            raise ValueError("llm: its engine has unfinished requests, whose outputs nobody would get")
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._deliveries: dict[int, Delivery] = {}  # by request id; the thread's alone
        self._closing = threading.Lock()  # between the last command and the thread's end
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="nanoinfer-engine", daemon=True)
        self._thread.start()

    # --- for coroutines ----------------------------------------------------------------------------------------------

    async def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        extra_key: Hashable = None,
        name: str = "prompt",
        timeout_s: float | None = None,
    ) -> AsyncStream:
        """Submit a request; returns its stream once it is queued. Arguments and errors as `Engine.add_request`."""
        return await self._submit(Request(prompt, params_or_default(params), extra_key, timeout_s, name))

    async def _submit(self, request: Request) -> AsyncStream:
        delivery = Delivery(asyncio.get_running_loop())
        try:
            request_id = await self._call(lambda: self._add(delivery, request))
        except asyncio.CancelledError:
            self._drop(delivery)
            raise
        return AsyncStream(self, delivery, request_id)

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        extra_key: Hashable = None,
        name: str = "prompt",
        timeout_s: float | None = None,
    ) -> AsyncIterator[StreamPiece]:
        """`async for piece in engine.stream(...)`: text as soon as it is certain. Submitted when it is first read.

        Leaving the loop early, closing the generator or cancelling its task aborts the request.
        """
        stream = await self._submit(Request(prompt, params_or_default(params), extra_key, timeout_s, name))
        try:
            async for piece in stream:
                yield piece
        finally:
            stream.close()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        extra_key: Hashable = None,
        name: str = "prompt",
        timeout_s: float | None = None,
    ) -> RequestOutput:
        """Complete one prompt. Errors as `Engine.add_request`; StepFailedError when a step with it has raised."""
        stream = await self._submit(Request(prompt, params_or_default(params), extra_key, timeout_s, name))
        try:
            return await stream.output()
        finally:
            stream.close()

    async def abort(self, request_id: int) -> None:
        """End a request now; its stream ends with `finish_reason` abort. Does nothing when it is unknown or has ended."""
        await self._call(lambda: self._abort(request_id))

    async def pause(self, request_id: int) -> None:
        """`Engine.pause`, between two steps: the stream's next piece comes after `resume`."""
        await self._call(lambda: self._engine.pause(request_id))

    async def resume(self, request_id: int) -> None:
        """`Engine.resume`, between two steps."""
        await self._call(lambda: self._engine.resume(request_id))

    async def stats(self) -> EngineStats:
        """`Engine.stats`, between two steps."""
        return await self._call(self._engine.stats)

    async def check_integrity(self) -> None:
        """`Engine.check_integrity`, between two steps."""
        await self._call(self._engine.check_integrity)

    async def shutdown(self) -> None:
        """End every request (their streams say `abort`), give back all slots, and stop the thread. May be called again."""
        self._post(self._close)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    async def __aenter__(self) -> "AsyncEngine":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()

    # --- from coroutines to the thread -------------------------------------------------------------------------------

    def _post(self, command: Command) -> bool:
        """Have the thread run `command` between two steps. False when it has stopped. Never waits (`__del__` calls it)."""
        if self._closed:
            return False
        self._commands.put(command)
        return True

    async def _call(self, function: Callable[[], T]) -> T:
        """Have the thread call `function`, and wait for what it returns or raises."""
        future: Future[T] = Future()

        def command() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # to be raised where it was asked for, not in the thread
                    future.set_exception(error)

        with self._closing:
            if not self._post(command):
                raise EngineClosedError("this engine has been shut down")
        return await asyncio.wrap_future(future)

    def _drop(self, delivery: Delivery, keep_reading: bool = False) -> None:
        """Nobody waits for this request any more: abort it. (If it was to be added at all, that was posted before this.)"""

        def command() -> None:
            if delivery.request_id in self._deliveries:
                self._abort(delivery.request_id, tell=keep_reading)

        self._post(command)

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while not self._closed:
                self._run_commands()
                if self._engine.has_unfinished() and not self._closed:
                    self._hand_out(self._step())
        except BaseException as error:  # a bug; still, nobody may be left waiting for a thread that is gone
            logger.exception("the engine's thread ends before its time")
            failure = error
        self._close()
        self._end_all(failure)
        while not self._commands.empty():
            self._commands.get()()  # they find an engine that refuses them

    def _run_commands(self) -> None:
        """Run what has been posted; with nothing else to do, wait until something is."""
        wait = not self._engine.has_unfinished()
        while not self._closed:
            try:
                command = self._commands.get(block=wait)
            except Empty:
                return
            wait = False
            try:
                command()
            except Exception:  # of one that nobody waits for
                logger.exception("a command failed")

    def _step(self) -> list[RequestOutput]:
        try:
            return self._engine.step()
        except BaseException as error:  # nobody above this thread could do anything with it
            logger.exception("a step failed")
            if self._engine.scheduler.planned:
                return []  # the next step tells of them
            return self._engine.abort_all(error)  # nobody in particular was to blame: it would fail again and again

    def _add(self, delivery: Delivery, request: Request) -> int:
        if self._closed:  # posted before, run after the end: the engine itself may have failed to close
            raise EngineClosedError("this engine has been shut down")
        group = self._engine.prepare(request)
        self._engine.submit(group)
        delivery.request_id, delivery.pieces = group.request_id, PieceReader(group)
        self._deliveries[group.request_id] = delivery
        return group.request_id

    def _abort(self, request_id: int | None, tell: bool = True) -> None:
        if request_id is None:
            return
        output = self._engine.abort(request_id)
        if output is not None and tell:
            self._hand_out([output])
        self._deliveries.pop(request_id, None)

    def _hand_out(self, outputs: list[RequestOutput]) -> None:
        """Send each reader what is new, and the last output of requests that have ended: one call an event loop."""
        mail: dict[asyncio.AbstractEventLoop, list[tuple[Delivery, Item]]] = {}
        for output in outputs:
            delivery = self._deliveries.get(output.request_id)
            if delivery is None or delivery.pieces is None:
                continue
            items = mail.setdefault(delivery.loop, [])
            items += ((delivery, piece) for piece in delivery.pieces.read())
            if output.finished:
                items.append((delivery, output))
                del self._deliveries[output.request_id]
        for loop, items in mail.items():
            if self._send(loop, items):
                continue
            for delivery, _ in items:
                if delivery.request_id in self._deliveries:
                    self._abort(delivery.request_id, tell=False)

    def _send(self, loop: asyncio.AbstractEventLoop, items: list[tuple[Delivery, Item]]) -> bool:
        """False when that event loop has been closed: its readers have gone."""
        try:
            loop.call_soon_threadsafe(_put, items)
        except RuntimeError:
            return False
        return True

    def _close(self) -> None:
        with self._closing:
            self._closed = True  # no command comes after this

    def _end_all(self, failure: BaseException | None) -> None:
        """End every request and tell its reader, whatever state the engine is in."""
        try:
            if failure is not None:
                self._hand_out(self._engine.abort_all(failure))
            self._hand_out(self._engine.shutdown())
        except BaseException as error:
            logger.exception("the engine could not be shut down")
            failure = failure or error
        for delivery in self._deliveries.values():  # the engine had nothing to say to them
            lost = EngineClosedError(f"request {delivery.request_id} was lost: the engine's thread ended ({failure!r})")
            lost.__cause__ = failure
            self._send(delivery.loop, [(delivery, lost)])
        self._deliveries.clear()


def _put(items: list[tuple[Delivery, Item]]) -> None:
    for delivery, item in items:
        delivery.queue.put_nowait(item)
