"""Recording: what an engine does while it is watched, as messages for pages, with or without what was written."""

from dataclasses import replace
from functools import partial
from typing import Any

from nanoinfer.engine.engine import Engine
from nanoinfer.requests.tokenizer import REPLACEMENT, token_text, whole_characters
from nanoinfer.viz.trace.data import HEAD, dumps, tokens_in
from nanoinfer.viz.trace.events import BatchEntry, TraceEvent, TraceRequest
from nanoinfer.viz.trace.recorder import Recorder

MOST_STEPS = 3000
HIDDEN, REJECTED = 0, 1  # the token in place of all others, and that in place of drafts that were rejected
HIDDEN_TEXTS = {HIDDEN: "□", REJECTED: "□"}
News = tuple[list[TraceRequest], list[TraceEvent]]


class Recording:
    """All messages together are a trace, as in a file (viz/trace/data.py): the first one has its head, and each of them has
    requests, events, and the texts that they need. `about`: what else the first one says."""

    def __init__(self, engine: Engine, show_prompts: bool, about: dict[str, Any]):
        self._recorder = Recorder(engine)
        self._head: dict[str, Any] = {**HEAD, "engine": self._recorder.trace.engine, "about": about}
        self._hider = None if show_prompts else Hider()
        tokenizer = engine.builder.tokenizer
        self._decode = None if tokenizer is None else partial(token_text, tokenizer)
        self._texts: dict[int, str] = {}
        self._tokens: list[list[int]] = []  # of each request
        self._taken = [0, 0]  # requests and events

    @property
    def is_full(self) -> bool:
        return self._recorder.trace.num_steps >= MOST_STEPS

    def stop(self) -> None:
        """End it. May be called more than once."""
        self._recorder.stop()

    def take(self) -> News:
        """What is new since the last call. Between two steps of the engine."""
        trace = self._recorder.trace
        events = trace.events[self._taken[1] :]  # first: this may bring further requests
        requests = trace.requests[self._taken[0] :]
        self._taken = [self._taken[0] + len(requests), self._taken[1] + len(events)]
        return requests, events

    def message(self, requests: list[TraceRequest], events: list[TraceEvent]) -> bytes:
        """The next message with these, which `take` returned; not in the engine's thread."""
        fields, self._head = self._head, {}
        if self._hider is not None:
            requests, events = self._hider.news(requests, events)
            if fields:
                fields |= {"texts": HIDDEN_TEXTS, "pieces": {}}
        else:
            fields |= self._new_texts(requests, events)
        fields["requests"] = [request.to_json() for request in requests]
        fields["events"] = [event.to_json() for event in events]
        return b"event: news\ndata: " + dumps(fields).encode("utf-8", "replace") + b"\n\n"

    def _new_texts(self, requests: list[TraceRequest], events: list[TraceEvent]) -> dict[str, Any]:
        if self._decode is None:
            return {"texts": {}, "pieces": {}}
        new = {token: self._decode([token]) for token in {*tokens_in(requests, events)} - self._texts.keys()}
        self._texts |= new
        added = [(len(self._tokens) + i, request.prompt + request.outputs) for i, request in enumerate(requests)]
        added += [(entry.request, list(entry.tokens)) for event in events for entry in event.batch]
        self._tokens += [[] for _ in requests]
        for index, tokens in added:
            self._tokens[index] += tokens
        cut = {index for index, tokens in added if any(REPLACEMENT in self._texts[token] for token in tokens)}
        return {"texts": new, "pieces": {i: whole_characters(self._tokens[i], self._texts, self._decode) for i in cut}}


class Hider:
    """Makes the same requests and events with other tokens. Keys are numbered, and of an error only its type is left."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def news(self, requests: list[TraceRequest], events: list[TraceEvent]) -> News:
        return [*map(self._request, requests)], [*map(self._event, events)]

    def _request(self, request: TraceRequest) -> TraceRequest:
        prompt, outputs = _hidden(request.prompt), _hidden(request.outputs)
        return replace(request, prompt=prompt, outputs=outputs, extra_key=self._key(request.extra_key))

    def _event(self, event: TraceEvent) -> TraceEvent:
        error = None if event.error is None else event.error.partition(":")[0]
        batch = [_hidden_entry(entry) for entry in event.batch]
        return replace(event, tree=[self._operation(*each) for each in event.tree], batch=batch, error=error)

    def _operation(self, what: str, *rest: Any) -> list[Any]:
        if what == "add":
            number, parent, tokens, runs, key, time = rest
            return [what, number, parent, _hidden(tokens), runs, self._key(key), time]
        if what == "grow":
            number, tokens, runs = rest
            return [what, number, _hidden(tokens), runs]
        return [what, *rest]

    def _key(self, key: str | None) -> str | None:
        return None if key is None else self._keys.setdefault(key, f"key {len(self._keys) + 1}")


def _hidden(tokens: Any) -> list[int]:
    return [HIDDEN] * len(tokens)


def _hidden_entry(entry: BatchEntry) -> BatchEntry:
    drafts = entry.drafts
    if drafts is not None:
        drafts = [HIDDEN] * entry.accepted + [REJECTED] * (len(drafts) - entry.accepted)
    return entry._replace(tokens=_hidden(entry.tokens), drafts=drafts)
