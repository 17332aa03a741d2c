"""Engine: arrivals, steps, aborts and flushes in any order, and seeded tokens in any batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer import LLM, RequestOutput, SamplingParams
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, step

Checkpoint = Callable[..., Path]


@pytest.mark.parametrize(
    ("page_size", "num_scheduler_steps", "options"),
    [
        (1, 1, {}),
        (4, 3, {}),
        (4, 1, {"disable_radix_cache": True}),
        (1, 3, {"disable_radix_cache": True}),
        (1, 1, {"schedule_policy": "dfs-weight"}),
        (4, 3, {"schedule_policy": "dfs-weight"}),
    ],
)
def test_any_order_of_arrivals_steps_and_aborts_keeps_slots_and_tokens_right(
    page_size: int, num_scheduler_steps: int, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(page_size)
    options = {**options, "num_scheduler_steps": num_scheduler_steps}
    engine = make_engine(rows=3, slots=48, page_size=page_size, max_prefill_tokens=20, **options)
    wanted: dict[int, list[int]] = {}
    last: dict[int, RequestOutput] = {}
    aborted: set[int] = set()
    for _ in range(250):
        action = rng.random()
        if action < 0.3:
            start, length, n = int(rng.integers(0, 3)) * 10, int(rng.integers(1, 20)), int(rng.integers(1, 12))
            prompt = list(range(start, start + length))
            rid = engine.add_request(prompt, greedy(n), extra_key=[None, "key"][int(rng.integers(0, 2))])
            wanted[rid] = list(range(start + length, start + length + n))
        elif action < 0.35 and wanted:
            rid = int(rng.choice(list(wanted)[-4:]))  # some of the latest have ended, too
            if engine.abort(rid) is not None:
                aborted.add(rid)
            engine.check_integrity()
        elif action < 0.38:
            engine.flush_cache()
            engine.check_integrity()
        else:
            last |= step(engine)
    last |= finish(engine)
    assert aborted
    assert {rid: last[rid].token_ids for rid in wanted.keys() - aborted} == {
        rid: tokens for rid, tokens in wanted.items() if rid not in aborted
    }
    assert_all_free(engine)


HEAD = list(range(1, 60, 3))  # longer than the largest page
PROMPTS = [[*HEAD, 50], [*HEAD, 50, 60, 70], [9] * 18, [1, 4, 8], [7], [*HEAD, 50]]


def seeded(i: int) -> SamplingParams:
    fields: dict[str, Any] = [{}, {"top_k": 20}, {"top_p": 0.9, "repetition_penalty": 1.2}, {"min_p": 0.01}][i % 4]
    return SamplingParams(max_new_tokens=6 + i, seed=100 + i, ignore_eos=True, **fields)


@pytest.fixture(scope="module")
def alone(checkpoint: Checkpoint) -> list[list[int]]:
    """Tokens of each request, served by itself by a fresh engine without cache."""
    llm = LLM(checkpoint(), disable_radix_cache=True, max_running_requests=1)
    return [llm.generate([prompt], seeded(i), use_tqdm=False)[0].token_ids for i, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("disable_radix_cache", [False, True])
def test_seeded_tokens_are_the_same_in_any_batch(
    checkpoint: Checkpoint, alone: list[list[int]], page_size: int, disable_radix_cache: bool
) -> None:
    llm = LLM(
        checkpoint(),
        page_size=page_size,
        disable_radix_cache=disable_radix_cache,
        max_running_requests=4,
        max_total_tokens=128,
    )
    engine = llm.engine
    for order in ([0, 1, 2, 3, 4, 5], [5, 2, 4, 1, 0, 3]):
        ids: dict[int, int] = {}
        last: dict[int, RequestOutput] = {}
        for count, i in enumerate(order):  # one arrives every other step
            ids[i] = engine.add_request(PROMPTS[i], seeded(i))
            last |= step(engine) if count % 2 else {}
        last |= finish(engine)
        assert [last[ids[i]].token_ids for i in range(len(PROMPTS))] == alone
    assert (engine.stats()["cached_tokens"] > 0) == (not disable_radix_cache)
    assert_all_free(engine)
