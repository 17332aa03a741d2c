"""Engine: requests in, tokens out. Mostly over a model that counts, so that every token is known beforehand."""

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from nanoinfer import LLM, FinishReason, InvalidRequestError, SamplingParams
from nanoinfer.requests.request import Request
from tests.helpers.engines import CONTEXT, V, assert_all_free, finish, greedy, make_engine, model_of, serve, step
from tests.helpers.rows import assert_likeliest

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]


# --- adding, stepping ------------------------------------------------------------------------------------------------


def test_one_request_gives_one_token_a_step() -> None:
    engine = make_engine()
    assert not engine.has_unfinished()
    assert engine.step() == []
    rid = engine.add_request([5, 6, 7], greedy(3))
    assert engine.has_unfinished()
    seen = [step(engine)[rid] for _ in range(3)]
    assert [output.token_ids for output in seen] == [[8], [8, 9], [8, 9, 10]]
    assert [output.finish_reason for output in seen] == [None, None, "length"]
    assert [output.finished for output in seen] == [False, False, True]
    assert seen[-1].prompt_token_ids == [5, 6, 7]
    assert seen[-1].prompt_tokens == 3
    assert not engine.has_unfinished()
    assert engine.step() == []
    assert_all_free(engine)


@pytest.mark.parametrize(
    "prompt",
    [
        (65, 66, 67),
        range(65, 68),
        np.array([65, 66, 67], dtype=np.uint8),
        torch.tensor([65, 66, 67], dtype=torch.int32),
        [np.int64(65), np.int16(66), 67],
        "ABC",
    ],
    ids=lambda prompt: type(prompt).__name__,
)
def test_any_sequence_of_integers_or_text_is_a_prompt(prompt: Any) -> None:
    (output,) = serve(make_engine(), prompt)
    assert output.prompt_token_ids == [65, 66, 67]
    assert output.token_ids == [68, 69, 70, 71]
    assert output.text == "DEFG"


def test_the_prompt_may_change_after_it_was_added() -> None:
    engine, prompt = make_engine(), np.array([5, 6, 7])
    rid = engine.add_request(prompt, greedy())
    prompt[:] = 0
    assert finish(engine)[rid].token_ids == [8, 9, 10, 11]


def test_params_default_to_the_default_params() -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequestError, match="max_new_tokens=128"):  # longer than this context
        engine.add_request([5])
    with pytest.raises(InvalidRequestError, match="max_new_tokens=128"):
        engine.add_request([5], None)


def test_max_new_tokens_given_as_a_small_numpy_integer_does_not_overflow() -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequestError, match="= 105 tokens"):
        engine.add_request([5] * 5, greedy(np.int8(100)))


def test_requests_join_and_leave_between_steps() -> None:
    engine = make_engine()
    first = engine.add_request([10], greedy(5))
    assert step(engine).keys() == {first}
    second = engine.add_request([50, 51], greedy(2))
    third = engine.add_request([90], greedy(1))
    joined = step(engine)  # an EXTEND of the new ones
    assert joined.keys() == {second, third}
    assert joined[third].finish_reason == "length"
    both = step(engine)
    assert both.keys() == {first, second}
    assert both[second].token_ids == [52, 53]
    assert both[second].finished
    fourth = engine.add_request([70], greedy(2))
    last = finish(engine)
    assert last[first].token_ids == [11, 12, 13, 14, 15]
    assert last[fourth].token_ids == [71, 72]
    assert_all_free(engine)


def test_no_more_than_max_running_requests_run_and_the_rest_waits_its_turn() -> None:
    engine = make_engine(rows=2)
    ids = [engine.add_request([10 * i + 10], greedy(3)) for i in range(5)]
    finished: list[int] = []
    while engine.has_unfinished():
        outputs = step(engine)
        assert len(engine.scheduler.running) <= 2
        finished += [rid for rid, output in outputs.items() if output.finished]
    assert finished == ids


