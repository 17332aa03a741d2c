"""Traces as JSON files: format "nanoinfer trace", version 2, or 3 for an engine with storeys below its pool.

    {"format": ..., "version": ..., "engine": {...}, "texts": {token id: text}, "pieces": {request: {position: text}},
     "requests": [TraceRequest, ...], "events": [TraceEvent, ...]}

Empty fields are left out. The same run gives the same file, except for the times in it.

Version 3 has what version 2 has, and `storeys` in `engine`, `fetched` in requests and events. Version 1, which is still
read, knows no drafts: a request has one sampled token per pass, or null.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from nanoinfer.trace.data import ENGINE_FIELDS, TraceData
from nanoinfer.trace.events import START, TraceEvent, TraceRequest

T = TypeVar("T", bound=TraceData)
FORMAT, VERSION, WITH_STOREYS = "nanoinfer trace", 2, 3
BAD = (
    TypeError,
    KeyError,
    IndexError,
    ValueError,
    AttributeError,
    RuntimeError,
    OverflowError,
    AssertionError,
)  # what a wrong entry can cause


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
        document = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: this is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f'{path}: must be an object with "format": "{FORMAT}"')
    if isinstance(document.get("version"), bool) or document.get("version") not in (1, VERSION, WITH_STOREYS):
        raise ValueError(f"{path}: version={document.get('version')!r}: must be one of 1, {VERSION} and {WITH_STOREYS}")
    for name, container in {"engine": dict, "texts": dict, "pieces": dict, "requests": list, "events": list}.items():
        if not isinstance(document.get(name), container):
            raise ValueError(
                f"{path}: {name}: must be present and be a JSON {'object' if container is dict else 'array'}"
            )
    return _from_document(document, str(path), kind)


def _from_document(document: dict[str, Any], path: str, kind: type[T]) -> T:
    first_version = document["version"] == 1
    if first_version:
        document["engine"] |= {"drafter": [], "num_draft_tokens": 0}
    wanted = (*ENGINE_FIELDS, "storeys") if document["version"] == WITH_STOREYS else ENGINE_FIELDS
    missing = [name for name in wanted if name not in document["engine"]]
    if missing:
        raise ValueError(f"{path}: engine: {', '.join(missing)} missing")
    where = "texts"
    try:
        texts = {int(token): _expected(text, str) for token, text in document["texts"].items()}
        where = "pieces"
        pieces = {
            int(index): {int(at): _expected(text, str) for at, text in by_position.items()}
            for index, by_position in document["pieces"].items()
        }
        trace = kind(document["engine"], texts=texts, pieces=pieces)
        for i, fields in enumerate(document["requests"]):
            where = f"requests[{i}]"
            if "prompt" not in fields:  # another completion of the same request
                fields["prompt"] = trace.requests[-1].prompt
            request = TraceRequest(**fields)
            _expected(request.name, str)
            request.fetched = {storey: (first, end) for storey, (first, end) in request.fetched.items()}
            for token in (*request.prompt, *request.outputs):
                _expected(token, int)
            trace.requests.append(request)
        for i, fields in enumerate(document["events"]):
            where = f"events[{i}]"
            if first_version:
                _tokens_as_lists(fields)
            event = TraceEvent.from_json(fields)
            for entry in event.batch:
                for token in (*entry.tokens, *(entry.drafts or ())):
                    _expected(token, int)
                entry.check()
            for fetch in event.fetched:
                fetch.check(trace.storeys)
            _check_slots(event, trace.engine["max_total_tokens"])
            trace.add_event(event)
        where = "events"
        if not trace.events or trace.events[0].mode != START:
            raise ValueError(f"must begin with one whose mode is {START}")
        where = "events[0]"
        for i, (_, state) in enumerate(trace.states()):
            where = f"events[{i}]"
            state.check_integrity()
            where = f"events[{i + 1}]"  # in case the next event does not fit
    except BAD as error:
        raise ValueError(f"{path}: {where}: {type(error).__name__}: {error}") from error
    return trace


def _tokens_as_lists(fields: dict[str, Any]) -> None:
    """Change the entries of an event's batch from version 1, which has one token or null."""
    for entry in fields.get("batch", ()):
        entry[4:5] = [[] if token is None else [token] for token in entry[4:5]]


def _check_slots(event: TraceEvent, size: int) -> None:
    """ValueError if an event allocates slots that the pool does not have. Checked before the runs are expanded."""
    given = [runs for entry in event.batch for runs in (entry.slots, entry.allocated or ())]
    given += [entry.slots for entry in event.held]
    given += [
        operation[-3 if operation[0] == "add" else -1] for operation in event.tree if operation[0] in ("add", "grow")
    ]
    for runs in given:
        for start, length in zip(runs[::2], runs[1::2], strict=True):
            if start < 0 or length < 1 or start + length > size:
                raise ValueError(f"slots {start}..{start + length - 1}: must be in 0..{size - 1}")


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not a number in JSON")


def _expected(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r}: must be {kind.__name__}")
    return value


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
