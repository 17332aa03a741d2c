"""Simulated time, and the traffic: arrivals, lengths, segments, sessions, and what was published of real traffic."""

import statistics
from random import Random

import numpy as np
import pytest

from nanoinfer.cluster.simulate.replica import Clock
from nanoinfer.cluster.simulate.sessions import VOCAB_SIZE, Segment, Session, SessionRun, Turn, chain
from nanoinfer.cluster.simulate.traces import TRACES, Trace, arrivals, make_trace

ANSWER = Segment(99, 5)


# --- time -------------------------------------------------------------------------------------------------------------


def test_calls_happen_in_order_of_time_then_of_asking() -> None:
    clock, seen = Clock(), list[tuple[str, float]]()
    clock.at(2.0, lambda: seen.append(("late", clock.now)))
    clock.at(1.0, lambda: seen.append(("first", clock.now)))
    clock.at(1.0, lambda: clock.after(0.0, lambda: seen.append(("third", clock.now))))
    clock.at(1.0, lambda: seen.append(("second", clock.now)))
    clock.run()
    assert seen == [("first", 1.0), ("second", 1.0), ("third", 1.0), ("late", 2.0)]


def test_a_run_stops_before_its_end_and_can_go_on() -> None:
    clock, seen = Clock(), list[float]()
    for at in (1.0, 2.0, 3.0):
        clock.at(at, lambda: seen.append(clock()))
    clock.run(until=2.0)
    assert seen == [1.0]
    clock.run()
    assert seen == [1.0, 2.0, 3.0]


# --- arrivals and lengths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [1.0, 0.3])
def test_arrivals_have_their_rate_and_their_bursts(shape: float) -> None:
    times = list(arrivals(Random(1), 5.0, shape, 4000.0))
    gaps = np.diff(times)
    assert len(times) / 4000 == pytest.approx(5.0, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(shape**-0.5, rel=0.05)


# --- segments and sessions --------------------------------------------------------------------------------------------


def test_segments_are_tokens_that_depend_on_the_id_alone() -> None:
    assert Segment(7, 6).tokens().tolist() == Segment(7, 6).tokens().tolist()
    assert Segment(7, 9).tokens().tolist()[:6] == Segment(7, 6).tokens().tolist()
    assert Segment(7, 60).tokens().tolist() != Segment(8, 60).tokens().tolist()
    assert set(Segment(7, 10 * VOCAB_SIZE).tokens() % 50) == set(range(50))


def test_equal_chains_are_equal_beginnings() -> None:
    a, b, c = Segment(1, 3), Segment(2, 4), Segment(3, 5)
    assert chain((a, b, c))[:2] == chain((a, b))
    assert chain((a, c))[1] != chain((b, c))[1]


def test_a_turn_waits_for_all_turns_before_it() -> None:
    turns = tuple(Turn((Segment(n, 1),), ANSWER, after=after) for n, after in enumerate([(), (0,), (0,), (1, 2)]))
    run = SessionRun(Session(0.0, turns))
    assert list(run.first()) == [0]
    assert list(run.answered(0)) == [1, 2]
    assert list(run.answered(2)) == []
    assert list(run.answered(1)) == [3]


def test_a_session_under_way_keeps_the_turns_that_are_still_to_come() -> None:
    turns = tuple(Turn((Segment(n, 1),), ANSWER, 4.0, (n - 1,) if n else ()) for n in range(4))
    left = Session(-9.0, turns).from_now()  # begun at -5, -1, 3 and 7
    assert (left.start, len(left.turns)) == (0.0, 2)
    assert [turn.think_s for turn in left.turns] == [3.0, 4.0]
    assert [turn.after for turn in left.turns] == [(), (0,)]
    assert Session(1.0, turns).from_now().turns == turns


# --- traces -----------------------------------------------------------------------------------------------------------


def figures(trace: Trace, seconds: float) -> tuple[list[int], list[int], float, int]:
    """Lengths of prompts and answers, the hit rate of one cache of unlimited size, and how many requests."""
    prompts, answers, seen, hits = list[int](), list[int](), set[int](), 0
    for session in trace.sessions(seconds, from_rest=True):
        for turn in session.turns:
            keys = chain((*turn.prompt, turn.answer))
            hits += sum(part.length for part, key in zip(turn.prompt, keys, strict=False) if key in seen)
            seen.update(keys)
            prompts.append(turn.prompt_tokens)
            answers.append(turn.answer.length)
    return prompts, answers, hits / sum(prompts), len(prompts)


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_the_same_for_the_same_seed_and_has_its_rate(name: str) -> None:
    once, again, other = (list(make_trace(name, 20.0, seed).sessions(60.0)) for seed in (1, 1, 2))
    assert once == again
    assert once != other
    requests = sum(len(session.turns) for session in make_trace(name, 20.0, 1).sessions(300.0, from_rest=True))
    assert requests == pytest.approx(6000, rel=0.15)


@pytest.mark.parametrize(
    ("name", "medians", "means"),
    [("conversation-2024", (928, 41), (1632, 106)), ("code-2024", (1930, 8), (2511, 23))],
)
def test_azures_medians_and_means_are_as_published_and_nothing_is_shared(
    name: str, medians: tuple[int, int], means: tuple[int, int]
) -> None:
    *lengths, hits, _ = figures(make_trace(f"azure-{name}", 20.0), 300.0)
    for found, median, mean, rel in zip(lengths, medians, means, (0.1, 0.15), strict=True):
        assert statistics.median(found) == pytest.approx(median, rel=rel)
        assert statistics.mean(found) == pytest.approx(mean, rel=rel)
    assert hits == 0.0


def test_traffic_that_begins_under_way_has_its_rate_at_once() -> None:
    early = [
        session.start + turn.think_s
        for session in make_trace("chat", 50.0).sessions(5.0)
        for turn in session.turns
        if not turn.after and session.start + turn.think_s < 5.0
    ]
    assert len(early) == pytest.approx(250, rel=0.25)