def test_what_does_not_fit_the_pool_together_is_served_one_after_the_other() -> None:
    engine = make_engine(slots=16)
    outputs = serve(engine, *[[20 * i + base for base in range(10)] for i in range(5)], max_new_tokens=7)
    assert [output.token_ids for output in outputs] == [[20 * i + 10 + j for j in range(7)] for i in range(5)]
    assert_all_free(engine)


def test_earlier_outputs_do_not_change_with_later_steps() -> None:
    """Nothing of them is read until all is over."""
    engine = make_engine()
    rid = engine.add_request("ab", greedy(5, logprobs=1))
    outputs = [step(engine)[rid] for _ in range(5)]
    serve(engine, "xyz", "ab")
    for i, output in enumerate(outputs):
        assert output.token_ids == [99 + j for j in range(i + 1)]
        assert output.text == "cdefg"[: i + 1]
        assert output.logprobs is not None
        assert [next(iter(entry)) for entry in output.logprobs] == output.token_ids
        assert (output.finish_reason is None) == (i < 4)
        assert (output.latency is None) == (i < 4)
        assert output.ttft is not None


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_second_request_reuses_prompt_and_output_of_the_first(page_size: int) -> None:
    """The last sampled token has no K/V, so 10 + 7 - 1 tokens are there; of an equal prompt one is computed anew."""
    engine = make_engine(page_size=page_size)
    prompt = list(range(10))
    (first,) = serve(engine, prompt, max_new_tokens=7)
    assert first.cached_tokens == 0
    (longer,) = serve(engine, prompt + first.token_ids + [3, 4], max_new_tokens=2)
    assert longer.cached_tokens == 16
    (equal,) = serve(engine, prompt, max_new_tokens=7)
    assert equal.cached_tokens == 9 - 9 % page_size
    assert equal.token_ids == first.token_ids
    assert_all_free(engine)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_request_reuses_the_prompt_of_one_that_still_runs(page_size: int) -> None:
    engine = make_engine(page_size=page_size)
    prompt = list(range(9))
    first = engine.add_request(prompt, greedy(8))
    step(engine)
    second = engine.add_request([*prompt, 40], greedy(2))
    assert step(engine)[second].cached_tokens == 9 - 9 % page_size
    last = finish(engine)
    assert last[first].token_ids == [*range(9, 17)]
    assert last[second].token_ids == [41, 42]
    assert_all_free(engine)


def test_nothing_is_reused_without_the_cache() -> None:
    engine = make_engine(disable_radix_cache=True)
    prompt = list(range(9))
    assert [output.cached_tokens for output in serve(engine, prompt) + serve(engine, prompt)] == [0, 0]
    assert engine.stats()["free_slots"] == engine.stats()["total_slots"]


def test_requests_with_different_extra_keys_share_nothing() -> None:
    engine, prompt = make_engine(), list(range(9))

    def cached(extra_key: Any) -> int:
        rid = engine.add_request(prompt, greedy(), extra_key=extra_key)
        return finish(engine)[rid].cached_tokens

    assert [cached(key) for key in ("lora", None, "other", ("lora", 1))] == [0, 0, 0, 0]
    assert [cached(key) for key in ("lora", None, "other", ("lora", 1))] == [8, 8, 8, 8]
    assert_all_free(engine)


def test_flush_keeps_what_running_requests_rely_on() -> None:
    engine = make_engine()
    serve(engine, [100, 101, 102], max_new_tokens=1)
    rid = engine.add_request([1, 2, 3], greedy(4))
    step(engine)
    assert engine.flush_cache() == 3
    engine.check_integrity()
    assert finish(engine)[rid].token_ids == [4, 5, 6, 7]
    assert engine.flush_cache() == 6
    assert engine.flush_cache() == 0
    assert_all_free(engine)


