"""An interrupt at any moment, as Ctrl-C comes: tokens are right, nothing is lost, nobody waits for ever."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from nanoinfer import LLM, RequestOutput
from tests.helpers.async_engines import following, llm_around
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, serve
from tests.helpers.interrupts import Interrupted, interrupted_at
from tests.helpers.waiting import Worker, until


@pytest.mark.parametrize(
    "options",
    [{}, {"host_cache_tokens": 64}, {"page_size": 4, "num_scheduler_steps": 3}, {"disable_radix_cache": True}],
)
def test_manual_steps(options: dict[str, Any]) -> None:
    """In little room: with chunks, evictions and retractions."""
    for moment in count(1, 613):
        engine = make_engine(rows=3, slots=24, chunked_prefill_size=8, schedule_conservativeness=0.001, **options)
        rids, outputs = dict[int, int](), dict[int, RequestOutput]()
        with interrupted_at(moment) as where:
            for base in (5, 50, 5, 80):
                rids[engine.add_request(range(base, base + 10), greedy(8))] = base + 9  # type: ignore[arg-type]
            while engine.has_unfinished():
                outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
        outputs |= finish(engine)
        for rid, output in outputs.items():
            assert output.token_ids == following(rids[rid], len(output.token_ids)), where
            if output.finished:  # else the interrupt took its last output
                assert len(output.token_ids) == 8 or isinstance(output.error, Interrupted), where
        assert where or all(outputs[rid].finished for rid in rids)
        assert [output.token_ids for output in serve(engine, [7], [70])] == [following(7, 4), following(70, 4)]
        assert_all_free(engine)
        if not where:
            return


CALLS: dict[str, Callable[[LLM], Any]] = {
    "generate": lambda llm: llm.generate([[5], [50], [80]], greedy(3), use_tqdm=False),
    "stream": lambda llm: list(llm.stream([5], greedy(3))),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_first", [True, False])
def test_calls(call: str, is_first: bool) -> None:
    """The first one of an LLM starts the engine's thread."""
    for moment in count(1, 5):
        llm = llm_around(make_engine())
        if not is_first:
            llm.generate([20], greedy(2))
        with interrupted_at(moment) as where:
            CALLS[call](llm)
        assert Worker(llm.generate, [30], greedy(3)).result()[0].token_ids == following(30, 3), where
        until(lambda llm=llm: not llm.engine.has_unfinished(), f"their end: {where}")
        assert_all_free(llm.engine)
        if not where:
            return
