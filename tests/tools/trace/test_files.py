"""Traces as files: JSON comes back as it was, one that is wrong is refused; and Chrome's trace events."""

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.viz.trace import Trace, record
from nanoinfer.viz.trace.perfetto import trace_events
from tests.helpers.engines import make_engine, serve
from tests.tools.trace.conftest import fetched_from

EXAMPLE = Path(__file__).parents[3] / "data" / "trace"


def saved(trace: Trace, path: Path) -> dict[str, Any]:
    trace.save(path)
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("which", ["busy", "drafted", "host", "files"])
def test_a_saved_trace_comes_back(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    trace = fetched_from(which == "files")[0] if which in ("host", "files") else request.getfixturevalue(which)
    trace.save(tmp_path / "a.json")
    loaded = Trace.load(tmp_path / "a.json")
    assert loaded.events == [type(event).from_json(json.loads(json.dumps(event.to_json()))) for event in trace.events]
    assert [each.prompt for each in loaded.requests] == [each.prompt for each in trace.requests]
    assert (loaded.texts, loaded.engine, loaded.describe()) == (trace.texts, trace.engine, trace.describe())
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()


def test_the_same_run_gives_the_same_file_but_for_times(tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        engine = make_engine(slots=40, schedule_conservativeness=0.1)
        with record(engine) as trace:
            serve(engine, "ABC", "ABD", "XYZW", max_new_tokens=9)
        document = saved(trace, tmp_path / "a.json")
        for entry in (*document["requests"], *document["events"]):
            del entry["time"]
            entry.pop("seconds", None)
        texts.append(json.dumps(document))
    assert texts[0] == texts[1]


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        *way, last = path.split(".")
        target: Any = document
        for name in way:
            target = target[int(name)] if isinstance(target, list) else target[name]
        target[int(last) if isinstance(target, list) else last] = value

    return apply


@pytest.mark.parametrize(
    "spoil",
    [
        change("format", "profile"),
        change("version", 4),
        change("requests.0.colour", "red"),
        change("events.0.mode", "BETWEEN"),
        change("events.2.batch", [[0, 1]]),
        change("events.2.tree.0.2", 99),
        change("events.2.free", 3),
    ],
)
def test_a_file_that_is_wrong_is_refused(spoil: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    engine = make_engine()
    with record(engine) as trace:
        serve(engine, "ABCDE", max_new_tokens=2)
    path = tmp_path / "trace.json"
    document = saved(trace, path)
    spoil(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"trace\.json"):
        Trace.load(path)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b"{}"])
def test_a_file_that_is_no_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.json"):
        Trace.load(tmp_path / "x.json")


def test_the_committed_example_is_a_trace_in_which_everything_happens() -> None:
    trace = Trace.load(EXAMPLE / "example.json")
    happened = {operation[0] for event in trace.events for operation in event.tree}
    happened |= {name for event in trace.events for name in ("retracted", "admitted") if getattr(event, name)}
    happened |= {ended.reason for event in trace.events for ended in event.ended}
    assert {"add", "split", "remove", "retracted", "abort"} <= happened
    page = trace.player("Six requests, one radix cache").html()
    assert page == (EXAMPLE / "example.html").read_text(encoding="utf-8")


# --- Perfetto --------------------------------------------------------------------------------------------------------


def test_chrome_trace_events_have_their_tracks_and_slices_do_not_overlap(busy: Trace, tmp_path: Path) -> None:
    busy.to_perfetto(tmp_path / "p.json")
    events = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(named.values()) == sorted(["steps", *(request.name for request in busy.requests)])
    tracks = defaultdict(list)
    for event in events:
        assert event["ph"] in "MXiC"
        if event["ph"] in "Xi":
            assert (event["pid"], event["tid"]) in named
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
        if event["ph"] == "C":
            assert list(event["args"]) == [event["name"]]
    for slices in tracks.values():
        slices.sort(key=lambda event: event["ts"])
        for event, following in pairwise(slices):
            assert event["ts"] + event["dur"] <= following["ts"] + 1e-6
    assert [(event["name"], event["args"]["tokens"]) for event in tracks[1, 1]] == [
        (event.mode, sum(entry.end - entry.start for entry in event.batch)) for event in busy.events if event.is_step
    ]


def test_the_export_has_drafts_and_fetches(drafted: Trace) -> None:
    entries = trace_events(drafted)
    (step,) = [entry for entry in entries if entry["name"] == "VERIFY"]
    assert {name: step["args"][name] for name in ("tokens", "drafted", "accepted")} == {
        "tokens": 5,
        "drafted": 3,
        "accepted": 2,
    }
    slices = [entry["args"] for entry in entries if entry["name"] == "verify"]
    assert [(args["sampled"], args["drafted"], args["accepted"]) for args in slices] == [(3, 3, 2), (1, 0, 0)]
    trace, _, output = fetched_from(files=True)
    (mark,) = [entry for entry in trace_events(trace) if entry["name"] == "fetch"]
    assert mark["args"]["disk"] == output.cached_tokens_by_tier["disk"] == 32