def test_stats_tell_requests_slots_and_the_hit_rate() -> None:
    engine = make_engine(rows=1)
    start = {"total_slots": 256, "free_slots": 256, "new_token_ratio": 0.7}
    start |= {"kernels": "CountingModel", "attention_backend": "TorchNativeBackend"}
    start |= {"capture": "no (capture=False)"}
    assert {name: value for name, value in asdict(engine.stats()).items() if value} == start
    engine.add_request([1, 2, 3], greedy(3))
    engine.add_request([1, 2, 3, 4, 9], greedy(2))
    step(engine)
    stats = engine.stats()
    assert (stats["waiting"], stats["running"], stats["protected_slots"], stats["free_slots"]) == (1, 1, 3, 253)
    finish(engine)
    wanted = {"waiting": 0, "running": 0, "extend_steps": 2, "decode_steps": 3, "finished": 2, "prompt_tokens": 8}
    wanted |= {"cached_tokens": 4, "output_tokens": 5, "hit_rate": 0.5, "evictable_slots": 7, "free_slots": 249}
    assert wanted.items() <= asdict(engine.stats()).items()
    assert engine.stats()["finished"] == engine.stats().finished == 2
    with pytest.raises(KeyError, match="no_such_field"):
        engine.stats()["no_such_field"]


# --- several completions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_n_completions_come_back_as_one_request(rows: int) -> None:
    engine = make_engine(rows=rows)
    rid = engine.add_request([5, 6], SamplingParams(max_new_tokens=3, n=4, temperature=30.0, seed=7))
    seen = []
    while engine.has_unfinished():
        seen.append(step(engine)[rid])
    assert [output.finished for output in seen] == [False] * (len(seen) - 1) + [True]
    completions = seen[-1].outputs
    assert [completion.index for completion in completions] == [0, 1, 2, 3]
    assert [len(completion.token_ids) for completion in completions] == [3, 3, 3, 3]
    assert len({tuple(completion.token_ids) for completion in completions}) == 4
    assert seen[-1].token_ids == completions[0].token_ids
    assert_all_free(engine)


def test_the_first_of_n_completions_is_that_of_one_and_all_are_repeatable() -> None:
    def tokens(n: int) -> list[list[int]]:
        engine = make_engine(rows=3)
        rid = engine.add_request([5, 6], SamplingParams(max_new_tokens=5, n=n, temperature=30.0, seed=7))
        return [completion.token_ids for completion in finish(engine)[rid].outputs]

    assert tokens(4)[:1] == tokens(1)
    assert tokens(4)[:2] == tokens(2)


def test_unseeded_requests_differ_from_one_another_and_repeat_with_the_engines_seed() -> None:
    def tokens(random_seed: int) -> list[list[int]]:
        engine = make_engine(random_seed=random_seed)
        params = SamplingParams(max_new_tokens=6, temperature=30.0)
        ids = [engine.add_request([5, 6], params) for _ in range(3)]
        last = finish(engine)
        return [last[i].token_ids for i in ids]

    first = tokens(1)
    assert len({tuple(row) for row in first}) == 3
    assert tokens(1) == first
    assert tokens(2) != first


# --- abort -----------------------------------------------------------------------------------------------------------


def test_aborting_a_waiting_request_removes_it_before_it_ever_runs() -> None:
    engine = make_engine(rows=1)
    first, second = engine.add_request([1], greedy()), engine.add_request([2], greedy())
    step(engine)
    output = engine.abort(second)
    engine.check_integrity()
    assert output is not None
    assert (output.finish_reason, output.token_ids, output.text, output.finished) == ("abort", [], "", True)
    assert output.ttft is None
    assert finish(engine).keys() == {first}
    assert_all_free(engine)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("disable_radix_cache", [False, True])
