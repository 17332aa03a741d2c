"""Engine: requests in, tokens out. Mostly over a model that counts, so that every token is known beforehand."""

from dataclasses import asdict

import numpy as np
import pytest

from nanoinfer import InvalidRequestError, SamplingParams
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, serve, step

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


def test_earlier_outputs_do_not_change_with_later_steps() -> None:
    """Nothing of them is read until all is over."""
    engine = make_engine()
    rid = engine.add_request("ab", greedy(5, logprobs=1))
    outputs = [step(engine)[rid] for _ in range(5)]
    serve(engine, "xyz", "ab")
    for i, output in enumerate(outputs):
        assert output.token_ids == [99 + j for j in range(i + 1)]
        assert output.text == "cdefg"[: i + 1]
        assert [next(iter(entry)) for entry in output.logprobs] == output.token_ids
        assert (output.finish_reason is None) == (i < 4)
        assert (output.latency is None) == (i < 4)
        assert output.ttft is not None


# --- the cache -------------------------------------------------------------------------------------------------------


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
