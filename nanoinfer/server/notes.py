"""Notes: what is known about one HTTP request while it is served, for its answer and for its line in the access log.

    127.0.0.1 POST /v1/completions 200 id=4f1c model=story prompt=12 cached=8 output=16 ttft_ms=3.1 ms=21.4 end=length

`end` says how the choices ended (`stop`, `length`, `abort`, `timeout`), and after a slash what ended the request early
(`disconnect`, `shutdown`, `error`). A 4xx has the error's `param` and `code` instead. Status 0: the client went before it
was answered. Switch it on with `logging.basicConfig(level=logging.INFO)`; `serve` does.
"""

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from starlette.types import Scope

if TYPE_CHECKING:
    from nanoinfer.server.errors import ApiError
    from nanoinfer.server.generation import Generation, Wish
    from nanoinfer.server.service import Service

logger = logging.getLogger("nanoinfer.access")


@dataclass
class Notes:
    """`request_id`: the client's, or a new one. `generation`: what is generated for it. `error`: its answer, if it is one.
    `prompt`: its prompts as text, only where the log may show them."""

    request_id: str = field(default_factory=lambda: uuid4().hex)
    started: float = field(default_factory=time.perf_counter)
    status: int = 0
    generation: "Generation | None" = None
    error: "ApiError | None" = None
    prompt: str | None = None

    def note_prompt(self, service: "Service", wish: "Wish") -> None:
        """Keep the prompts' text for the log, if it may show them."""
        if service.settings.show_prompts and service.core.builder.tokenizer is not None:
            self.prompt = "\n".join(service.core.builder.tokenizer.decode(prompt) for prompt in wish.prompts)


def notes_of(scope: Scope) -> Notes:
    """The notes about the request of this ASGI scope."""
    notes: Notes = scope.setdefault("nanoinfer", Notes())
    return notes


def log_request(scope: Scope, notes: Notes) -> None:
    """Write the line. Neither the query nor any header but the request's id is in it."""
    if not logger.isEnabledFor(logging.INFO):
        return
    client = scope.get("client")
    path, address = quote(scope["path"], safe="/"), client[0] if client else "-"
    parts = [address, scope["method"], path, str(notes.status), f"id={notes.request_id}"]
    if notes.error is not None and 400 <= notes.status < 500:
        parts += [f"{name}={quote(getattr(notes.error, name) or '-', safe='.[]')}" for name in ("param", "code")]
    if (generation := notes.generation) is not None:
        counts, wish = generation.counts, generation.wish
        parts += [f"model={quote(wish.model, safe='/')}", f"prompt={wish.prompt_tokens}"]
        parts += [f"cached={counts.cached_tokens}", f"output={counts.output_tokens}"]
        if generation.first_token_at is not None:
            parts.append(f"ttft_ms={1e3 * (generation.first_token_at - notes.started):.1f}")
    parts.append(f"ms={1e3 * (time.perf_counter() - notes.started):.1f}")
    if generation is not None:
        ends = ",".join(dict.fromkeys(generation.counts.ends)) or "none"
        parts.append(f"end={ends}" + (f"/{generation.closed_by}" if generation.closed_by else ""))
    if notes.prompt is not None:
        parts.append(f"prompt_text={notes.prompt!r}")
    logger.info("%s", " ".join(parts))