def test_aborting_a_running_request_frees_its_slots_and_keeps_its_tokens_cached(
    page_size: int, disable_radix_cache: bool
) -> None:
    engine = make_engine(page_size=page_size, disable_radix_cache=disable_radix_cache)
    rid = engine.add_request([1, 2, 3, 4, 5], greedy(20))
    other = engine.add_request([50], greedy(6))
    for _ in range(3):
        step(engine)
    output = engine.abort(rid)
    engine.check_integrity()
    assert output is not None
    assert (output.finish_reason, output.token_ids) == (FinishReason.ABORT, [6, 7, 8])
    assert finish(engine)[other].token_ids == [51, 52, 53, 54, 55, 56]
    (again,) = serve(engine, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert again.cached_tokens == (0 if disable_radix_cache else 7 - 7 % page_size)
    assert_all_free(engine)


def test_aborting_what_is_finished_unknown_or_aborted_already_does_nothing() -> None:
    engine = make_engine()
    rid = engine.add_request([1], greedy(1))
    finish(engine)
    assert engine.abort(rid) is None
    assert engine.abort(10**6) is None
    twice = engine.add_request([1], greedy(1))
    assert engine.abort(twice) is not None
    assert engine.abort(twice) is None
    assert not engine.has_unfinished()
    assert_all_free(engine)


def test_aborting_a_request_of_n_completions_ends_running_and_waiting_ones() -> None:
    engine = make_engine(rows=2)
    rid = engine.add_request([1, 2], SamplingParams(max_new_tokens=8, n=4))
    step(engine)
    output = engine.abort(rid)
    assert output is not None
    assert [completion.finish_reason for completion in output.outputs] == ["abort"] * 4
    assert [len(completion.token_ids) for completion in output.outputs] == [1, 1, 0, 0]
    assert_all_free(engine)


def test_an_aborted_request_is_not_delivered_again() -> None:
    engine = make_engine()
    rid = engine.add_request([1], greedy())
    engine.deliver_later(engine.step())
    assert engine.abort(rid) is not None
    assert not engine.has_unfinished()
    assert engine.step() == []


def test_outputs_left_for_later_come_with_the_next_step_the_latest_of_each_request() -> None:
    engine = make_engine()
    done, running = engine.add_request([1], greedy(1)), engine.add_request([5], greedy(3))
    engine.deliver_later(engine.step())
    engine.deliver_later(engine.step())
    outputs = step(engine)
    assert outputs[done].token_ids == [2]
    assert outputs[running].token_ids == [6, 7, 8]


# --- why a request ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"max_new_tokens": 3}, "bcd", "length"),
        ({"max_new_tokens": 1}, "b", "length"),
        ({"max_new_tokens": 9, "stop_token_ids": [100]}, "bcd", "stop"),
        ({"max_new_tokens": 3, "stop_token_ids": [100]}, "bcd", "stop"),  # on the last allowed token
        ({"max_new_tokens": 2, "stop_token_ids": [100]}, "bc", "length"),
        ({"max_new_tokens": 1, "stop_token_ids": [98]}, "b", "stop"),
        ({"max_new_tokens": 9, "stop": "d"}, "bc", "stop"),
        ({"max_new_tokens": 9, "stop": ["xyz", "def"]}, "bc", "stop"),
        ({"max_new_tokens": 3, "stop": "cd"}, "b", "stop"),
        ({"max_new_tokens": 2, "stop": "cd"}, "bc", "length"),  # what was held back is released
        ({"max_new_tokens": 9, "stop": "ab"}, "bcdefghij", "length"),  # "a" is the prompt's
        ({"max_new_tokens": 9}, "bcdef", "stop"),  # f is an end token
        ({"max_new_tokens": 5}, "bcdef", "stop"),
        ({"max_new_tokens": 9, "ignore_eos": True}, "bcdefghij", "length"),
        ({"max_new_tokens": 9, "ignore_eos": True, "stop_token_ids": [102]}, "bcdef", "stop"),
        ({"max_new_tokens": 9, "min_new_tokens": 4, "stop": "c"}, "bcdef", "stop"),
        ({"max_new_tokens": 9, "min_new_tokens": 2, "stop": "c"}, "b", "stop"),
        ({"max_new_tokens": 9, "min_new_tokens": 4}, "bcdef", "stop"),
    ],
)
def test_a_request_ends_for_the_right_reason(fields: dict[str, Any], text: str, reason: str) -> None:
    engine = make_engine(eos=[ord("f")])
    if fields.get("stop") == "ab":
        fields = fields | {"ignore_eos": True}
    (output,) = serve(engine, "a", **fields)
    assert (output.text, output.finish_reason) == (text, reason)
    assert_all_free(engine)


