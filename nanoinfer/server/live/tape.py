"""Tape: the last minutes of an engine that is watched, as a trace, with or without what was written."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nanoinfer.engine.engine import Engine
from nanoinfer.server.live.limits import Limits
from nanoinfer.trace import perfetto
from nanoinfer.trace.data import TraceData
from nanoinfer.trace.events import BatchEntry, TraceEvent, TraceRequest
from nanoinfer.trace.file import to_document
from nanoinfer.trace.recorder import Recorder, recorder_of

HIDDEN, REJECTED = 0, 1  # the token in place of all others, and that in place of drafts that were rejected
TEXT = "□"


class Tape:
    """Records at most `tape_steps` and `tape_seconds`, and then begins anew: so it is bounded, however long it runs.

    An engine has one recorder. If another one is there already (an LLM made with `trace=True`), its trace is what can be
    had. One that comes later (`record`) takes this one's place; the tape begins anew when it has ended. `after_pass` is
    called by whichever there is. All methods run between two steps of the engine.
    """

    def __init__(self, engine: Engine, limits: Limits, after_pass: Callable[[Engine], object]):
        self._engine, self._limits, self._after_pass = engine, limits, after_pass
        self._recorder: Recorder | None = None  # this tape's own
        self._source: Recorder | None = None  # the one that calls `after_pass`

    def keep_up(self) -> None:
        """Record, if nobody else does; begin anew when the tape is full."""
        there = recorder_of(self._engine)
        if there is None or (there is self._recorder and self._is_full(there)):
            self._recorder = there = Recorder(self._engine, gives_way=True)
        self._listen_to(there)

    def stop(self) -> None:
        """Record no more, and forget everything."""
        self._listen_to(None)
        if self._recorder is not None:
            self._recorder.stop()
        self._recorder = None

    def trace(self) -> TraceData | None:
        """What is on it now, and does not grow; None if nothing is recorded now."""
        there = recorder_of(self._engine)
        if there is None:
            return None
        there.settle()
        return there.trace.as_it_is()

    def _listen_to(self, source: Recorder | None) -> None:
        if source is self._source:
            return
        if self._source is not None:
            self._source.after_pass.remove(self._after_pass)
        if source is not None:
            source.after_pass.append(self._after_pass)
        self._source = source

    def _is_full(self, recorder: Recorder) -> bool:
        steps, seconds = recorder.trace.num_steps, self._engine._clock() - recorder.began
        return steps >= self._limits.tape_steps or seconds >= self._limits.tape_seconds


def document(trace: TraceData, show_prompts: bool) -> str:
    """A file that `Trace.load` and ui.perfetto.dev both open: a trace, and before it its events in Perfetto's form."""
    if not show_prompts:
        trace = without_texts(trace)
    both: dict[str, Any] = {"traceEvents": perfetto.trace_events(trace), "displayTimeUnit": "ms", **to_document(trace)}
    return json.dumps(both, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def without_texts(trace: TraceData) -> TraceData:
    """The same steps, slots and nodes, with other tokens. Keys are numbered, and of an error only its type is left."""
    keys: dict[str, str] = {}

    def hidden_key(key: str | None) -> str | None:
        return None if key is None else keys.setdefault(key, f"key {len(keys) + 1}")

    def hidden_request(request: TraceRequest) -> TraceRequest:
        prompt, outputs = _hidden(request.prompt), _hidden(request.outputs)
        return replace(request, prompt=prompt, outputs=outputs, extra_key=hidden_key(request.extra_key))

    def hidden_operation(what: str, *rest: Any) -> list[Any]:
        if what == "add":
            number, parent, tokens, runs, key, time = rest
            return [what, number, parent, _hidden(tokens), runs, hidden_key(key), time]
        if what == "grow":
            number, tokens, runs = rest
            return [what, number, _hidden(tokens), runs]
        return [what, *rest]

    def hidden_event(event: TraceEvent) -> TraceEvent:
        error = None if event.error is None else event.error.partition(":")[0]
        tree = [hidden_operation(*operation) for operation in event.tree]
        return replace(event, tree=tree, batch=[*map(_hidden_entry, event.batch)], error=error)

    kept = TraceData(trace.engine, texts={HIDDEN: TEXT, REJECTED: TEXT})
    kept.requests = [*map(hidden_request, trace.requests)]
    for event in trace.events:
        kept.add_event(hidden_event(event))
    return kept


def _hidden(tokens: Any) -> list[int]:
    return [HIDDEN] * len(tokens)


def _hidden_entry(entry: BatchEntry) -> BatchEntry:
    drafts = entry.drafts
    if drafts is not None:
        drafts = [HIDDEN] * entry.accepted + [REJECTED] * (len(drafts) - entry.accepted)
    return entry._replace(tokens=_hidden(entry.tokens), drafts=drafts)
