"""What a trace says and draws: a sentence for everything that happened, whose counts add up, spans, and timelines."""

import re

import pytest

from nanoinfer import viz
from nanoinfer.viz.trace import Trace
from nanoinfer.viz.trace.phases import spans
from tests.helpers.pictures import assert_readable, named, texts
from tests.tools.trace.conftest import fetched_from


def test_everything_that_happens_has_a_sentence(busy: Trace, drafted: Trace) -> None:
    lines = busy.describe().splitlines()
    for event in busy.events:
        if event.is_step:
            line = lines[event.step]
            assert line.count("is retracted") == len(event.retracted)
            assert line.count("admitted again") <= len(event.admitted)
            assert all(f"ends ({ended.reason})" in line for ended in event.ended)
            assert event.error is None or event.error in line
    assert all(words in busy.describe() for words in ("is paused", "is resumed", "evicts", "for later", "(2) arrives"))
    (step,) = [event.step for event in drafted.events if event.drafted]
    assert "3 drafts at 8-10 in slots 10-13, accepts 2 of them and samples 3 tokens: “def”" in drafted.describe(step)


def test_counts_in_the_sentences_add_up(busy: Trace) -> None:
    """Slots that are freed, evicted or given: what a sentence says of each event is what the pool's own count says."""

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


@pytest.mark.parametrize("files", [False, True])
def test_a_fetch_is_said_and_what_enters_the_tree_is_only_what_was_computed(files: bool) -> None:
    trace, _, output = fetched_from(files)
    (sentence,) = [line for line in trace.describe().splitlines() if "fetches" in line]
    where = "files" if files else "host memory"
    assert f"request 4 fetches K/V of {output.cached_tokens} tokens from {where}" in sentence
    assert sentence.endswith("9 tokens enter the tree.")


# --- spans and timelines ---------------------------------------------------------------------------------------------


def test_every_step_of_a_request_lies_in_exactly_one_span(busy: Trace, drafted: Trace) -> None:
    found, marks = spans(busy)
    assert sorted(mark.request for mark in marks) == list(range(len(busy.requests)))
    for index in range(len(busy.requests)):
        steps = [step for span in found if span.request == index for step in range(span.first, span.last + 1)]
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        computed = sum(span.tokens for span in found if span.request == index and span.phase in ("extend", "decode"))
        assert computed == sum(
            entry.end - entry.start for event in busy.events for entry in event.batch if entry.request == index
        )
    verify = [span for span in spans(drafted)[0] if span.phase == "verify"]
    counts = [(span.request, span.tokens, span.sampled, span.drafted, span.accepted) for span in verify]
    assert counts == [(0, 4, 3, 3, 2), (1, 1, 1, 0, 0)]


def test_a_timeline_draws_a_lane_a_request_and_each_span(busy: Trace) -> None:
    picture = viz.timeline(busy)
    assert len(named(picture, "pass ")) == len(busy)
    for phase in ("waiting", "extend", "decode", "idle", "retracted", "paused"):
        wanted = [s for s in spans(busy)[0] if s.phase == phase and s.last >= s.first]
        assert len(named(picture, f"{phase} ")) == len(wanted)
    assert [request.name for request in busy.requests] == [t for t in texts(picture) if t.startswith("request")]
    assert_readable(picture)


def test_the_pools_occupancy_is_drawn_over_the_same_steps(busy: Trace) -> None:
    picture = viz.timeline(busy, occupancy=True)
    (pool,) = named(picture, "pool")
    for event, state in busy.states():
        bars = [
            p
            for kind in ("tree", "requests' own")
            for p in named(picture, kind)
            if p.get_gid().endswith(f" {event.step}")
        ]
        if event.is_step and bars:
            used = sum(bar.get_height() for bar in bars) / pool.get_height()
            assert used == pytest.approx((state.size - state.free) / state.size)
    assert_readable(picture)
