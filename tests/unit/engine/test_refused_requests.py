"""Requests that an engine refuses, by name, and those at its limits."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import InvalidRequestError, SamplingParams
from nanoinfer.requests.request import Request
from tests.helpers.engines import CONTEXT, V, assert_all_free, finish, greedy, make_engine, serve
from tests.helpers.trees import nested


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ("", "is empty"),
        ([], "is empty"),
        ((), "is empty"),
        (np.array([]), "is empty"),
        (torch.tensor([], dtype=torch.int64), "is empty"),
        ([3, V], rf"token id {V}: must be in 0\.\.{V - 1}"),
        ([3, -1, V], "token id -1"),
        ([2**70], "token ids"),
        (list(range(61)), rf"61 prompt tokens \+ max_new_tokens=4 = 65 tokens: .*max_context_len={CONTEXT}"),
        ("a" * 61, "61 prompt tokens"),
        ([1.0, 2.0], "token ids, got list"),
        (np.array([1.5]), "token ids, got ndarray"),
        (torch.tensor([1.0]), "token ids, got Tensor"),
        (torch.tensor([1.0], dtype=torch.bfloat16), "token ids, got Tensor"),
        ([[1, 2], [3, 4]], "token ids, got list"),
        ([[1, 2], [3]], "token ids, got list"),
        ([1, [2]], "token ids, got list"),
        ([1, None], "token ids, got list"),
        ([1, "a"], "token ids, got list"),
        (["a", "b"], "token ids, got list"),
        ([True, False], "token ids, got list"),
        (None, "got NoneType"),
        (5, "got int"),
        (b"abc", "got bytes"),
        ({"prompt": "a", "multi_modal_data": {}}, "is a mapping with prompt, multi_modal_data: must have prompt or"),
        ({}, "is a mapping with nothing: must have prompt or prompt_token_ids, and no more$"),
        ({1, 2}, "got set"),
        (object(), "got object"),
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
        (5, "must be SamplingParams or a mapping of its fields$"),
        ([SamplingParams()], "must be SamplingParams"),
        (greedy(logprobs=V + 1), rf"logprobs={V + 1}: must be at most {V}"),
        (greedy(prompt_logprobs=True, prompt_top_logprobs=V + 1), rf"prompt_top_logprobs={V + 1}: must be at most {V}"),
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
    assert output.logprobs is not None
    assert len(output.logprobs[0]) == V


class OddKey(str):
    """Hashable, but what it equals is its own business."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("cannot be compared")


@pytest.mark.parametrize(
    "key", [["list"], OddKey("a"), ("a", OddKey("b")), (1, ["list"]), 1.5, object(), frozenset("a")]
)
def test_an_extra_key_that_may_not_always_compare_alike_is_refused(key: Any) -> None:
    engine = make_engine()
    with pytest.raises(
        InvalidRequestError, match=r"prompt: extra_key=.*: must be None, text, bytes, an integer or a tuple"
    ):
        engine.add_request([7], greedy(), extra_key=key)
    assert serve(engine, [5])[0].token_ids == [6, 7, 8, 9]


@pytest.mark.parametrize("options", [{}, {"host_cache_tokens": 128}], ids=["pool", "host"])
def test_an_extra_key_of_many_tuples_in_one_another_is_refused_before_anything_happens(options: dict[str, Any]) -> None:
    """Comparing two of them, or taking their hash, would raise in the middle of a pass, or end the process."""
    engine = make_engine(slots=48, **options)
    feed = engine.block_feed(4)
    for count in (33, 1000, 100_000):
        with pytest.raises(
            InvalidRequestError, match="prompt: extra_key: has more than 32 tuples in one another, must"
        ):
            engine.add_request([7], greedy(), extra_key=("a", nested(count)))
    assert (engine.has_unfinished(), feed.since(0)) == (False, [])
    prompt = [*range(40)]
    for _ in range(2):
        engine.add_request(prompt, greedy(1), extra_key=nested(32))
        finish(engine)
    assert engine.radix_cache.peek_prefix(np.array(prompt), nested(32))[0] == 40
    engine.check_integrity()


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
        with pytest.raises(
            ValueError, match=r"request_id=[01]: was already submitted, or was prepared by another engine"
        ):
            engine.submit_all(groups)
    assert len(engine.scheduler.waiting) == (0 if ended else 1)
    outputs = {} if ended else finish(engine)
    outputs |= {engine.submit(other): None} | finish(engine)  # it can still be submitted
    assert outputs[other.request_id].token_ids == [71, 72]
    assert_all_free(engine)


def test_a_group_of_another_engine_is_refused() -> None:
    engine = make_engine()
    with pytest.raises(ValueError, match="request_id=0: was already submitted, or was prepared by another engine"):
        engine.submit(make_engine().prepare(Request([7], greedy())))
    assert not engine.has_unfinished()


def test_what_a_caller_does_to_an_output_changes_no_other_output() -> None:
    engine = make_engine()
    rid = engine.add_request([7, 8, 9], greedy(3, logprobs=1, prompt_logprobs=True, prompt_top_logprobs=1))
    gathered = engine.open_requests.groups[rid].reqs[0].gathered_prompt_logprobs
    assert gathered is not None
    gathered.add(0, [0.0, -1.0, -2.0], None, [{5: -0.5}, {6: -0.25}])
    (first,) = engine.step()
    assert first.prompt_logprobs == [None, -1.0, -2.0]
    assert first.logprobs is not None
    wanted = dict(first.logprobs[0])
    first.prompt_token_ids.clear()
    first.prompt_logprobs.clear()
    assert first.prompt_top_logprobs == [None, {5: -0.5}, {6: -0.25}]
    first.prompt_top_logprobs[1].clear()
    first.token_ids.clear()
    first.logprobs[0].clear()
    first.logprobs.clear()
    first.outputs.clear()
    last = finish(engine)[rid]
    assert (last.prompt_token_ids, last.token_ids, last.prompt_logprobs) == ([7, 8, 9], [10, 11, 12], [None, -1, -2])
    assert last.prompt_top_logprobs == [None, {5: -0.5}, {6: -0.25}]
    assert last.logprobs is not None
    assert last.logprobs[0] == wanted


def test_text_and_stop_strings_need_a_tokenizer() -> None:
    engine = make_engine()
    engine.builder.tokenizer = None
    with pytest.raises(InvalidRequestError, match="prompt: is text, but this model has no tokenizer"):
        engine.add_request("abc", greedy())
    with pytest.raises(InvalidRequestError, match=r"stop=.*needs a tokenizer"):
        engine.add_request([1], greedy(stop="a"))
    (output,) = serve(engine, [1])
    assert (output.token_ids, output.text) == ([2, 3, 4, 5], "")


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_request_as_long_as_the_context_or_the_pool_is_served_one_longer_refused(page_size: int) -> None:
    """The last token needs no slot."""
    engine = make_engine(slots=256, page_size=page_size)
    assert serve(engine, [1] * (CONTEXT - 4))[0].token_ids == [2, 3, 4, 5]
    with pytest.raises(InvalidRequestError, match="max_context_len"):
        engine.add_request([1] * (CONTEXT - 3), greedy())
    small = make_engine(slots=16, page_size=page_size)
    assert serve(small, [1] * 13)[0].token_ids == [2, 3, 4, 5]
    with pytest.raises(InvalidRequestError, match=r"14 prompt tokens.*max_total_tokens=16"):
        small.add_request([1] * 14, greedy())
    assert_all_free(small)
