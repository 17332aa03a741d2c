"""Drafts in the books: how many there were, and what passes and drafters took by a clock."""

from typing import Any

import pytest

from nanoinfer import SamplingParams
from tests.helpers.engines import Clock, finish, greedy, make_engine, serve, step
from tests.helpers.foreseeing import Foreseeing, engine_of


def test_drafts_are_counted_per_completion_per_request_and_in_all(drafter: Foreseeing) -> None:
    drafter.right = 2
    engine = engine_of(num_draft_tokens=3, random_seed=0)
    engine.add_request([1], SamplingParams(max_new_tokens=10, n=2, temperature=0.01, seed=1))
    engine.add_request([40], greedy(3))
    last = finish(engine)
    # 1 token, then passes of 3 drafts, 2 of which are right: 3 tokens each, three times
    assert [(each.drafted_tokens, each.accepted_tokens) for each in last[0].outputs] == [(8, 6), (8, 6)]
    assert (last[0].drafted_tokens, last[0].accepted_tokens) == (16, 12)
    assert (last[1].drafted_tokens, last[1].accepted_tokens) == (1, 1)
    stats = engine.stats()
    assert (stats.drafted_tokens, stats.accepted_tokens) == (17, 13)
    assert stats.output_tokens == 23


def test_without_a_drafter_nothing_is_counted() -> None:
    engine = make_engine()
    (output,) = serve(engine, [1], max_new_tokens=4)
    assert (output.drafted_tokens, output.accepted_tokens, engine.stats().drafted_tokens) == (0, 0, 0)


def test_adaptive_drafting_stops_where_drafts_are_always_wrong(drafter: Foreseeing) -> None:
    drafter.right, clock = 0, Clock()
    engine = engine_of(adaptive_drafts=True, slots=4096, clock=clock)
    run = engine.model_runner.run

    def slow_run(*args: Any) -> Any:
        clock.now += 1.0 + 0.05 * len(args[0])  # by the number of rows
        return run(*args)

    engine.model_runner.run = slow_run  # type: ignore[method-assign]
    outputs = [serve(engine, [1], max_new_tokens=60)[0] for _ in range(2)]
    assert all(0 < output.drafted_tokens < 60 for output in outputs)
    asked = len(drafter.asked)
    assert asked < 60, "the drafter is not even asked"


def test_passes_and_drafters_are_timed_apart(drafter: Foreseeing) -> None:
    clock = Clock()
    engine = engine_of(clock=clock, num_draft_tokens=8, slots=512)
    run, propose = engine.model_runner.run, drafter.propose

    def slow_run(*args: Any) -> Any:
        clock.now += 1.0
        return run(*args)

    def slow_propose(*args: Any) -> Any:
        clock.now += 8.0
        return propose(*args)

    engine.model_runner.run = slow_run  # type: ignore[method-assign]
    drafter.propose = slow_propose  # type: ignore[method-assign]
    serve(engine, [1], [40], max_new_tokens=55)  # six passes of 2 * 9 rows
    lengths = engine.scheduler.lengths  # type: ignore[attr-defined]
    assert lengths._costs[True].has(20), "18 rows are padded to 20"
    assert lengths._costs[True].seconds(20) == 1.0
    assert lengths._costs[False].largest == 0
    assert lengths._proposal_seconds(0, 2, 8) == pytest.approx(8.0, rel=0.01)


@pytest.mark.parametrize("pause", [0.0, 0.04, 5.0])
def test_what_a_caller_does_between_two_steps_costs_what_little_it_takes_but_a_pause_is_not_counted(
    drafter: Foreseeing, pause: float
) -> None:
    clock = Clock()
    engine = engine_of(adaptive_drafts=True, clock=clock, slots=512)
    run = engine.model_runner.run

    def slow_run(*args: Any) -> Any:
        clock.now += 1.0
        return run(*args)

    engine.model_runner.run = slow_run  # type: ignore[method-assign]
    lengths, number = engine.scheduler.lengths, 0  # type: ignore[attr-defined]
    for _ in range(4):
        engine.add_request([1], greedy(60))
        while engine.has_unfinished():
            step(engine)
            clock.now, number = clock.now + (pause if pause < 1 or number % 6 == 5 else 0.0), number + 1
    costs = lengths._costs[True]
    measured = {rows: costs.seconds(rows) for rows in costs._sizes}
    assert measured == pytest.approx(dict.fromkeys(measured, 1.0 + (pause if pause < 1 else 0.0)))
    assert 1 in measured
    assert len(measured) > 1, "with drafts, too"
    assert lengths._promises.trust(1) > 0.97
