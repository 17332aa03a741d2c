"""Served: what a server serves: a model of its own process, or one whose replicas are elsewhere (`nanoinfer.cluster`)."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.frontends.async_engine import AsyncEngine
from nanoinfer.frontends.async_stream import AsyncStream
from nanoinfer.frontends.llm import LLM, load_or_take
from nanoinfer.requests.request import Request
from nanoinfer.requests.request_builder import RequestBuilder

T = TypeVar("T")


class ServedModel(Protocol):
    """What a server asks about a model without computing anything. An Engine answers it."""

    builder: RequestBuilder

    @property
    def config(self) -> EngineConfig: ...

    @property
    def adapters(self) -> Mapping[str, Any]: ...

    def prepare(self, request: Request) -> Any:
        """Check a request, its grammar included, for `ServedEngine.add_prepared`. InvalidRequestError."""


class ServedEngine(Protocol):
    """What computes requests. An AsyncEngine is one; the methods that have the same names mean the same."""

    @property
    def is_closed(self) -> bool: ...

    async def add_all(self, requests: Sequence[Request], max_unread: int | None = None) -> list[AsyncStream]: ...

    async def add_prepared(self, groups: Sequence[Any], max_unread: int | None = None) -> list[AsyncStream]: ...

    async def load_adapter(self, name: str, path: str | Path) -> Any: ...

    async def unload_adapter(self, name: str) -> None: ...

    async def visit_each(self, function: Callable[[Engine], T]) -> list[T]: ...

    async def shutdown(self) -> None: ...


class Served(ABC):
    """`name`: the model's. `core`: the model, for its configuration and tokenizer. `max_tokens`: how many tokens a request
    can have at most, prompt and output together. `local`: True where `core` is the Engine that computes."""

    name: str
    core: ServedModel
    max_tokens: int
    local = False

    @property
    @abstractmethod
    def engine(self) -> ServedEngine:
        """What computes; it starts at its first use. May be called from any thread."""

    @abstractmethod
    async def close(self) -> None:
        """Compute no more requests of this server."""


class InProcess(Served):
    """An LLM, an Engine, or the name or directory of a model, served by an AsyncEngine in this process. `close` shuts the
    engine down only if the model was loaded here."""

    local = True
    core: Engine

    def __init__(self, llm: Any):
        self._llm = load_or_take(llm, {})
        self._is_loaded_here = self._llm is not llm
        self.core = self._llm.engine if isinstance(self._llm, LLM) else self._llm
        self.name = str(self._llm.model.name) if isinstance(self._llm, LLM) else "nanoinfer"
        self._engine: AsyncEngine | None = None
        self._starting = threading.Lock()

    @property
    def max_tokens(self) -> int:  # type: ignore[override]
        return min(self.core.config.max_context_len, self.core.cache.token_to_kv_pool.size + 1)

    @property
    def engine(self) -> AsyncEngine:
        with self._starting:
            if self._engine is None:
                self._engine = AsyncEngine(self._llm)
            return self._engine

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.shutdown()
        if self._is_loaded_here:
            await asyncio.to_thread(self._llm.shutdown)
