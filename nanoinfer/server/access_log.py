"""The access log: one line per request, with what it cost.

    127.0.0.1 POST /v1/completions 200 id=4f1c model=story prompt=12 cached=8 output=16 ttft_ms=3.1 ms=21.4 end=length

`end` says how the choices ended (`stop`, `length`, `abort`, `timeout`), and after a slash what ended the request early
(`disconnect`, `slow_reader`, `shutdown`, `error`). A 4xx has the error's `param` and `code` instead. Status 0: the client
went before it was answered. Switch it on with `logging.basicConfig(level=logging.INFO)`; `serve` does.
"""

import logging
import time
from urllib.parse import quote

from starlette.types import Scope

from nanoinfer.server.notes import Notes

logger = logging.getLogger("nanoinfer.access")


def log_request(scope: Scope, notes: Notes) -> None:
    """Write the line. Neither the query nor any header but the request's id is in it."""
    if not logger.isEnabledFor(logging.INFO):
        return
    client = scope.get("client")
    now = time.perf_counter()
    parts = [
        client[0] if client else "-",
        scope["method"],
        quote(scope["path"], safe="/"),
        str(notes.status),
        f"id={notes.request_id}",
    ]
    if notes.error is not None and 400 <= notes.status < 500:
        parts += [f"{name}={quote(getattr(notes.error, name) or '-', safe='.[]')}" for name in ("param", "code")]
    if (generation := notes.generation) is not None:
        counts, wish = generation.counts, generation.wish
        parts += [
            f"model={quote(wish.model, safe='/')}",
            f"prompt={wish.prompt_tokens}",
            f"cached={counts.cached_tokens}",
            f"output={counts.output_tokens}",
        ]
        if generation.first_token_at is not None:
            parts.append(f"ttft_ms={1e3 * (generation.first_token_at - notes.started):.1f}")
    parts.append(f"ms={1e3 * (now - notes.started):.1f}")
    if generation is not None:
        ends = ",".join(dict.fromkeys(generation.counts.ends)) or "none"
        parts.append(f"end={ends}" + (f"/{generation.closed_by}" if generation.closed_by else ""))
    if notes.prompt is not None:
        parts.append(f"prompt_text={notes.prompt!r}")
    logger.info("%s", " ".join(parts))
