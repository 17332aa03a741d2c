"""Engine: arrivals, steps, aborts and flushes in any order."""

from typing import Any

import numpy as np
import pytest

from nanoinfer import RequestOutput
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, step


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("options", [{}, {"disable_radix_cache": True}, {"schedule_policy": "dfs-weight"}])
def test_any_order_of_arrivals_steps_and_aborts_keeps_slots_and_tokens_right(
    page_size: int, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(page_size)
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
            rid = int(rng.choice(list(wanted)))
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
