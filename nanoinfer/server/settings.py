"""ServerSettings: what a server allows and how long it waits, checked and frozen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanoinfer.cache.block_events import check_block_size
from nanoinfer.requests.tool_calls.registry import CALL_FORMATS, REASONING_FORMATS

WHOLE = ("max_body_bytes", "max_completions", "max_logprobs", "max_unread", "max_requests", "store_responses")
SECONDS = ("preparation_timeout_s", "drain_timeout_s")
NAMES = ("api_keys", "allowed_hosts", "cors_origins", "framed_by")


@dataclass(frozen=True)
class ServerSettings:
    """ValueError naming the field for a value that is out of range. Every field may be given to `make_app` by its name.

    Who may use it:
    - `api_keys`: with at least one, a request needs one of them (`Authorization: Bearer KEY`), except for `/health` and the
      page's own files.
    - `allowed_hosts`: names that the Host header may have, besides IP addresses and names without a dot (middleware.py);
      "*" allows all. `cors_origins`: pages from other origins that may use the server; "*" allows all.
    - `framed_by`: origins, as in a Content-Security-Policy, whose pages may show the live page in a frame. `LLM.serve`
      names those of notebooks on this machine.
    - `adapter_root`: the folder from which adapters can be loaded over HTTP. None: no adapters can be loaded.
    - `show_prompts`: prompts are in the access log, and the live page shows those of all clients.

    What it tells: `event_block_size`: `/block_events` says what the tree holds, in blocks of so many tokens (a router's
    `block_size`), and with `show_prompts` which tokens these are. None: there is no such route, and it costs nothing.

    What it is called: `served_model_name`. None: the name with which the model was loaded.

    How replies are read (`requests/tool_calls/registry.py` has the names): `tool_call_parser`, `reasoning_parser`. None:
    the chat template says it.

    How much:
    - `max_body_bytes`: of one request.
    - `max_completions`: prompts of one request, times `n`. `max_logprobs`: log-probabilities per token.
    - `max_unread`: so many unread pieces of a stream pause its request until half of them are read.
    - `max_requests`: requests that are being answered; others get a 503.
    - `store_responses`: responses that `/v1/responses` keeps in memory, the newest ones; 0 keeps none.

    How long, in seconds:
    - `request_timeout_s`: from arrival to the last token; None: no limit.
    - `preparation_timeout_s`: for the chat template and the tokenizer.
    - `drain_timeout_s`: for requests that are running when the server is told to end.
    """

    api_keys: Sequence[str] = field(default=(), repr=False)
    allowed_hosts: Sequence[str] = ()
    cors_origins: Sequence[str] = ()
    framed_by: Sequence[str] = ()
    adapter_root: str | Path | None = None
    show_prompts: bool = False
    event_block_size: int | None = None
    served_model_name: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    max_body_bytes: int = 8 * 2**20
    max_completions: int = 256
    max_logprobs: int = 20
    max_unread: int = 256
    max_requests: int = 4096
    store_responses: int = 256
    request_timeout_s: float | None = None
    preparation_timeout_s: float = 30.0
    drain_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for name in WHOLE:
            value = getattr(self, name)
            least = 0 if name == "store_responses" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r}: must be an integer of at least {least}")
        for name in (*SECONDS, *(["request_timeout_s"] if self.request_timeout_s is not None else [])):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r}: must be a number of seconds above 0")
        for name, formats in (("tool_call_parser", CALL_FORMATS), ("reasoning_parser", REASONING_FORMATS)):
            known = [each.name for each in formats]
            if (value := getattr(self, name)) is not None and value not in known:
                raise ValueError(f"{name}={value!r}: must be one of {', '.join(known)}")
        for name in NAMES:
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(each, str) and each.strip() for each in value):
                raise ValueError(f"{name}: must be a list of texts that are not empty")
            object.__setattr__(self, name, tuple(value))
        if not all(key.isascii() and key.isprintable() and " " not in key for key in self.api_keys):
            raise ValueError("api_keys: must be visible ASCII characters, which is what a header can have")
        if self.event_block_size is not None:
            check_block_size(self.event_block_size, "event_block_size")
        if self.adapter_root is not None:
            root = Path(self.adapter_root).expanduser()
            if not root.is_dir():
                raise ValueError(f"adapter_root={str(self.adapter_root)!r}: must be a folder")
            object.__setattr__(self, "adapter_root", root.resolve())
