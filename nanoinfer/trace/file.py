"""Traces as JSON files: format "nanoinfer trace", version 2, or 3 for an engine with storeys below its pool.

    {"format": ..., "version": ..., "engine": {...}, "texts": {token id: text}, "pieces": {request: {position: text}},
     "requests": [TraceRequest, ...], "events": [TraceEvent, ...]}

Empty fields are left out. The same run gives the same file, except for the times in it.

Version 3 has what version 2 has, and `storeys` in `engine`, `fetched` in requests and events.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from nanoinfer.trace.data import TraceData
from nanoinfer.trace.events import START, TraceEvent, TraceRequest

T = TypeVar("T", bound=TraceData)
FORMAT, VERSION, WITH_STOREYS = "nanoinfer trace", 2, 3
BAD = (TypeError, LookupError, ValueError, AttributeError, RuntimeError, AssertionError)  # what a wrong entry causes


def to_document(trace: TraceData) -> dict[str, Any]:
    """The whole trace as plain dicts and lists."""
    requests: list[dict[str, Any]] = []
    before = None
    for request in trace.requests:
        fields = {name: value for name, value in asdict(request).items() if value not in ([], {}, None)}
        if before is not None and before.prompt is request.prompt:
            del fields["prompt"]  # another completion of the same request
        requests.append(fields | {"time": round(request.time, 6)})
        before = request
    return {
        "format": FORMAT,
        "version": WITH_STOREYS if trace.storeys else VERSION,
        "engine": trace.engine,
        "texts": {str(token): text for token, text in sorted(trace.texts.items())},
        "pieces": {str(index): pieces for index, pieces in trace.pieces.items()},
        "requests": requests,
        "events": [event.to_json() for event in trace.events],
    }


def save(trace: TraceData, path: str | Path) -> None:
    """Write the file, one event per line."""
    parts = []
    for name, value in to_document(trace).items():
        if isinstance(value, list):
            lines = ",\n".join(map(_dumps, value))
            parts.append(f'"{name}": [\n{lines}\n]')
        else:
            parts.append(f'"{name}": {_dumps(value)}')
    Path(path).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def load(path: str | Path, kind: type[T]) -> T:
    """Read and check a file, as a `kind` of TraceData. Every event must fit the events before it."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: this is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f'{path}: must be an object with "format": "{FORMAT}"')
    if (version := document.get("version")) not in (VERSION, WITH_STOREYS):
        raise ValueError(f"{path}: version={version!r}: must be {VERSION} or {WITH_STOREYS}")
    where = "engine, texts, pieces"
    try:
        texts = {int(token): text for token, text in document["texts"].items()}
        pieces = {int(i): {int(at): text for at, text in of.items()} for i, of in document["pieces"].items()}
        trace = kind(document["engine"], texts=texts, pieces=pieces)
        for i, fields in enumerate(document["requests"]):
            where = f"requests[{i}]"
            if "prompt" not in fields:  # another completion of the same request
                fields["prompt"] = trace.requests[-1].prompt
            request = TraceRequest(**fields)
            request.fetched = {storey: (first, end) for storey, (first, end) in request.fetched.items()}
            trace.requests.append(request)
        for i, fields in enumerate(document["events"]):
            where = f"events[{i}]"
            trace.add_event(TraceEvent.from_json(fields))
        where = "events[0]"
        if trace.events[0].mode != START:
            raise ValueError(f"mode={trace.events[0].mode}: must be {START}")
        for i, (_, state) in enumerate(trace.states()):
            where = f"events[{i}]"
            state.check_integrity()
            where = f"events[{i + 1}]"  # in case the next event does not fit
    except BAD as error:
        raise ValueError(f"{path}: {where}: {type(error).__name__}: {error}") from error
    return trace


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