def test_the_token_that_ends_a_request_is_among_its_tokens() -> None:
    assert serve(make_engine(eos=[12]), [10], max_new_tokens=9)[0].token_ids == [11, 12]
    assert serve(make_engine(), "a", max_new_tokens=9, stop="cd")[0].token_ids == list(b"bcd")


def test_an_end_token_is_not_sampled_before_min_new_tokens() -> None:
    (output,) = serve(make_engine(eos=[12]), [10], max_new_tokens=9, min_new_tokens=5)
    assert 12 not in output.token_ids[:5]
    assert len(output.token_ids) >= 5
    (free,) = serve(make_engine(eos=[12]), [10], max_new_tokens=9, min_new_tokens=1)
    assert free.token_ids == [11, 12]


@pytest.mark.parametrize("eos", [[-1], [V], [V - 1, -1, 10**9]])
def test_end_tokens_outside_the_vocabulary_are_harmless(eos: list[int]) -> None:
    """Some configs name one; -1 must not mean the last token."""
    engine = make_engine(eos=eos)
    (output,) = serve(engine, [V - 4], max_new_tokens=4, min_new_tokens=1)
    assert output.token_ids[:3] == [V - 3, V - 2, V - 1]
    assert output.finish_reason == ("stop" if V - 1 in eos else "length")


# --- refused requests ------------------------------------------------------------------------------------------------


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


# --- a step that raises ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("disable_radix_cache", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("passes", [1, 2, 4])
def test_an_error_in_the_model_ends_its_requests_and_nothing_else(
    page_size: int, disable_radix_cache: bool, error: BaseException, passes: int
) -> None:
    """In an EXTEND over a cached prefix (pass 1) and in DECODE: slots are freed, the error is raised, others are served."""
    engine = make_engine(rows=2, page_size=page_size, disable_radix_cache=disable_radix_cache)
    prompt = list(range(9))
    serve(engine, prompt)
    hit = [engine.add_request([*prompt, 60 + i], greedy(6)) for i in range(2)]
    waiting = engine.add_request([100], greedy(3))
    model_of(engine).fail_at, model_of(engine).error = model_of(engine).passes + passes, error
    for _ in range(passes - 1):
        step(engine)
    with pytest.raises(type(error)) as raised:
        engine.step()
    assert raised.value is error
    engine.check_integrity()
    assert not any(engine.is_unfinished(rid) for rid in hit)
    assert finish(engine)[waiting].token_ids == [101, 102, 103]
    (again,) = serve(engine, [*prompt, 60], max_new_tokens=3)
    assert again.token_ids == [61, 62, 63]
    assert (again.cached_tokens > 0) == (not disable_radix_cache)
    assert_all_free(engine)


