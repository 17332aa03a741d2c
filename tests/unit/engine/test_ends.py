"""Why requests end: tokens, stop strings, an abort, a step that raises; and that no slot is lost."""

from typing import Any

import pytest

from nanoinfer import (
    Engine,
    FinishReason,
    SamplingParams,
)
from tests.helpers.engines import V, assert_all_free, finish, greedy, make_engine, model_of, serve, step

# --- abort -----------------------------------------------------------------------------------------------------------


def test_aborting_a_waiting_request_removes_it_before_it_ever_runs() -> None:
    engine = make_engine(rows=1)
    first, second = engine.add_request([1], greedy()), engine.add_request([2], greedy())
    step(engine)
    output = engine.abort(second)
    engine.check_integrity()
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
    assert [completion.finish_reason for completion in output.outputs] == ["abort"] * 4
    assert [len(completion.token_ids) for completion in output.outputs] == [1, 1, 0, 0]
    assert_all_free(engine)


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
        ({"max_new_tokens": 9, "stop": ["xyz", "cde"]}, "b", "stop"),
        ({"max_new_tokens": 3, "stop": "cd"}, "b", "stop"),
        ({"max_new_tokens": 2, "stop": "cd"}, "bc", "length"),  # what was held back is released
        ({"max_new_tokens": 9, "stop": "ab"}, "bcdefghij", "length"),  # "a" is the prompt's
        ({"max_new_tokens": 9}, "bcde", "stop"),  # f is an end token
        ({"max_new_tokens": 5}, "bcde", "stop"),
        ({"max_new_tokens": 9, "ignore_eos": True}, "bcdefghij", "length"),
        ({"max_new_tokens": 9, "ignore_eos": True, "stop_token_ids": [102]}, "bcdef", "stop"),
        ({"max_new_tokens": 9, "min_new_tokens": 4, "stop": "c"}, "bcde", "stop"),
        ({"max_new_tokens": 9, "min_new_tokens": 2, "stop": "c"}, "b", "stop"),
        ({"max_new_tokens": 9, "min_new_tokens": 4}, "bcde", "stop"),
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


def make_steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        step(engine)


def broken(*args: object) -> None:
    raise MemoryError("no more")


BROKEN = {
    "eviction": lambda engine: (engine.radix_cache, "evict"),
    "rows": lambda engine: (engine.model_runner.req_to_token_pool, "alloc"),
    "slots": lambda engine: (engine.model_runner.token_to_kv_pool, "alloc"),
    "the sampler": lambda engine: (engine.sampler, "logprobs"),
    "processing": lambda engine: (engine.scheduler, "process_batch_result"),
}


@pytest.mark.parametrize(
    ("where", "when"), [("eviction", 0), *((where, when) for where in [*BROKEN][1:] for when in (0, 2, 5))]
)
@pytest.mark.parametrize("page_size", [1, 4])
def test_whatever_breaks_ends_the_requests_of_the_pass_and_no_slot_is_lost(
    where: str, when: int, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an EXTEND over a cached prefix, a piece of a prompt, a DECODE; `when` counts the steps before it breaks."""
    engine = make_engine(rows=2, slots=64, page_size=page_size, chunked_prefill_size=8)
    cached = engine.add_request(list(range(51)), greedy(1))
    assert finish(engine)[cached].finished
    rids = [engine.add_request([*range(12), 60 + i, *range(20, 33)], greedy(6)) for i in range(2)]
    waiting = engine.add_request([100], greedy(3))
    for _ in range(when):
        step(engine)
    with monkeypatch.context() as patch:
        patch.setattr(*BROKEN[where](engine), broken)
        with pytest.raises(MemoryError):
            make_steps(engine, 30)  # until what is broken is needed
    engine.check_integrity()
    ended = step(engine)
    failed = {rid for rid, output in ended.items() if output.error is not None}
    assert failed
    assert all(isinstance(ended[rid].error, MemoryError) for rid in failed)
    assert engine.stats().failed == len(failed)
    last = finish(engine)
    for rid in {*rids, waiting} - failed:
        start = 33 if rid in rids else 101
        assert last[rid].token_ids == list(range(start, start + len(last[rid].token_ids)))
        assert last[rid].finish_reason == "length"
    assert_all_free(engine)


@pytest.mark.parametrize(("method", "tokens"), [("add", 2), ("flush", 3)])
def test_a_tokenizer_that_breaks_ends_its_request_and_no_other_one(method: str, tokens: int) -> None:
    engine = make_engine()
    rids = [engine.add_request(prompt, greedy(3)) for prompt in ("a", "m")]
    step(engine)
    detokenizer = engine.scheduler.running[0].detokenizer
    setattr(detokenizer, method, broken)
    ended = finish(engine)
    assert [ended[rid].finish_reason for rid in rids] == ["abort", "length"]
    assert isinstance(ended[rids[0]].error, MemoryError)
    assert len(ended[rids[0]].token_ids) == tokens
    assert ended[rids[1]].text == "nop"
    assert (engine.stats().failed, engine.stats().finished) == (1, 1)
    assert_all_free(engine)
