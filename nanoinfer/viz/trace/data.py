"""TraceData: what a trace contains (requests, events, texts), the state after any step, and its file.

A trace's file is JSON, format "nanoinfer trace", version 3:

    {"format": ..., "version": ..., "engine": {...}, "texts": {token id: text}, "pieces": {request: {position: text}},
     "requests": [TraceRequest, ...], "events": [TraceEvent, ...]}

Empty fields are left out. The same run gives the same file, except for the times in it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nanoinfer.requests.tokenizer import REPLACEMENT, whole_characters
from nanoinfer.viz.trace import events as ev
from nanoinfer.viz.trace.events import TraceEvent, TraceRequest
from nanoinfer.viz.trace.state import TraceState

HEAD = {"format": "nanoinfer trace", "version": 3}
BAD = (TypeError, LookupError, ValueError, AttributeError, RuntimeError, AssertionError)  # what a wrong entry causes
T = TypeVar("T", bound="TraceData")
Decode = Callable[[Sequence[int]], str]


class TraceData:
    """A run of an engine: `requests` and `events`, from which its state after any step can be rebuilt.

    Everything that reads a trace (sentences, pictures, the player) takes this class. Users call Trace, which adds a method
    for each of these.

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
        writer: Any = None,
    ):
        """Start without requests and events. `decode` makes the texts of tokens as they occur; without it, they are `texts`
        and `pieces`. `writer`: the Recorder that adds to it, which is asked for the latest events before they are
        read."""
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

    def add_event(self, event: TraceEvent) -> None:
        self._events.append(event)
        self.num_steps += event.is_step

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

    # --- its file ------------------------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """The whole trace as plain dicts and lists."""
        return {
            **HEAD,
            "engine": self.engine,
            "texts": {str(token): text for token, text in sorted(self.texts.items())},
            "pieces": {str(index): pieces for index, pieces in self.pieces.items()},
            "requests": [request.to_json() for request in self.requests],
            "events": [event.to_json() for event in self.events],
        }

    def save(self, path: str | Path) -> None:
        """Write it as JSON, one event per line."""
        parts = []
        for name, value in self.to_document().items():
            entries = "[\n" + ",\n".join(map(dumps, value)) + "\n]" if isinstance(value, list) else dumps(value)
            parts.append(f'"{name}": {entries}')
        Path(path).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls: type[T], path: str | Path) -> T:
        """Read what `save` wrote. ValueError, naming the file, unless every event fits the events before it."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            if {name: document.get(name) for name in HEAD} != HEAD:
                raise ValueError(f"must be an object with {HEAD}")
            texts = {int(token): text for token, text in document["texts"].items()}
            pieces = {int(i): {int(at): text for at, text in of.items()} for i, of in document["pieces"].items()}
            trace = cls(document["engine"], texts=texts, pieces=pieces)
            trace.requests += [TraceRequest(**fields) for fields in document["requests"]]
            for fields in document["events"]:
                trace.add_event(TraceEvent.from_json(fields))
            if trace.events[0].mode != ev.START:
                raise ValueError(f"the first event is {trace.events[0].mode}, must be {ev.START}")
            for _, state in trace.states():
                state.check_integrity()
        except BAD as error:
            raise ValueError(f"{path}: is no trace that can be read: {type(error).__name__}: {error}") from error
        return trace


def dumps(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


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
