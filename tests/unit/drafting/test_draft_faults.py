"""Drafters, models and samplers that fail while there are drafts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.drafting.draft_lengths import Turn
from nanoinfer.drafting.scheduler import DraftingScheduler
from nanoinfer.registry import DRAFTERS
from nanoinfer.requests.req import Req
from nanoinfer.sampling.sampler import Sampler
from tests.helpers.engines import V, assert_all_free, finish, greedy, serve, step
from tests.helpers.foreseeing import Foreseeing, engine_of


@pytest.fixture
def broken() -> RuntimeError:
    return RuntimeError("broken on purpose")


def test_a_drafter_that_raises_ends_the_requests_of_the_pass_and_no_others(
    drafter: Foreseeing, broken: RuntimeError
) -> None:
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
    assert [last[i].error for i in ids] == [broken, broken, None]
    assert [last[i].finish_reason for i in ids] == ["abort", "abort", "length"]
    assert [last[i].token_ids for i in ids] == [[2, 3, 4, 5, 6], [31, 32, 33, 34, 35], list(range(61, 71))]
    assert engine.stats().failed == 2
    assert_all_free(engine)


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        ([[7] * 4], r"proposed 4 drafts for a request: must not exceed 3"),
        ([[7, V]], rf"proposed token {V}: must be in 0..{V - 1}"),
        ([[7, -1]], rf"proposed token -1: must be in 0..{V - 1}"),
        ([[7, 7.5]], r"proposed token 7.5: must be in"),
        ([np.array([7, V])], rf"proposed token {V}: must be in"),
        ([[7], [7]], r"proposed 2 lists of drafts for 1 requests"),
        ([], r"proposed 0 lists of drafts for 1 requests"),
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
    with pytest.raises(RuntimeError, match=f"drafter='wrong': {message}"):
        engine.step()
    (output,) = engine.step()
    assert (output.finish_reason, output.token_ids) == ("abort", [2])
    assert_all_free(engine)


def test_drafts_may_be_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Arrays:
        def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> Any:
            return [
                req.token_ids[req.num_tokens - 1] + 1 + np.arange(count) for req, count in zip(reqs, most, strict=True)
            ]

    monkeypatch.setitem(DRAFTERS, "arrays", lambda _: Arrays())
    engine = engine_of(drafter="arrays")
    (output,) = serve(engine, [1], max_new_tokens=6)
    assert (output.token_ids, output.accepted_tokens) == ([2, 3, 4, 5, 6, 7], 3)


def test_a_drafter_without_an_idea_leaves_the_request_to_one_that_was_right_less_often(
    drafter: Foreseeing, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
            return [[] for _ in reqs]

    monkeypatch.setitem(DRAFTERS, "silent", lambda _: Silent())
    engine = engine_of(drafter=("foreseeing", "silent"))
    scheduler = engine.scheduler
    assert isinstance(scheduler, DraftingScheduler)
    monkeypatch.setattr(scheduler.lengths, "choose", lambda reqs, _: [Turn(i, [2 for _ in reqs]) for i in (1, 0)])
    engine.add_request([1], greedy(20))
    step(engine)
    assert step(engine)[0].token_ids == [2, 3, 4, 5]


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
    assert [last[i].error for i in ids] == [broken, broken, None]
    for i in ids[:2]:
        assert last[i].token_ids == before[i], "no token of the pass that failed"
    assert last[2].token_ids == list(range(61, 81))
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
    with pytest.raises(RuntimeError, match="request 0: the model's logits hold NaN or infinity"):
        engine.step()
    (output,) = engine.step()
    assert output.token_ids == [2]
    assert_all_free(engine)
