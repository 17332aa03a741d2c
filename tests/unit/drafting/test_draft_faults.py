"""Drafts in the books; and drafters, models and samplers that fail while there are drafts."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from nanoinfer import SamplingParams
from nanoinfer.registry import DRAFTERS
from nanoinfer.requests.req import Req
from nanoinfer.sampling.sampler import Sampler
from tests.helpers.engines import Clock, V, assert_all_free, finish, greedy, make_engine, serve, step
from tests.helpers.foreseeing import Foreseeing, engine_of


@pytest.fixture
def broken() -> RuntimeError:
    return RuntimeError("broken on purpose")


def test_an_engine_whose_drafter_raises_resets(drafter: Foreseeing, broken: RuntimeError) -> None:
    engine = engine_of(rows=2)
    ids = [engine.add_request([start], greedy(10)) for start in (1, 30, 60)]  # the last one waits for a row
    step(engine)
    step(engine)
    drafter.error = broken
    with pytest.raises(RuntimeError, match="broken on purpose"):
        engine.step()
    engine.check_integrity()
    drafter.error = None
    last = finish(engine)
    assert [last[i].error for i in ids] == [broken] * 3
    assert [last[i].token_ids for i in ids] == [[2, 3, 4, 5, 6], [31, 32, 33, 34, 35], []]
    assert engine.stats().failed == 3
    assert_all_free(engine)


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        ([[7] * 4], "4 drafts"),
        ([[7, V]], f"token {V}"),
        ([[7, -1]], "token -1"),
        ([], "0 lists"),
    ],
)
def test_a_drafter_that_proposes_what_it_must_not_is_named(
    monkeypatch: pytest.MonkeyPatch, drafts: Any, message: str
) -> None:
    class Wrong:
        def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> Any:
            return drafts

    monkeypatch.setitem(DRAFTERS, "wrong", lambda _: Wrong())
    engine = engine_of(drafter="wrong")
    engine.add_request([1], greedy(6))
    step(engine)
    with pytest.raises(RuntimeError, match=f"drafter='wrong'.*{message}"):
        engine.step()
    (output,) = engine.step()
    assert (output.finish_reason, output.token_ids) == ("abort", [2])
    assert_all_free(engine)


@pytest.mark.parametrize("place", ["model", "sampler", "processing"])
def test_a_fault_in_a_verify_pass_frees_the_slots_of_its_drafts(
    drafter: Foreseeing, broken: RuntimeError, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(rows=2, page_size=4, num_draft_tokens=7)
    ids = [engine.add_request([start], greedy(20)) for start in (1, 30, 60)]
    step(engine)
    step(engine)
    before = {req.request_id: req.output_ids for req in engine.scheduler.running}

    def fail(*args: Any) -> Any:
        raise broken

    with monkeypatch.context() as patch:
        if place == "model":
            patch.setattr(engine.model_runner, "run", fail)
        elif place == "sampler":
            patch.setattr(Sampler, "sample", fail)
        else:
            patch.setattr(Req, "append", fail)
        with pytest.raises(RuntimeError, match="broken on purpose"):
            engine.step()
    engine.check_integrity()
    last = finish(engine)
    resets = place == "processing"
    assert [last[i].error for i in ids] == [broken, broken, broken if resets else None]
    for i in ids[:2]:
        assert last[i].token_ids == before[i], "no token of the pass that failed"
    assert last[2].token_ids == ([] if resets else list(range(61, 81)))
    assert_all_free(engine)


def test_logits_of_a_row_that_hold_nan_end_the_requests_of_the_pass(drafter: Foreseeing) -> None:
    engine = engine_of()
    engine.add_request([1], greedy(20))
    step(engine)
    forward = engine.model_runner.run

    def spoilt(*args: Any) -> Any:
        output = forward(*args)
        output.logits[-1] = torch.nan
        return output

    engine.model_runner.run = spoilt  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="NaN"):
        engine.step()
    (output,) = engine.step()
    assert output.token_ids == [2]
    assert_all_free(engine)


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
