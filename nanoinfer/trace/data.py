"""TraceData: what a trace contains (requests, events, texts), and the state after any step, rebuilt from it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from nanoinfer.engine.engine import Engine
from nanoinfer.requests.req import Req
from nanoinfer.requests.tokenizer import REPLACEMENT, whole_characters
from nanoinfer.trace import events as ev
from nanoinfer.trace.events import TraceEvent, TraceRequest
from nanoinfer.trace.state import TraceState

ENGINE_FIELDS = (
    "max_total_tokens",
    "max_running_requests",
    "max_context_len",
    "page_size",
    "schedule_policy",
    "eviction_policy",
    "chunked_prefill_size",
    "disable_radix_cache",
    "drafter",
    "num_draft_tokens",
)
Decode = Callable[[Sequence[int]], str]


def engine_fields(engine: Engine) -> dict[str, Any]:
    """What a trace's `engine` says. `storeys` only if there are any below the pool: `["host"]` or `["host", "disk"]`."""
    config, host = engine.config, engine.cache.storey
    fields = {name: getattr(config, name) for name in ENGINE_FIELDS} | {"drafter": list(config.drafters)}
    return fields if host is None else fields | {"storeys": ["host"] if host.below is None else ["host", "disk"]}


class Writer(Protocol):
    """Adds to a trace while it grows. A Recorder is one."""

    def settle(self) -> None:
        """Add what has happened up to now."""

    def stop(self) -> None:
        """Stop adding."""


class TraceData:
    """A run of an engine: `requests` and `events`, from which its state after any step can be rebuilt.

    Everything that reads a trace (sentences, files, pictures, the player) takes this class. Users call Trace, which adds a
    method for each of these.

    - `engine`: the fields of EngineConfig that matter for reading the trace. `requests`: in order of arrival.
    - `events`: first one (START) for the state in which the trace began, then one TraceEvent per step, and one wherever
      something happened between two steps. `len(trace)` is the number of steps; they are numbered from 1.
    - `texts`: token id → its text, for the tokens that occur. Empty if the model has no tokenizer.
    - `pieces`: request → position → text, where a token's text in its sequence differs from `texts[token]`: a character
      made of several tokens' bytes is given to the last of these tokens.
    """

    def __init__(
        self,
        engine: dict[str, Any],
        *,
        texts: Mapping[int, str] | None = None,
        pieces: Mapping[int, dict[int, str]] | None = None,
        decode: Decode | None = None,
        writer: Writer | None = None,
    ):
        """Start without requests and events. `decode` makes the texts of tokens as they occur; without it, they are `texts`
        and `pieces`. `writer` is asked for the latest events before they are read."""
        self.engine = engine
        self.requests: list[TraceRequest] = []
        self.num_steps = 0
        self.writer = writer
        self._events: list[TraceEvent] = []
        self._texts, self._pieces = dict(texts or {}), dict(pieces or {})
        self._decode = decode

    def __len__(self) -> int:
        return self.num_steps

    # --- what it holds -------------------------------------------------------------------------------------------

    @property
    def events(self) -> list[TraceEvent]:
        if self.writer is not None:
            self.writer.settle()
        return self._events

    @property
    def texts(self) -> dict[int, str]:
        if self._decode is not None:
            for token in tokens_in(self.requests, self.events):
                if token not in self._texts:
                    self._texts[token] = self._decode([token])
        return self._texts

    @property
    def pieces(self) -> dict[int, dict[int, str]]:
        if self._decode is not None:
            texts = self.texts
            for index, req in self.state().requests.items():
                if any(REPLACEMENT in texts[token] for token in req.tokens):
                    self._pieces[index] = whole_characters(req.tokens, texts, self._decode)
        return self._pieces

    def text(self, request: int) -> str:
        """A request's prompt and output so far, with special tokens as text; '' without a tokenizer."""
        pieces, tokens = self.pieces.get(request, {}), self.state().requests[request].tokens
        return "".join(pieces.get(i, self.texts.get(token, "")) for i, token in enumerate(tokens))

    # --- a step, and the state after it --------------------------------------------------------------------------

    def step(self, number: int) -> TraceEvent:
        """The event of one step, counted from 1, or from the end if negative. ValueError if there is no such step."""
        wanted = self.checked_step(number)
        return next(event for event in self.events if event.is_step and event.step == wanted)

    def state(self, step: int | None = None) -> TraceState:
        """Slots, rows, tree and requests after a step (0: when the trace began; negative: from the end; None: now).

        It is rebuilt from all events up to that step, which takes time in proportion. ValueError if there is no such step.
        """
        limit = None if step is None else self.checked_step(step, lowest=0)
        state = TraceState(self.engine["max_total_tokens"], self.requests)
        for event in self.events:
            if limit is not None and (event.step > limit or (event.step == limit and event.mode == ev.BETWEEN)):
                break
            state.apply(event)
        return state

    def states(self) -> Iterator[tuple[TraceEvent, TraceState]]:
        """Every event with the state after it. It is always the same state object, which changes: copy what you need."""
        state = TraceState(self.engine["max_total_tokens"], self.requests)
        for event in self.events:
            state.apply(event)
            yield event, state

    def checked_step(self, number: int, lowest: int = 1) -> int:
        """`number`, counted from the beginning. ValueError if there is no such step."""
        wanted = number + self.num_steps + 1 if number < 0 else number
        if not lowest <= wanted <= self.num_steps:
            raise ValueError(f"step={number}: must be in {lowest}..{self.num_steps}, the steps of this trace")
        return wanted

    # --- how a recorder or a file fills it -----------------------------------------------------------------------

    def add_request(self, req: Req, completion: int, time: float) -> None:
        """Add a request of the engine that is not in the trace yet."""
        before = self.requests[-1] if self.requests else None
        if before is not None and before.request_id == req.request_id:
            prompt = before.prompt  # completions of one request share it
        else:
            prompt = req.token_ids[: req.prompt_len].tolist()
        request = TraceRequest(
            name=f"request {req.request_id}" + (f" ({completion + 1})" if completion else ""),
            request_id=req.request_id,
            completion=completion,
            prompt=prompt,
            max_new_tokens=req.params.max_new_tokens,
            time=time,
            extra_key=None if req.extra_key is None else repr(req.extra_key),
            outputs=req.output_ids,
            cached_tokens=req.cached_tokens,
            admitted=req.num_admissions > 0,
            drafted_tokens=req.drafted_tokens,
            accepted_tokens=req.accepted_tokens,
            fetched={storey: part for storey, part in req.fetched.items() if part[0] < part[1]},
        )
        self.requests.append(request)

    def add_event(self, event: TraceEvent) -> None:
        self._events.append(event)
        self.num_steps += event.is_step


def tokens_in(requests: Iterable[TraceRequest], events: Iterable[TraceEvent]) -> Iterator[int]:
    """Every token in them, some of them more than once."""
    for request in requests:
        yield from request.prompt
        yield from request.outputs
    for event in events:
        for entry in event.batch:
            yield from entry.tokens
            yield from entry.drafts or ()
        for what, *rest in event.tree:
            if what in ("add", "grow"):
                yield from rest[2] if what == "add" else rest[1]
