"""What a trace says and writes: sentences, JSON that comes back, Chrome's trace events, timelines."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgba

from nanoinfer import SamplingParams, viz
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.trace import Trace, record
from nanoinfer.trace.final import final_state
from nanoinfer.trace.phases import spans
from nanoinfer.viz.palette import ROLES
from tests.helpers.engines import LetterTokenizer, greedy, make_engine, model_of, serve


@pytest.fixture(scope="module")
def busy() -> Trace:
    """Chunks, a split, evictions, a retraction, an abort, a failing step, two completions, a namespace; slow steps."""
    clock = map(float, range(10_000)).__next__
    engine = make_engine(rows=3, slots=32, chunked_prefill_size=6, schedule_conservativeness=0.1, clock=clock)
    with record(engine) as trace:
        ids = [engine.add_request([65, 66, 67, 68, 97 + i], greedy(12)) for i in range(3)]
        engine.add_request("ABCDEF" * 2, greedy(6), extra_key="lora")
        for _ in range(12):
            engine.step()
        engine.abort(ids[0])
        engine.pause(ids[1])
        for _ in range(2):
            engine.step()
        engine.resume(ids[1])
        engine.add_request("XY", SamplingParams(max_new_tokens=3, n=2))
        model_of(engine).fail_at = model_of(engine).passes + 4
        while engine.has_unfinished():
            try:
                engine.step()
            except RuntimeError:
                engine.add_request("ABCD", greedy(2))
        engine.flush_cache()
    return trace


# --- in words ---------------------------------------------------------------------------------------------------------


def test_the_sentences_of_a_hit_and_a_split() -> None:
    engine = make_engine()
    with record(engine) as trace:
        serve(engine, "ABCDE", max_new_tokens=2)
        serve(engine, "ABCXYZ", max_new_tokens=1)
    assert trace.describe().splitlines() == [
        "Start: 0 requests running, 0 waiting, 0 tokens in the tree, 256 free slots.",
        "Before this step, request 0 arrives with 5 prompt tokens. Step 1 EXTEND: request 0 is admitted with none of "
        "5 prompt tokens cached; request 0 extends 5 tokens and samples “F”; 5 tokens enter the tree.",
        "Step 2 DECODE: request 0 computes position 5 in slot 5 and samples “G”; request 0 ends (length); 1 token enters "
        "the tree.",
        "Before this step, request 1 arrives with 6 prompt tokens. Step 3 EXTEND: request 1 is admitted with 3 of 6 "
        "prompt tokens cached; a node splits after token 3; request 1 extends 3 tokens and samples “[”; request 1 ends "
        "(length); 3 tokens enter the tree.",
    ]
    assert trace.describe(2) == trace.describe().splitlines()[2]


def test_the_sentences_tell_of_everything_that_goes_wrong(busy: Trace) -> None:
    sentences = busy.describe()
    for words in (
        "for later",
        "is retracted for lack of slots",
        "request 1 is paused and gives back its row and slots",
        "request 1 is resumed",
        "admitted again",
        "the tree evicts",
        "request 0 ends (abort)",
        "ends (error)",
        "The step raised RuntimeError: the model broke.",
        "request 4 (2) arrives",
    ):
        assert words in sentences
    assert sentences.splitlines()[-1].startswith(f"After step {len(busy)}: ")
    assert "evicts" in sentences.splitlines()[-1]


def test_counts_in_the_sentences_add_up(busy: Trace) -> None:
    """Slots that are freed, evicted or given: what a sentence says of each event is what the pool's own count says."""
    import re

    def number(pattern: str, text: str) -> int:
        return sum(int(found) for found in re.findall(pattern, text))

    free, tree = busy.engine["max_total_tokens"], 0
    states = {event.step: (state.free, len(state.tree_slots())) for event, state in busy.states() if event.is_step}
    given = {event.step: sum(e.end - e.start for e in event.batch) for event in busy.events if event.is_step}
    for step in range(1, len(busy) + 1):
        text = busy.describe(step)
        entering = number(r"(\d+) tokens? enters? the tree", text)
        evicted = number(r"evicts (\d+) tokens?", text)
        freed = number(r"(\d+) (?:duplicate )?slots? (?:is|are) freed", text)
        tree += entering - evicted
        free += evicted + freed - given[step]
        assert (free, tree) == states[step], text


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_a_saved_trace_comes_back(busy: Trace, tmp_path: Path) -> None:
    busy.save(tmp_path / "a.json")
    loaded = Trace.load(tmp_path / "a.json")
    assert loaded.events == [type(event).from_json(event.to_json()) for event in busy.events]
    assert [request.prompt for request in loaded.requests] == [request.prompt for request in busy.requests]
    assert (loaded.texts, loaded.engine, len(loaded)) == (busy.texts, busy.engine, len(busy))
    assert loaded.describe() == busy.describe()
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    document = json.loads((tmp_path / "a.json").read_text())
    assert (document["format"], document["version"]) == ("nanoinfer trace", 2)


