"""Why requests end: tokens, stop strings, an abort, or a step that raises."""

from typing import Any

import pytest

from nanoinfer import FinishReason, SamplingParams
from tests.helpers.engines import V, assert_all_free, finish, greedy, make_engine, model_of, serve, step

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