def test_an_error_in_the_sampler_ends_the_requests_of_its_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    rid = engine.add_request([1, 2], greedy())
    with monkeypatch.context() as patch:
        patch.setattr(engine.sampler, "sample", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    assert engine.has_unfinished(), "the end of the request has yet to be returned"
    (ended,) = engine.step()
    assert (ended.request_id, ended.finish_reason, ended.token_ids) == (rid, "abort", [])
    assert_all_free(engine)
    assert serve(engine, [5])[0].token_ids == [6, 7, 8, 9]


def test_an_error_while_results_are_processed_ends_the_requests_of_its_pass() -> None:
    """The first of them has finished by then, the second has its token, the third not yet."""
    engine = make_engine()
    ids = [engine.add_request(prompt, greedy(n)) for prompt, n in (("a", 1), ("b", 4), ("c", 4), ("d", 4))]
    broken = list(engine.scheduler.waiting)[2]
    broken.append = lambda *args: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        engine.step()
    engine.check_integrity()
    assert not any(engine.is_unfinished(rid) for rid in ids)
    ended = {out.request_id: (out.finish_reason, len(out.token_ids)) for out in engine.step()}
    assert ended == {ids[0]: ("length", 1), ids[1]: ("abort", 1), ids[2]: ("abort", 0), ids[3]: ("abort", 0)}
    assert_all_free(engine)
    assert serve(engine, [5])[0].token_ids == [6, 7, 8, 9]


def test_outputs_left_for_later_survive_a_step_that_raises() -> None:
    engine = make_engine()
    done = engine.add_request([1], greedy(1))
    engine.deliver_later(engine.step())
    engine.add_request([5], greedy())
    model_of(engine).fail_at = model_of(engine).passes + 1
    with pytest.raises(RuntimeError, match="the model broke"):
        engine.step()
    assert step(engine)[done].token_ids == [2]


# --- scheduling never changes tokens ---------------------------------------------------------------------------------


HEAD = list(range(1, 60, 3))  # longer than the largest page
PROMPTS = [[*HEAD, 50], [*HEAD, 50, 60, 70], [9] * 18, [1, 4, 8], [7], [*HEAD, 50]]


@pytest.mark.parametrize("warm", [False, True])
def test_log_probabilities_are_those_of_transformers(checkpoint: Checkpoint, oracle: Oracle, warm: bool) -> None:
    """Of prompt and output, whether or not the prompt is cached and whoever else is in the pass."""
    path = checkpoint()
    engine = LLM(path).engine
    prompt = PROMPTS[1]
    if warm:
        serve(engine, prompt)
    other = engine.add_request(PROMPTS[0], greedy(4))
    rid = engine.add_request(
        prompt, greedy(5, logprobs=2, prompt_logprobs=True, prompt_top_logprobs=4, ignore_eos=True)
    )
    last = finish(engine)
    output = last[rid]
    assert last[other].prompt_logprobs is None
    assert last[other].logprobs is None
    assert output.cached_tokens == 0
    ids = torch.tensor([prompt + output.token_ids])
    with torch.no_grad():
        table = oracle(path)(ids).logits[0].log_softmax(-1)
    following = table[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert output.prompt_logprobs[1:] == pytest.approx(following[: len(prompt) - 1], abs=1e-4)
    assert output.logprobs is not None
    assert [entry[t] for entry, t in zip(output.logprobs, output.token_ids, strict=True)] == pytest.approx(
        following[len(prompt) - 1 :], abs=1e-4
    )
    assert output.prompt_top_logprobs is not None
    assert_likeliest(output.prompt_top_logprobs, table, 4)
    for entry, row in zip(output.logprobs, table[len(prompt) - 1 :], strict=False):
        assert list(entry) == row.topk(2).indices.tolist()


def test_of_n_completions_only_the_first_computes_the_prompt_anew_for_its_log_probabilities(
    checkpoint: Checkpoint,
) -> None:
    engine = LLM(checkpoint()).engine
    (cold,) = serve(engine, HEAD, prompt_logprobs=True)
    rid = engine.add_request(HEAD, SamplingParams(max_new_tokens=2, n=3, prompt_logprobs=True, prompt_top_logprobs=1))
    output = finish(engine)[rid]
    assert [completion.cached_tokens for completion in output.outputs] == [0, len(HEAD) - 1, len(HEAD) - 1]
    assert output.prompt_logprobs is not None
    assert cold.prompt_logprobs is not None
    assert output.prompt_logprobs[1:] == pytest.approx(cold.prompt_logprobs[1:], abs=1e-5)
    assert len(output.prompt_top_logprobs or ()) == len(HEAD)
    assert_all_free(engine)
