"""Service: what the routes of a server share: the engine, the settings, the model's names, and open generations. Served:
what is served, a model of this process or one whose replicas are elsewhere (`nanoinfer.cluster`)."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from reprlib import repr as repr_in_short
from typing import Any, TypeVar
from weakref import WeakSet

from nanoinfer.async_llm import AsyncEngine
from nanoinfer.llm import LLM, load_or_take
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.server.errors import NO_RETRY, ApiError, as_api_error, bad_request
from nanoinfer.server.generation import Generation, GenerationRequest
from nanoinfer.server.logprobs import TokenNames
from nanoinfer.server.metrics import Metrics
from nanoinfer.server.request_context import Drain
from nanoinfer.server.settings import ServerSettings

T = TypeVar("T")


class Served(ABC):
    """`name`: the model's. `core`: the model: its `config`, `builder` and `adapters`, and `prepare`, which checks a request
    for `add_prepared` of the engine. An Engine is one. `max_tokens`: how many tokens a request can have at most, prompt and
    output together. `local`: True where `core` is the Engine that computes."""

    name: str
    core: Any
    max_tokens: int
    local = False

    @property
    @abstractmethod
    def engine(self) -> Any:
        """What computes, from its first use on. An AsyncEngine is one; needed are its `is_closed`, `add_all`,
        `add_prepared`, `load_adapter`, `unload_adapter`, `visit_each` and `shutdown`."""

    @abstractmethod
    async def close(self) -> None:
        """Compute no more requests of this server."""


class InProcess(Served):
    """An LLM, an Engine, or the name or directory of a model, served by an AsyncEngine in this process. `close` shuts the
    engine down only if the model was loaded here."""

    local = True

    def __init__(self, llm: Any):
        self._llm = load_or_take(llm, {})
        self._is_loaded_here = self._llm is not llm
        self.core = self._llm.engine if isinstance(self._llm, LLM) else self._llm
        self.name = str(self._llm.model.name) if isinstance(self._llm, LLM) else "nanoinfer"

    @property
    def max_tokens(self) -> int:  # type: ignore[override]
        return min(self.core.config.max_context_len, self.core.cache.token_to_kv_pool.size + 1)

    @cached_property
    def engine(self) -> AsyncEngine:
        return AsyncEngine(self._llm)

    async def close(self) -> None:
        if "engine" in self.__dict__:
            await self.engine.shutdown()
        if self._is_loaded_here:
            await asyncio.to_thread(self._llm.shutdown)


class Service:
    """One model behind a server.

    - `settings`; `served`: the model, and what computes it; `core`: the model, for its configuration and tokenizer;
      `engine`: what computes, which is started at its first use, so that an application works without ASGI's lifespan, too.
    - `drain`: whether newcomers are refused. `is_ending`: set when streams that never end by themselves (the live page's)
      must end. `metrics`: what `/metrics` shows. `open`: the generations that have not ended.
    """

    def __init__(self, llm: Any, settings: ServerSettings):
        self.settings = settings
        self.served: Served = llm if isinstance(llm, Served) else InProcess(llm)
        self.core = self.served.core
        self.base_name: str = settings.served_model_name or self.served.name
        self.created = int(time.time())
        if (tokenizer := self.core.builder.tokenizer) is not None:
            tokenizer.tool_call_parser = settings.tool_call_parser or tokenizer.tool_call_parser
            tokenizer.reasoning_parser = settings.reasoning_parser or tokenizer.reasoning_parser
        self._compilers = ThreadPoolExecutor(4)
        self.drain = Drain()
        self.is_ending = asyncio.Event()
        self.metrics = Metrics(self.base_name)
        self.token_names = TokenNames(self.core.builder.tokenizer, self.core.builder.special_ids)
        self.open: WeakSet[Generation] = WeakSet()

    @property
    def engine(self) -> Any:
        """The engine that all requests share."""
        return self.served.engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. ApiError if it has none."""
        if self.core.builder.tokenizer is None:
            raise bad_request("this model has no tokenizer files: give token ids to /v1/completions", "prompt")
        return self.core.builder.tokenizer

    def model_names(self) -> list[str]:
        """The names that requests may give as `model`: the base model's, then those of the loaded adapters."""
        return [self.base_name, *self.core.adapters]

    def adapter_named(self, model: str | None) -> str | None:
        """The adapter that a request's `model` means; None for the base model, as if there is none. ApiError (404) for one
        that is unknown."""
        if model in (None, self.base_name):
            return None
        if model not in self.core.adapters:
            there = ", ".join(map(repr, self.model_names()))
            message = f"model={repr_in_short(model)}: no such model; there are: {there}"
            raise ApiError(404, message, "model", "model_not_found")
        return model

    def is_greedy(self, given: Mapping[str, Any]) -> bool:
        """Whether a request that gives these fields, without those that are null, always takes the likeliest token."""
        return {**self.core.builder.sampling_defaults, **given}.get("temperature") == 0

    async def prepared(self, function: Callable[[], T], what: str, field: str) -> T:
        """What a template or a tokenizer makes of a request's field, in a thread; it may raise anything, which is a 400.
        ApiError (500) if it takes too long: then the thread is left alone."""
        seconds = self.settings.preparation_timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.to_thread(function)
        except TimeoutError:
            message = f"{what} took longer than preparation_timeout_s={seconds:g} seconds"
            raise ApiError(500, message, code="preparation_timeout", headers=NO_RETRY) from None
        except ValueError as error:
            raise bad_request(str(error), field, as_api_error(error).code) from error
        except Exception as error:
            raise bad_request(f"{field}: {what} fails on it ({type(error).__name__})", field) from error

    async def generate(self, request: GenerationRequest) -> Generation:
        """Queue what a client asks for. Errors as in `AsyncEngine.add_all`; then nothing has been queued."""
        requests, params = request.requests, request.params
        count, limit = len(requests) * params.n, self.core.config.max_queue
        if limit is not None and count > limit:
            raise bad_request(f"n={params.n}: {count} completions in all: must not exceed max_queue={limit}", "n")
        try:
            if params.grammar_field is not None:
                loop, prepare = asyncio.get_running_loop(), self.core.prepare  # in threads that keep no others waiting
                groups = await loop.run_in_executor(self._compilers, lambda: [prepare(each) for each in requests])
                streams = await self.engine.add_prepared(groups, self.settings.max_unread)
            else:
                streams = await self.engine.add_all(requests, self.settings.max_unread)
        except ValueError as error:
            raise as_api_error(error, request.field_names) from error
        generation = Generation(request, streams, self.metrics.token_gaps)
        self.open.add(generation)
        return generation

    def end(self, generation: Generation) -> None:
        """The generation has been answered, or nobody waits for it any more."""
        generation.close("error" if generation.failed else "disconnect")
        generation.stop_reading()
        self.open.discard(generation)
        self.metrics.note_end(generation)

    def close_all(self, reason: str) -> None:
        """End everything that is being served; the clients are told why."""
        self.drain.end()
        for generation in list(self.open):
            generation.close(reason)

    async def close(self) -> None:
        """End everything, and shut the engine down. No request is accepted after that."""
        self.drain.begin()
        self.is_ending.set()
        self.close_all("shutdown")
        await self.served.close()
