"""RequestContext: what is known about one HTTP request while it is served, for its answer and for its line in the access
log. Drain: the requests that a server must answer before it ends.

    127.0.0.1 POST /v1/completions 200 id=4f1c model=story prompt=12 cached=8 output=16 ttft_ms=3.1 ms=21.4 end=length

`end` says how the choices ended (`stop`, `length`, `abort`, `timeout`), and after a slash what ended the request early
(`disconnect`, `shutdown`, `error`). A 4xx has the error's `param` and `code` instead. Status 0: the client went before it
was answered. Switch it on with `logging.basicConfig(level=logging.INFO)`; `serve` does.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

from starlette.types import Scope

from nanoinfer.server.errors import ApiError, shut_down

if TYPE_CHECKING:
    from nanoinfer.server.generation import Generation

logger = logging.getLogger("nanoinfer.access")


@dataclass(eq=False)
class RequestContext:
    """`request_id`: the client's, or a new one. `generation`: what is generated for it. `error`: its answer, if it is one.
    `prompt`: its prompts as text, only where the log may show them. `task`: that which serves it. `names`: of the fields of
    chat requests → the client's, where it calls them otherwise."""

    request_id: str = field(default_factory=lambda: uuid4().hex)
    started: float = field(default_factory=time.perf_counter)
    status: int = 0
    generation: "Generation | None" = None
    error: ApiError | None = None
    prompt: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    task: "asyncio.Task[Any] | None" = None
    is_ended: bool = False


def context_of(scope: Scope) -> RequestContext:
    """The context of the request of this ASGI scope."""
    context: RequestContext = scope.setdefault("nanoinfer", RequestContext())
    return context


class Drain:
    """The requests that are being served. After `begin`, newcomers are refused, and `wait` waits for the others. `end` ends
    those for which nothing is generated yet: their bodies are still coming, or they are being prepared."""

    def __init__(self) -> None:
        self.is_draining = False
        self._inside: set[RequestContext] = set()

    @property
    def serving(self) -> int:
        """How many requests are being served."""
        return len(self._inside)

    def begin(self) -> None:
        """Refuse newcomers from now on."""
        self.is_draining = True

    @contextmanager
    def inside(self, context: RequestContext) -> Iterator[None]:
        """Serve a request. ApiError (503) when the server is ending, or when `end` has ended the request."""
        if self.is_draining:
            raise shut_down()
        context.task = asyncio.current_task()
        self._inside.add(context)
        try:
            yield
        except asyncio.CancelledError:
            if not context.is_ended or context.task is None:
                raise
            context.task.uncancel()
            raise shut_down() from None
        finally:
            self._inside.remove(context)

    def end(self) -> None:
        """End the requests that have not begun (`Service.close_all` ends the others)."""
        for context in self._inside:
            if context.task and not (context.status or context.generation or context.is_ended):
                context.is_ended = True
                context.task.cancel()

    async def wait(self, timeout_s: float) -> None:
        """Wait until no request is being served, but no longer than this."""
        if tasks := [context.task for context in self._inside if context.task is not None]:
            await asyncio.wait(tasks, timeout=timeout_s)


def log_request(scope: Scope, context: RequestContext) -> None:
    """Write the line. Neither the query nor any header but the request's id is in it."""
    if not logger.isEnabledFor(logging.INFO):
        return
    client = scope.get("client")
    path, address = quote(scope["path"], safe="/"), client[0] if client else "-"
    parts = [address, scope["method"], path, str(context.status), f"id={context.request_id}"]
    if context.error is not None and 400 <= context.status < 500:
        parts += [f"{name}={quote(getattr(context.error, name) or '-', safe='.[]')}" for name in ("param", "code")]
    if (generation := context.generation) is not None:
        request = generation.request
        parts += [f"model={quote(request.model, safe='/')}", f"prompt={request.prompt_tokens}"]
        parts += [f"cached={generation.cached_tokens}", f"output={generation.output_tokens}"]
        if generation.first_token_at is not None:
            parts.append(f"ttft_ms={1e3 * (generation.first_token_at - context.started):.1f}")
    parts.append(f"ms={1e3 * (time.perf_counter() - context.started):.1f}")
    if generation is not None:
        ends = ",".join(dict.fromkeys(generation.ends)) or "none"
        parts.append(f"end={ends}" + (f"/{generation.closed_by}" if generation.closed_by else ""))
    if context.prompt is not None:
        parts.append(f"prompt_text={context.prompt!r}")
    logger.info("%s", " ".join(parts))
