"""Requests that an engine refuses, by name, and those at its limits."""

import math
from typing import Any

import pytest
import torch

from nanoinfer import InvalidRequestError
from nanoinfer.requests.request import Request
from tests.helpers.engines import CONTEXT, V, assert_all_free, finish, greedy, make_engine, serve


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ("", "is empty"),
        ([], "is empty"),
        ([3, V], f"token id {V}"),
        ([3, -1, V], "token id -1"),
        ([2**70], "token ids"),
        (list(range(61)), f"max_context_len={CONTEXT}"),
        (torch.tensor([1.0]), "Tensor"),
        (None, "NoneType"),
        (b"abc", "bytes"),
        ({"prompt": "a", "multi_modal_data": {}}, "multi_modal_data"),
    ],
    ids=lambda value: str(value)[:17],
)
def test_a_prompt_that_cannot_be_served_is_refused_by_name_and_the_engine_goes_on(prompt: Any, named: str) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequestError, match=f"^prompt 3: .*{named}"):
        engine.add_request(prompt, greedy(), name="prompt 3")
    assert not engine.has_unfinished()
    assert engine.stats()["waiting"] == 0
    assert serve(engine, [5])[0].token_ids == [6, 7, 8, 9]


@pytest.mark.parametrize(
    ("params", "named"),
    [
        (5, "SamplingParams"),
        (greedy(logprobs=V + 1), f"logprobs={V + 1}"),
        (greedy(prompt_logprobs=True, prompt_top_logprobs=V + 1), f"prompt_top_logprobs={V + 1}"),
        (greedy(stop_token_ids=[1, V]), f"stop_token_ids: token id {V}"),
        (greedy(logit_bias={V: 1.0}), f"logit_bias: token id {V}"),
        (greedy(logit_bias=dict.fromkeys(range(V), -math.inf)), "forbid all"),
        (greedy(min_new_tokens=1, logit_bias={i: -math.inf for i in range(V) if i != 5}), "forbid all"),
        (greedy(4, min_new_tokens=1, stop_token_ids=range(V)), "forbid all"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_params_that_do_not_fit_the_model_are_refused_by_name(params: Any, named: str) -> None:
    engine = make_engine(eos=[5])
    with pytest.raises(InvalidRequestError, match=f"^prompt: .*{named}"):
        engine.add_request([7], params)
    assert not engine.has_unfinished()


def test_params_at_the_limits_of_the_model_are_served() -> None:
    engine = make_engine(eos=[5])
    only_five = {i: -math.inf for i in range(V) if i != 5}
    rid = engine.add_request([7], greedy(logprobs=V, logit_bias=only_five, stop_token_ids=[V - 1]))
    output = finish(engine)[rid]
    assert (output.token_ids, output.finish_reason) == ([5], "stop")
    assert len(output.logprobs[0]) == V


@pytest.mark.parametrize("key", [None, "lora", b"lora", 7, (), ("lora", 7, (None, b"x"))])
def test_an_extra_key_of_plain_values_shares_with_its_equals(key: Any) -> None:
    engine = make_engine()
    for cached in (0, 2):
        rid = engine.add_request([7, 8, 9], greedy(1), extra_key=key)
        assert finish(engine)[rid].cached_tokens == cached


@pytest.mark.parametrize("ended", [False, True], ids=["unfinished", "ended"])
def test_a_group_is_submitted_once(ended: bool) -> None:
    engine = make_engine()
    group, other = engine.prepare(Request([7], greedy(2))), engine.prepare(Request([70], greedy(2)))
    rid = engine.submit(group)
    if ended:
        assert finish(engine)[rid].token_ids == [8, 9]
    for groups in ([group], [other, group], [other, other]):
        with pytest.raises(ValueError, match="request_id="):
            engine.submit_all(groups)
    assert len(engine.scheduler.waiting) == (0 if ended else 1)
    outputs = {} if ended else finish(engine)
    outputs |= {engine.submit(other): None} | finish(engine)  # it can still be submitted
    assert outputs[other.request_id].token_ids == [71, 72]
    assert_all_free(engine)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_request_as_long_as_the_context_or_the_pool_is_served_one_longer_refused(page_size: int) -> None:
    """The last token needs no slot."""
    engine = make_engine(slots=256, page_size=page_size)
    assert serve(engine, [1] * (CONTEXT - 4))[0].token_ids == [2, 3, 4, 5]
    with pytest.raises(InvalidRequestError, match="max_context_len"):
        engine.add_request([1] * (CONTEXT - 3), greedy())
    small = make_engine(slots=16, page_size=page_size)
    assert serve(small, [1] * 13)[0].token_ids == [2, 3, 4, 5]
    with pytest.raises(InvalidRequestError, match="max_total_tokens=16"):
        small.add_request([1] * 14, greedy())
    assert_all_free(small)
