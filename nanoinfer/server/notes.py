"""Notes: what is known about one HTTP request while it is served, for its answer and the access log."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from starlette.types import Scope

if TYPE_CHECKING:
    from nanoinfer.server.errors import ApiError
    from nanoinfer.server.generation import Generation, Wish
    from nanoinfer.server.service import Service


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
