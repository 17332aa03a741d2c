"""AsyncEngine: coroutines that submit, stream and cancel requests.

There are two sides, and one way from each to the other:

    coroutines (any number, any event loop)              the thread that owns the engine (engine_loop.py)
    ──────────────────────────────────────              ───────────────────────────────────────────
    `post(command)`   ──── SimpleQueue ────►             runs commands between two steps, then steps
    `Delivery.queue`  ◄──── call_soon_threadsafe ────    sends the outputs of a step, one call per event loop

Requests are checked and tokenized on the coroutines' side, so a long prompt does not keep other requests waiting.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from nanoinfer.engine.async_client import AsyncClient
from nanoinfer.engine.async_stream import AsyncStream, Delivery
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.stats import EngineStats
from nanoinfer.keywords import with_aliases
from nanoinfer.llm import LLM, load_or_take
from nanoinfer.model.lora.adapter import Adapter
from nanoinfer.outputs import RequestOutput, StreamPiece
from nanoinfer.requests.chat import Messages
from nanoinfer.requests.request import Prompt, Request, params_or_default
from nanoinfer.requests.request_group import RequestGroup
from nanoinfer.sampling_params import SamplingParams

T = TypeVar("T")
SHORT_TEXT = 4096  # so many characters are tokenized in a millisecond or so


class AsyncEngine:
    """Serves one model to many coroutines at once: `async with AsyncEngine(llm) as engine: ...`.

    `llm`: an LLM, an Engine, or the name or directory of a model, which is loaded with `LLM(llm, **options)`. The
    attribute `llm` is that LLM or Engine.

    Several of them, and the calls of the LLM, may use one engine at once: their requests are computed in the same passes.
    `shutdown` ends the requests of this one, and shuts the engine down only if the model was loaded here. All methods may
    be called from any number of tasks and event loops at the same time. If a task is cancelled while it waits for a
    request, the request is aborted. An exception in a step ends the requests of that step: their readers get a
    StepFailedError, and the engine continues.
    """

    def __init__(self, llm: LLM | Engine | str | Path, **options: Any):
        self.llm = load_or_take(llm, options)
        self._owns_engine = self.llm is not llm
        self._engine = self.llm.engine if isinstance(self.llm, LLM) else self.llm
        self._client = AsyncClient(self._engine)
        self._after_step: Callable[[Engine], object] | None = None

    @property
    def engine(self) -> Engine:
        """The engine that it serves with. `visit` is the way to look into it."""
        return self._engine

    @property
    def is_closed(self) -> bool:
        """True when it accepts no more requests: it was shut down, its engine was, or that engine's runner is broken."""
        client = self._client
        return client.is_closed or client.loop.is_closed or self._engine.is_closed

    @property
    def after_step(self) -> Callable[[Engine], object] | None:
        """Called in the engine's thread after every step, before its outputs are handed out: a seam for what watches the
        engine. None again when it has failed."""
        looks = self._client.loop.after_step
        return self._after_step if self._after_step in looks else None

    @after_step.setter
    def after_step(self, look: Callable[[Engine], object] | None) -> None:
        looks = self._client.loop.after_step
        if self._after_step in looks:
            looks.remove(self._after_step)
        self._after_step = look
        if look is not None:
            looks.append(look)

    # --- for coroutines ----------------------------------------------------------------------------------------------

    @with_aliases
    async def add(
        self,
        prompt: Prompt,
        params: SamplingParams | Mapping[str, Any] | None = None,
        *,
        extra_key: Hashable = None,
        name: str = "prompt",
        timeout_s: float | None = None,
        adapter: str | None = None,
    ) -> AsyncStream:
        """Submit a request and return its stream once it is queued. Arguments and errors as in `Engine.add_request`."""
        return await self._submit(Request(prompt, params_or_default(params), extra_key, timeout_s, name, adapter))

    async def add_all(self, requests: Sequence[Request], max_unread: int | None = None) -> list[AsyncStream]:
        """Submit several requests, all or none, and return their streams in order. Errors as in `Engine.submit_all`.

        `max_unread`: a request whose reader is so many pieces behind is paused, and goes on when half of them are read. So
        a slow reader holds neither slots nor ever more text.
        """
        self._client.check_open()
        if _takes_long(requests):
            groups = await asyncio.to_thread(lambda: [self._engine.prepare(request) for request in requests])
        else:
            groups = [self._engine.prepare(request) for request in requests]
        return await self.add_prepared(groups, max_unread)

    async def add_prepared(self, groups: Sequence[RequestGroup], max_unread: int | None = None) -> list[AsyncStream]:
        """As `add_all`, for what `Engine.prepare` returned in a thread of the caller's."""
        if max_unread is not None and (isinstance(max_unread, bool) or max_unread < 1):
            raise ValueError(f"max_unread={max_unread!r}: must be None or an integer of at least 1")
        loop, client = asyncio.get_running_loop(), self._client
        deliveries = [Delivery(loop, max_unread, client.hold) for _ in groups]
        request_ids = await client.add(deliveries, groups)
        return [AsyncStream(delivery, i, client.drop) for delivery, i in zip(deliveries, request_ids, strict=True)]

    async def _submit(self, request: Request) -> AsyncStream:
        return (await self.add_all([request]))[0]

    async def load_adapter(self, name: str, path: str | Path) -> Adapter:
        """As `Engine.load_adapter`. Requests go on while the files are read."""
        return await asyncio.to_thread(self._engine.load_adapter, name, path)

    async def unload_adapter(self, name: str) -> None:
        """As `Engine.unload_adapter`."""
        await asyncio.to_thread(self._engine.unload_adapter, name)

    @with_aliases
    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | Mapping[str, Any] | None = None,
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

    @with_aliases
    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | Mapping[str, Any] | None = None,
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

    @with_aliases
    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | Mapping[str, Any] | None = None,
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

    @with_aliases
    async def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | Mapping[str, Any] | None = None,
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
        await self._client.call(lambda: self._client.abort(request_id))

    async def pause(self, request_id: int) -> None:
        """Call `Engine.pause` between two steps. The stream's next piece comes after `resume`."""
        await self._client.call(lambda: self._engine.pause(request_id))

    async def resume(self, request_id: int) -> None:
        """Call `Engine.resume` between two steps."""
        await self._client.call(lambda: self._engine.resume(request_id))

    async def visit(self, function: Callable[[Engine], T]) -> T:
        """Call `function(engine)` in the engine's thread, between two steps, and return or raise what it does. All requests
        wait for it, so it must be quick. EngineClosedError after `shutdown`."""
        return await self._client.call(lambda: function(self._engine))

    async def visit_each(self, function: Callable[[Engine], T]) -> list[T]:
        """`visit`, for servers that may have several engines: one result per engine, and here there is one."""
        return [await self.visit(function)]

    async def stats(self) -> EngineStats:
        """Call `Engine.stats` between two steps."""
        return await self._client.call(self._engine.stats)

    async def check_integrity(self) -> None:
        """Call `Engine.check_integrity` between two steps."""
        await self._client.call(self._engine.check_integrity)

    async def save_cache(self, timeout_s: float | None = None) -> int:
        """Call `Engine.save_cache` in another thread."""
        return await asyncio.to_thread(self._engine.save_cache, timeout_s)

    async def shutdown(self) -> None:
        """Abort every request of this AsyncEngine and accept no more; if the model was loaded here, shut its engine down.
        May be called again."""
        try:
            await asyncio.to_thread(self._client.close, self._owns_engine)
        finally:
            self.after_step = None

    async def __aenter__(self) -> "AsyncEngine":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()


def _takes_long(requests: Sequence[Request]) -> bool:
    """True when preparing them could keep other coroutines waiting: long texts, or a grammar that has to be compiled."""
    texts = sum(len(request.prompt) for request in requests if isinstance(request.prompt, str))
    params = [request.params for request in requests if isinstance(request.params, SamplingParams)]
    return texts > SHORT_TEXT or any(settings.grammar_field for settings in params)
