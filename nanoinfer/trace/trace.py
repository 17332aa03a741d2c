"""Trace: what an engine did, step by step; kept, saved, looked at, and played back."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.requests.tokenizer import REPLACEMENT
from nanoinfer.trace import events as ev
from nanoinfer.trace import file
from nanoinfer.trace.describe import descriptions
from nanoinfer.trace.events import TraceEvent, TraceRequest
from nanoinfer.trace.state import TraceState

if TYPE_CHECKING:
    from nanoinfer.engine import Engine
    from nanoinfer.requests.req import Req
    from nanoinfer.trace.player import Player
    from nanoinfer.trace.recorder import Recorder

ENGINE_FIELDS = (
    "max_total_tokens",
    "max_running_requests",
    "max_context_len",
    "page_size",
    "schedule_policy",
    "eviction_policy",
    "chunked_prefill_size",
    "disable_radix_cache",
)


class Trace:
    """A run of an engine: `requests` and `events`, from which its state after any step can be rebuilt.

    - `engine`: the fields of EngineConfig that matter for reading it. `requests`: in order of arrival.
    - `events`: one TraceEvent a step, one where something happened between two, and first of all one (START) for what
      was there when the trace began. `len(trace)` is the number of steps; they are numbered from 1.
    - `texts`: token id → its text, for the tokens that occur; empty when the model has no tokenizer.

    It grows while the engine is being recorded: read it between steps. Recording takes some 50 microseconds a step and 2
    for each request in it (1 to 4 % of a decode step of the bundled model); the trace takes 1 KB a step, 400 bytes for each
    request in it, and 70 for each token that arrives or enters the tree. The sizes of pool and tree do not matter.
    """

    def __init__(
        self,
        engine: dict[str, Any],
        decode: Callable[[Sequence[int]], str] | None = None,
        recorder: "Recorder | None" = None,
    ):
        self.engine = engine
        self.requests: list[TraceRequest] = []
        self.num_steps = 0
        self._events: list[TraceEvent] = []
        self._texts: dict[int, str] = {}
        self._pieces: dict[int, dict[int, str]] = {}
        self._decode, self._recorder = decode, recorder

    @classmethod
    def of_engine(cls, engine: "Engine", recorder: "Recorder") -> "Trace":
        """An empty one, for a recorder to fill."""
        tokenizer = engine.builder.tokenizer
        return cls(
            {name: getattr(engine.config, name) for name in ENGINE_FIELDS},
            None if tokenizer is None else lambda token_ids: token_text(tokenizer, token_ids),
            recorder,
        )

    def __len__(self) -> int:
        return self.num_steps

    def __repr__(self) -> str:
        modes = [event.mode for event in self.events]
        return (
            f"<Trace: {self.num_steps} steps ({modes.count(ev.EXTEND)} EXTEND, {modes.count(ev.DECODE)} DECODE), "
            f"{len(self.requests)} requests>"
        )

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def events(self) -> list[TraceEvent]:
        if self._recorder is not None:
            self._recorder.settle()
        return self._events

    @property
    def texts(self) -> dict[int, str]:
        if self._decode is not None:
            for token in self._tokens():
                if token not in self._texts:
                    self._texts[token] = self._decode([token])
        return self._texts

    @property
    def pieces(self) -> dict[int, dict[int, str]]:
        """Request → position → text, where a token's text in its sequence is not its text alone: characters made of
        several tokens' bytes are given to the last of them."""
        if self._decode is not None:
            texts = self.texts
            for index, req in self.state().requests.items():
                if any(REPLACEMENT in texts[token] for token in req.tokens):
                    self._pieces[index] = _whole_characters(req.tokens, texts, self._decode)
        return self._pieces

    def text(self, request: int) -> str:
        """Prompt and output of a request, as far as they are known, special tokens by name; '' without a tokenizer."""
        pieces, tokens = self.pieces.get(request, {}), self.state().requests[request].tokens
        return "".join(pieces.get(i, self.texts.get(token, "")) for i, token in enumerate(tokens))

    def step(self, number: int) -> TraceEvent:
        """The event of one step, from 1; negative: from the end. ValueError when there is none."""
        wanted = self._checked_step(number)
        return next(event for event in self.events if event.is_step and event.step == wanted)

    def describe(self, step: int | None = None) -> str:
        """What happened in a step, in words; None: in all, a line each. ValueError when there is no such step."""
        _ = self.texts, self.pieces
        if step is None:
            return "\n".join(str(text) for _, text in descriptions(self))
        wanted = self._checked_step(step)
        return next(str(text) for event, text in descriptions(self) if event.is_step and event.step == wanted)

    def state(self, step: int | None = None) -> TraceState:
        """Slots, rows, tree and requests after a step (0: when the trace began; negative: from the end; None: now).

        Rebuilt from the events, so it costs what happened up to there. ValueError when there is no such step.
        """
        limit = None if step is None else self._checked_step(step, lowest=0)
        state = TraceState(self.engine["max_total_tokens"], self.requests)
        for event in self.events:
            if limit is not None and (event.step > limit or (event.step == limit and event.mode == ev.BETWEEN)):
                break
            state.apply(event)
        return state

    def states(self) -> Iterator[tuple[TraceEvent, TraceState]]:
        """Every event with the state after it: one state that goes on changing, so take from it what you need."""
        state = TraceState(self.engine["max_total_tokens"], self.requests)
        for event in self.events:
            state.apply(event)
            yield event, state

    # --- writing -------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write it as JSON: format "nanoinfer trace", version 1 (see file.py)."""
        file.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read what `save` wrote. ValueError naming what is wrong with the file, down to the event."""
        return file.load(path)

    def to_perfetto(self, path: str | Path) -> None:
        """Write it in Chrome's trace-event format, for ui.perfetto.dev."""
        from nanoinfer.trace import perfetto

        perfetto.write(self, path)

    def player(self, title: str | None = None) -> "Player":
        """A page that steps through the run: shown inline in a notebook, or `save`d as one HTML file (see player.py)."""
        from nanoinfer.trace.player import Player

        return Player(self, title)

    def stop(self) -> None:
        """End the recording, if it is still going on."""
        if self._recorder is not None:
            self._recorder.stop()

    def add_request(self, req: "Req", completion: int, time: float) -> None:
        """For the recorder: a request that it has not seen before."""
        name = f"request {req.request_id}" + (f" ({completion + 1})" if completion else "")
        before = self.requests[-1] if self.requests else None
        if before is not None and before.request_id == req.request_id:
            prompt = before.prompt  # completions of one request share it
        else:
            prompt = req.token_ids[: req.prompt_len].tolist()
        key = None if req.extra_key is None else repr(req.extra_key)
        limit, outputs, cached = req.params.max_new_tokens, req.output_ids, req.cached_tokens
        self.requests.append(TraceRequest(name, req.request_id, completion, prompt, limit, time, key, outputs, cached))

    def add_event(self, event: TraceEvent) -> None:
        """For the recorder."""
        self._events.append(event)
        self.num_steps += event.is_step

    # --- how it works --------------------------------------------------------------------------------------------

    def _checked_step(self, number: int, lowest: int = 1) -> int:
        wanted = number + self.num_steps + 1 if number < 0 else number
        if not lowest <= wanted <= self.num_steps:
            raise ValueError(f"step={number}: must be in {lowest}..{self.num_steps}, the steps of this trace")
        return wanted

    def _tokens(self) -> Iterator[int]:
        for request in self.requests:
            yield from request.prompt
            yield from request.outputs
        for event in self.events:
            yield from (entry.token for entry in event.batch if entry.token is not None)
            for what, *rest in event.tree:
                if what in ("add", "grow"):
                    yield from rest[2] if what == "add" else rest[1]


def token_text(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """The text of tokens as a picture should show it: special tokens by name, a word's leading space kept."""
    text = tokenizer.decode(token_ids)
    spell = getattr(getattr(tokenizer, "hf_tokenizer", None), "convert_ids_to_tokens", None)
    if spell is None or len(token_ids) != 1:
        return text
    (name,) = spell(list(token_ids))
    if not text:
        return name or ""
    return f" {text}" if name.startswith("▁") and not text.startswith(" ") else text


def _whole_characters(
    tokens: Sequence[int], texts: dict[int, str], decode: Callable[[Sequence[int]], str]
) -> dict[int, str]:
    """Position → text, where it differs from the token's own."""
    pieces: dict[int, str] = {}
    held: list[int] = []
    for i, token in enumerate(tokens):
        if not held and REPLACEMENT not in texts[token]:
            continue
        held.append(token)
        text = decode(held)
        if text.endswith(REPLACEMENT) and len(held) < 4 and i + 1 < len(tokens):  # a character has 4 bytes at most
            pieces[i] = ""
        else:
            pieces[i] = text
            held = []
    return pieces
