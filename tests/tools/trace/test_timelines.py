"""Chrome's trace events, phases and timelines of a trace."""

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgba

from nanoinfer import viz
from nanoinfer.trace import Trace, record
from nanoinfer.trace.final import final_state
from nanoinfer.trace.phases import spans
from nanoinfer.viz.palette import ROLES
from tests.helpers.engines import greedy, make_engine

# --- Perfetto --------------------------------------------------------------------------------------------------------


def test_chrome_trace_events_are_well_formed(busy: Trace, tmp_path: Path) -> None:
    busy.to_perfetto(tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["displayTimeUnit"] == "ms"
    events = document["traceEvents"]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for event in events:
        assert event["ph"] in "MXiC"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["args"]
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] in "Xi":
            assert (event["pid"], event["tid"]) in named
        if event["ph"] == "i":
            assert event["s"] == "t"
        if event["ph"] == "C":
            assert list(event["args"]) == [event["name"]]
            assert isinstance(event["args"][event["name"]], int)
    assert sorted(named.values()) == sorted(["steps", *(request.name for request in busy.requests)])
    assert {e["name"] for e in events if e["ph"] == "C"} == {
        "free slots",
        "tree slots",
        "request slots",
        "running",
        "waiting",
    }


def test_slices_of_a_track_do_not_overlap_and_tell_the_steps(busy: Trace, tmp_path: Path) -> None:
    busy.to_perfetto(tmp_path / "p.json")
    tracks = defaultdict(list)
    for event in json.loads((tmp_path / "p.json").read_text())["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for events in tracks.values():
        events.sort(key=lambda event: event["ts"])
        for event, following in pairwise(events):
            assert event["ts"] + event["dur"] <= following["ts"] + 1e-6
    steps = tracks[1, 1]
    assert [event["name"] for event in steps] == [event.mode for event in busy.events if event.is_step]
    assert [event["args"]["tokens"] for event in steps] == [
        sum(entry.end - entry.start for entry in event.batch) for event in busy.events if event.is_step
    ]
    assert {e["name"] for track in tracks.values() for e in track} >= {
        "waiting",
        "extend",
        "decode",
        "idle",
        "paused",
        "retracted",
    }


# --- phases and timelines --------------------------------------------------------------------------------------------


def test_every_step_of_a_request_lies_in_exactly_one_span(busy: Trace) -> None:
    found, marks = spans(busy)
    assert sorted(mark.request for mark in marks) == list(range(len(busy.requests)))
    for index in range(len(busy.requests)):
        steps = [step for span in found if span.request == index for step in range(span.first, span.last + 1)]
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        computed = sum(span.tokens for span in found if span.request == index and span.phase in ("extend", "decode"))
        assert computed == sum(
            entry.end - entry.start for event in busy.events for entry in event.batch if entry.request == index
        )


@pytest.mark.parametrize("by", ["step", "time"])
def test_a_timeline_draws_a_lane_a_request(busy: Trace, by: str) -> None:
    picture = viz.timeline(busy, by=by)
    names = [patch.get_gid() or "" for patch in picture.axes[0].patches]
    assert sum(name.startswith("pass ") for name in names) == len(busy)
    for phase in ("waiting", "extend", "decode", "idle", "retracted", "paused"):
        drawn = sum(name.startswith(phase) for name in names)
        assert drawn == sum(
            span.phase == phase and (by == "time" or span.last >= span.first) for span in spans(busy)[0]
        )
    texts = [text.get_text() for text in picture.axes[0].texts]
    assert [request.name for request in busy.requests] == [text for text in texts if text.startswith("request")]
    assert "✕ abort" in texts
    assert picture.alt.startswith(f"{len(busy)} steps, ")
    assert "retracted" in picture.alt


def test_a_timeline_of_the_last_steps_starts_there(busy: Trace) -> None:
    picture = viz.timeline(busy, last=5)
    names = [patch.get_gid() or "" for patch in picture.axes[0].patches]
    assert [name for name in names if name.startswith("pass")] == [f"pass {len(busy) - i}" for i in reversed(range(5))]
    assert picture.alt.startswith(f"5 steps (from step {len(busy) - 4} on), ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"last": 0}, "last=0"),
        ({"last": True}, "last=True"),
        ({"by": "day"}, "by='day'"),
        ({"last": "all"}, "last='all'"),
        ({"steps": 3}, "steps=3: must be at least the"),
        ({"steps": True}, "steps=True"),
        ({"steps": 500, "by": "time"}, "by='step'"),
        ({"highlight": 99}, "request 99"),
        ({"labels": {-1: "none"}}, "request -1"),
    ],
)
def test_a_timeline_refuses_what_it_cannot_draw(busy: Trace, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.timeline(busy, **fields)


def test_timelines_with_an_axis_of_as_many_steps_have_steps_of_one_width(busy: Trace) -> None:
    def widths(picture: viz.Picture) -> set[float]:
        passes = [patch for patch in picture.axes[0].patches if (patch.get_gid() or "").startswith("pass")]
        return {round(patch.get_width(), 6) for patch in passes}

    (wide,) = widths(viz.timeline(busy))
    (narrow,) = widths(viz.timeline(busy, steps=2 * len(busy)))
    assert narrow == pytest.approx(wide / 2)
    assert widths(viz.timeline(busy, last=5, steps=2 * len(busy))) == {narrow}
    texts = {text.get_text() for text in viz.timeline(busy, steps=2 * len(busy)).axes[0].texts}
    assert str(2 * len(busy) // 10 * 10) in texts


def test_a_timeline_names_and_marks_lanes(busy: Trace) -> None:
    picture = viz.timeline(busy, labels={1: "the second"}, highlight=1)
    texts = [text.get_text() for text in picture.axes[0].texts]
    assert "the second" in texts
    assert {"request 0", "request 1"} & {*texts} == {"request 0"}
    assert "the second " in picture.alt
    frames = [patch for patch in picture.axes[0].patches if patch.get_edgecolor() == to_rgba(ROLES["highlight"].face)]
    (lane,) = (text for text in picture.axes[0].texts if text.get_text() == "the second")
    assert [frame.get_y() < lane.get_position()[1] < frame.get_y() + frame.get_height() for frame in frames] == [True]


def test_a_timeline_says_what_a_pass_is_that_was_never_made() -> None:
    engine = make_engine()
    with record(engine) as trace:
        engine.add_request("ABC", greedy(2))
        engine.scheduler._admit = Failing()  # type: ignore[method-assign, assignment]
        with pytest.raises(RuntimeError, match="no plan"):
            engine.step()
    assert "failed pass" in [text.get_text() for text in viz.timeline(trace).axes[0].texts]


class Failing:
    def __call__(self) -> None:
        raise RuntimeError("no plan")


def test_numbers_of_a_timeline_stay_in_their_tiles(busy: Trace) -> None:
    for width in (len(busy), 60, 400):
        picture = viz.timeline(busy, steps=max(width, len(busy)))
        picture.canvas.draw()
        drawn = [p.get_window_extent() for p in picture.axes[0].patches if (p.get_gid() or "").startswith("extend")]
        numbers = [t for t in picture.axes[0].texts if t.get_text().isdigit() and t.get_color() == "#1a1a1a"]
        for number in numbers:
            box = number.get_window_extent()
            assert any(t.x0 - 1 <= box.x0 and box.x1 <= t.x1 + 1 and t.y0 <= box.y0 and box.y1 <= t.y1 for t in drawn)
        assert bool(numbers) == (width < 400)


def test_a_trace_without_steps_has_no_timeline() -> None:
    with record(make_engine()) as trace:
        pass
    with pytest.raises(ValueError, match="no steps"):
        viz.timeline(trace)
    with pytest.raises(ValueError, match="trace: must be Trace"):
        viz.timeline(None)  # type: ignore[arg-type]


def test_the_picture_of_the_end_counts_slots(busy: Trace) -> None:
    picture = final_state(busy)
    assert picture.alt.endswith("In the end: 32 free.")
    assert picture.alt.startswith(viz.timeline(busy).alt)


@pytest.mark.parametrize(
    ("change_text", "message"),
    [
        (lambda text: text.replace('"time":', '"time":NaN,"seconds":', 1), "NaN is not a number in JSON"),
        (lambda text: text.replace('"mode":"START"', '"mode":"BETWEEN"', 1), "must begin with one whose mode is START"),
    ],
)
def test_numbers_that_are_none_and_a_missing_start_are_refused(
    busy: Trace, change_text: Callable[[str], str], message: str, tmp_path: Path
) -> None:
    busy.save(tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    (tmp_path / "a.json").write_text(change_text(text), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Trace.load(tmp_path / "a.json")


@pytest.mark.parametrize("runs", [[0, 10**12], [-1, 1], [3, 0]])
def test_slots_outside_the_pool_are_refused_before_they_are_counted_out(
    busy: Trace, runs: list[int], tmp_path: Path
) -> None:
    busy.save(tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    i, event = next((i, event) for i, event in enumerate(document["events"]) if event.get("batch"))
    event["batch"][0][3] = runs
    (tmp_path / "a.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"events\[{i}\]: ValueError: slots .* must be in 0\.\."):
        Trace.load(tmp_path / "a.json")


def test_the_player_of_a_trace_without_steps_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display")
    shown: list[object] = []
    monkeypatch.setattr(display, "display", lambda *args, **kwargs: shown.append(args))
    with record(make_engine()) as trace:
        pass
    trace.player()._ipython_display_()
    assert len(shown) == 1
