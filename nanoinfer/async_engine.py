"""AsyncEngine: an engine in a separate thread, and coroutines that submit, stream and cancel requests.

There are two sides, and one way from each to the other:

    coroutines (any number, any event loop)              the engine's thread
    ──────────────────────────────────────              ───────────────────────────────────────────
    `_post(command)`  ──── SimpleQueue ────►             runs commands between two steps, then steps
    `Delivery.queue`  ◄──── call_soon_threadsafe ────    sends the outputs of a step, one call per event loop

Requests are checked and tokenized on the coroutines' side, so a long prompt does not keep other requests waiting. The
engine's thread alone does everything else. When it has nothing to do, it sleeps in `SimpleQueue.get`.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from nanoinfer.adapters.adapter import Adapter
from nanoinfer.async_stream import AsyncStream, Delivery, Item, send
from nanoinfer.engine import Engine
from nanoinfer.errors import EngineClosedError
from nanoinfer.exit_gate import exit_gate
from nanoinfer.llm import LLM, load_or_take
from nanoinfer.requests.chat import Messages
from nanoinfer.requests.keywords import keywords
from nanoinfer.requests.outputs import PieceReader, RequestGroup, RequestOutput, StreamPiece
from nanoinfer.requests.request import Prompt, Request, params_or_default
from nanoinfer.requests.request_keywords import request_keywords
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.stats import EngineStats

T = TypeVar("T")
Command = Callable[[], None]
SHORT_TEXT = 4096  # so many characters are tokenized in a millisecond or so
logger = logging.getLogger(__name__)


class AsyncEngine:
    """Serves one model to many coroutines at once, from a separate thread: `async with AsyncEngine(llm) as engine: ...`.

    `llm`: an LLM, an Engine, or the name or directory of a model, which is loaded with `LLM(llm, **options)`. The
    attribute `llm` is that LLM or Engine.

    It takes over the engine: no other code may step it or add requests to it until `shutdown`, and after that it accepts
    no more requests. All methods may be called from any number of tasks and event loops at the same time. If a task is
    cancelled while it waits for a request, the request is aborted. An exception in a step ends the requests of that step:
    their readers get a StepFailedError, and the engine continues.
    """

    @keywords({"model": "llm", "model_path": "llm"})
    def __init__(self, llm: LLM | Engine | str | Path, **options: Any):
        self.llm = load_or_take(llm, options)
        self._engine = self.llm.engine if isinstance(self.llm, LLM) else self.llm
        self._engine.turns.reserve("an AsyncEngine", self._engine.open_requests.ids)
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._deliveries: dict[int, Delivery] = {}  # by request id; only the thread uses it
        self._closing = threading.Lock()  # held to post a command with a waiting caller, and to stop accepting commands
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="nanoinfer-engine", daemon=True)
        self._thread.start()
        exit_gate.before_closing(self._end_thread)

    # --- for coroutines ----------------------------------------------------------------------------------------------

    @request_keywords()
    async def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        extra_key: Hashable = None,
        name: str = "prompt",
        timeout_s: float | None = None,
        adapter: str | None = None,
    ) -> AsyncStream:
        """Submit a request and return its stream once it is queued. Arguments and errors as in `Engine.add_request`."""
        return await self._submit(Request(prompt, params_or_default(params), extra_key, timeout_s, name, adapter))

    async def _submit(self, request: Request) -> AsyncStream:
        delivery = Delivery(asyncio.get_running_loop())
        is_long = isinstance(request.prompt, str) and len(request.prompt) > SHORT_TEXT
        is_long |= (
            isinstance(request.params, SamplingParams) and request.params.has_grammar
        )  # it may have to be compiled
        group = await asyncio.to_thread(self._engine.prepare, request) if is_long else self._engine.prepare(request)
        try:
            request_id = await self._call(lambda: self._add(delivery, group))
        except asyncio.CancelledError:
            self._drop(delivery, keep_reading=False)
            raise
        return AsyncStream(delivery, request_id, self._drop)

    async def load_adapter(self, name: str, path: str | Path) -> Adapter:
        """As `Engine.load_adapter`. Requests go on while the files are read."""
        return await asyncio.to_thread(self._engine.load_adapter, name, path)

    async def unload_adapter(self, name: str) -> None:
        """As `Engine.unload_adapter`."""
        await asyncio.to_thread(self._engine.unload_adapter, name)

    @request_keywords()
    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        extra_key: Hashable = None,
        name: str = "prompt",
        timeout_s: float | None = None,
        adapter: str | None = None,
    ) -> AsyncGenerator[StreamPiece, None]:
        """`async for piece in engine.stream(...)` gives text as soon as it is certain. The first read submits the request.

        Leaving the loop early, closing the generator, or cancelling its task aborts the request.
        """
        stream = await self._submit(Request(prompt, params_or_default(params), extra_key, timeout_s, name, adapter))
        try:
            async for piece in stream:
                yield piece
        finally:
            stream.close()

    @request_keywords()
    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        extra_key: Hashable = None,
        name: str = "prompt",
        timeout_s: float | None = None,
        adapter: str | None = None,
    ) -> RequestOutput:
        """Complete one prompt. Errors as in `Engine.add_request`; StepFailedError when a step that computed it raised."""
        stream = await self._submit(Request(prompt, params_or_default(params), extra_key, timeout_s, name, adapter))
        try:
            return await stream.output()
        finally:
            stream.close()

    @request_keywords()
    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        extra_key: Hashable = None,
        name: str = "messages",
        timeout_s: float | None = None,
        adapter: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RequestOutput:
        """Generate the assistant's next turn in a conversation. `messages` and `chat_template_kwargs` as in `LLM.chat`,
        other arguments and errors as in `generate`. ValueError when the model has no tokenizer or no chat template."""
        prompt = await asyncio.to_thread(self.chat_prompt, messages, chat_template_kwargs)
        return await self.generate(prompt, params, extra_key=extra_key, name=name, timeout_s=timeout_s, adapter=adapter)

    @request_keywords()
    async def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        extra_key: Hashable = None,
        name: str = "messages",
        timeout_s: float | None = None,
        adapter: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[StreamPiece, None]:
        """Stream the assistant's next turn in a conversation; arguments and errors as in `chat`."""
        prompt = await asyncio.to_thread(self.chat_prompt, messages, chat_template_kwargs)
        pieces = self.stream(prompt, params, extra_key=extra_key, name=name, timeout_s=timeout_s, adapter=adapter)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    def chat_prompt(self, messages: Messages, chat_template_kwargs: Mapping[str, Any] | None = None) -> list[int]:
        """Token ids of a conversation up to the assistant's next turn; computed in the calling thread."""
        return self._engine.builder.chat_prompt(messages, chat_template_kwargs, self._engine.config.max_context_len)

    async def abort(self, request_id: int) -> None:
        """End a request now; its stream ends with `finish_reason` abort. Does nothing if it is unknown or already ended."""
        await self._call(lambda: self._abort(request_id))

    async def pause(self, request_id: int) -> None:
        """Call `Engine.pause` between two steps. The stream's next piece comes after `resume`."""
        await self._call(lambda: self._engine.pause(request_id))

    async def resume(self, request_id: int) -> None:
        """Call `Engine.resume` between two steps."""
        await self._call(lambda: self._engine.resume(request_id))

    async def stats(self) -> EngineStats:
        """Call `Engine.stats` between two steps."""
        return await self._call(self._engine.stats)

    async def check_integrity(self) -> None:
        """Call `Engine.check_integrity` between two steps."""
        await self._call(self._engine.check_integrity)

    async def shutdown(self) -> None:
        """Abort every request, free all slots and stop the thread. May be called again."""
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
        """Have the thread run `command` between two steps. False if it has stopped. Never blocks: `__del__` calls it."""
        if self._closed:
            return False
        self._commands.put(command)
        return True

    async def _call(self, function: Callable[[], T]) -> T:
        """Have the thread call `function`, wait, and return or raise what it does."""
        future: Future[T] = Future()

        def command() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # raise it in the calling coroutine, not in the thread
                    future.set_exception(error)

        with self._closing:
            if not self._post(command):
                raise EngineClosedError("this engine has been shut down")
        return await asyncio.wrap_future(future)

    def _drop(self, delivery: Delivery, keep_reading: bool) -> None:
        """Abort the request of a stream that has no reader or, with `keep_reading`, was closed by its reader.

        The command that adds the request was posted earlier, so it has run by the time this one runs.
        """

        def command() -> None:
            if delivery.request_id in self._deliveries:
                self._abort(delivery.request_id, deliver=keep_reading)

        self._post(command)

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while not self._closed:
                self._run_commands()
                if self._engine.has_unfinished() and not self._closed:
                    self._hand_out(self._step())
        except BaseException as error:  # a bug, but even then no coroutine may wait for a thread that has ended
            logger.exception("the engine's thread ends unexpectedly")
            failure = error
        self._close()
        self._end_all(failure)
        self._engine.turns.taken_by = None
        while not self._commands.empty():
            self._commands.get()()  # each is refused, because the engine is closed

    def _end_thread(self) -> None:
        """Stop the thread, because Python is exiting."""
        self._post(self._close)
        self._thread.join()

    def _run_commands(self) -> None:
        """Run the posted commands. If there is no work, wait for a command or for the deadline of a paused request."""
        wait = not self._engine.has_unfinished()
        while not self._closed:
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

    def _add(self, delivery: Delivery, group: RequestGroup) -> int:
        if self._closed:  # posted before the end, run after it: the engine itself may have failed to close
            raise EngineClosedError("this engine has been shut down")
        with self._engine.turns.visit():
            self._engine.submit_all([group])
        delivery.request_id, delivery.pieces = group.request_id, PieceReader(group)
        self._deliveries[group.request_id] = delivery
        return group.request_id

    def _abort(self, request_id: int | None, deliver: bool = True) -> None:
        if request_id is None:
            return
        output = self._engine.abort(request_id)
        if output is not None and deliver:
            self._hand_out([output])
        self._deliveries.pop(request_id, None)

    def _hand_out(self, outputs: list[RequestOutput]) -> None:
        """Send each stream its new pieces and, if its request has ended, the last output: one call per event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Delivery, Item]]] = {}
        for output in outputs:
            delivery = self._deliveries.get(output.request_id)
            if delivery is None or delivery.pieces is None:
                continue
            items = by_loop.setdefault(delivery.loop, [])
            items += ((delivery, piece) for piece in delivery.pieces.read())
            if output.finished:
                items.append((delivery, output))
                del self._deliveries[output.request_id]
        for loop, items in by_loop.items():
            if send(loop, items):
                continue
            for delivery, _ in items:
                if delivery.request_id in self._deliveries:
                    self._abort(delivery.request_id, deliver=False)

    def _close(self) -> None:
        with self._closing:
            self._closed = True  # no command is posted after this

    def _end_all(self, failure: BaseException | None) -> None:
        """End every request and its stream, whatever state the engine is in."""
        try:
            if failure is not None:
                self._hand_out(self._engine.abort_all(failure))
            self._hand_out(self._engine.shutdown())
        except BaseException as error:
            logger.exception("the engine could not be shut down")
            failure = failure or error
        for delivery in self._deliveries.values():  # requests for which the engine returned no output
            lost = EngineClosedError(f"request {delivery.request_id} was lost: the engine's thread ended ({failure!r})")
            lost.__cause__ = failure
            send(delivery.loop, [(delivery, lost)])
        self._deliveries.clear()
