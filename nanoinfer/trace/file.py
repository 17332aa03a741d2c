"""Traces as JSON files: format "nanoinfer trace", version 3.

    {"format": ..., "version": ..., "engine": {...}, "texts": {token id: text}, "pieces": {request: {position: text}},
     "requests": [TraceRequest, ...], "events": [TraceEvent, ...]}

Empty fields are left out. The same run gives the same file, except for the times in it.
"""

import json
from pathlib import Path
from typing import Any, TypeVar

from nanoinfer.trace.data import TraceData
from nanoinfer.trace.events import START, TraceEvent, TraceRequest

T = TypeVar("T", bound=TraceData)
HEAD = {"format": "nanoinfer trace", "version": 3}
BAD = (TypeError, LookupError, ValueError, AttributeError, RuntimeError, AssertionError)  # what a wrong entry causes


def to_document(trace: TraceData) -> dict[str, Any]:
    """The whole trace as plain dicts and lists."""
    return {
        **HEAD,
        "engine": trace.engine,
        "texts": {str(token): text for token, text in sorted(trace.texts.items())},
        "pieces": {str(index): pieces for index, pieces in trace.pieces.items()},
        "requests": [request.to_json() for request in trace.requests],
        "events": [event.to_json() for event in trace.events],
    }


def save(trace: TraceData, path: str | Path) -> None:
    """Write the file, one event per line."""
    parts = []
    for name, value in to_document(trace).items():
        if isinstance(value, list):
            lines = ",\n".join(map(dumps, value))
            parts.append(f'"{name}": [\n{lines}\n]')
        else:
            parts.append(f'"{name}": {dumps(value)}')
    Path(path).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def load(path: str | Path, kind: type[T]) -> T:
    """Read a file, and check that every event fits the events before it."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if {name: document.get(name) for name in HEAD} != HEAD:
            raise ValueError(f"must be an object with {HEAD}")
        texts = {int(token): text for token, text in document["texts"].items()}
        pieces = {int(i): {int(at): text for at, text in of.items()} for i, of in document["pieces"].items()}
        trace = kind(document["engine"], texts=texts, pieces=pieces)
        trace.requests += [TraceRequest(**fields) for fields in document["requests"]]
        for fields in document["events"]:
            trace.add_event(TraceEvent.from_json(fields))
        if trace.events[0].mode != START:
            raise ValueError(f"the first event is {trace.events[0].mode}, must be {START}")
        for _, state in trace.states():
            state.check_integrity()
    except BAD as error:
        raise ValueError(f"{path}: is no trace that can be read: {type(error).__name__}: {error}") from error
    return trace


def dumps(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