def test_the_same_run_gives_the_same_file_but_for_times(tmp_path: Path) -> None:
    texts = []
    for i in range(2):
        engine = make_engine(slots=40, schedule_conservativeness=0.1)
        with record(engine) as trace:
            serve(engine, "ABC", "ABD", "XYZW", max_new_tokens=9)
        trace.save(tmp_path / f"{i}.json")
        document = json.loads((tmp_path / f"{i}.json").read_text())
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
        if isinstance(target, list):
            target[int(last)] = value
        elif value is None:
            del target[last]
        else:
            target[last] = value

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change("format", "profile"), '"format": "nanoinfer trace"'),
        (change("version", 3), r"version=3: must be 1 or 2"),
        (change("version", 1), r"events\[2\]: TypeError: \[70\]: must be int"),
        (change("engine.drafter", None), "engine: drafter missing"),
        (change("events", None), "events: must be present and be a JSON array"),
        (change("requests", {}), "requests: must be present and be a JSON array"),
        (change("engine.page_size", None), "engine: page_size missing"),
        (change("texts.65", 3), "texts: TypeError: 3: must be str"),
        (change("requests.0.prompt", ["A"]), r"requests\[0\]: TypeError: 'A': must be int"),
        (change("requests.0.colour", "red"), r"requests\[0\]: TypeError.*colour"),
        (change("events.2.mode", "GUESS"), r"events\[2\]: ValueError: mode='GUESS': must be one of START, EXTEND"),
        (change("events.2.time", "noon"), r"events\[2\]: ValueError.*noon"),
        (change("events.2.batch", [[0, 1]]), r"events\[2\]: TypeError"),
        (change("events.1.arrived", [7]), r"events\[1\]: IndexError"),
        (change("events.2.tree.0.2", 99), r"events\[2\]: KeyError: 99"),
        (change("events.2.free", 3), r"events\[2\]: RuntimeError: after step 1: 3 free \+ 5 owned, must be 256"),
    ],
)
def test_a_file_that_is_wrong_says_where(spoil: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    engine = make_engine()
    with record(engine) as trace:
        serve(engine, "ABCDE", max_new_tokens=2)
    path = tmp_path / "trace.json"
    trace.save(path)
    document = json.loads(path.read_text())
    spoil(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message) as caught:
        Trace.load(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b"{}"])
def test_a_file_that_is_no_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.json: (this is not JSON|must be an object)"):
        Trace.load(tmp_path / "x.json")


class ByteTokenizer(LetterTokenizer):
    """A token is a byte: characters beyond ASCII take several."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode("utf-8", errors="replace")


def test_characters_of_several_tokens_are_whole_in_texts() -> None:
    from nanoinfer.requests.token_text import whole_characters

    text = "aé€😀b"
    tokens = list(text.encode())
    decode: Tokenizer = ByteTokenizer()
    texts = {token: decode.decode([token]) for token in tokens}
    pieces = whole_characters(tokens, texts, decode.decode)
    assert "".join(pieces.get(i, texts[token]) for i, token in enumerate(tokens)) == text
    assert pieces == {1: "", 2: "é", 3: "", 4: "", 5: "€", 6: "", 7: "", 8: "", 9: "😀"}


def test_the_committed_example_is_a_trace_in_which_everything_happens() -> None:
    example = Path(__file__).parents[3] / "data" / "trace"
    trace = Trace.load(example / "example.json")
    sentences = trace.describe()
    for words in ("prompt tokens cached", "splits", "for later", "evicts", "retracted", "admitted again", "(abort)"):
        assert words in sentences
    assert trace.player("Six requests, one radix cache").html() == (example / "example.html").read_text(
        encoding="utf-8"
    )
    assert sum(path.stat().st_size for path in example.iterdir()) < 500_000


# --- Perfetto ---------------------------------------------------------------------------------------------------------


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


# --- phases and timelines ---------------------------------------------------------------------------------------------


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
