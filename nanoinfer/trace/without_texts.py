"""A trace without what was written: for someone who may see what the engine does, but not what others ask it."""

from dataclasses import replace
from typing import Any

from nanoinfer.trace.data import TraceData
from nanoinfer.trace.events import BatchEntry, TraceEvent, TraceRequest

HIDDEN, REJECTED = 0, 1  # the token in place of all others, and that in place of drafts that were rejected
TEXT = "□"


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
