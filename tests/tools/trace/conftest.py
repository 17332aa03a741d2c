"""The runs that tests of what is said, drawn and written look at."""

import pytest

from nanoinfer import Engine, RequestOutput, SamplingParams
from nanoinfer.viz.trace import Trace, record
from tests.helpers.engines import greedy, make_engine, model_of, serve
from tests.helpers.tiers import tier_of, with_files
from tests.helpers.traces import assert_same

LONG = [*range(40)]
PROMPTS = [LONG, [*range(60, 100)], [*range(20, 60)], [*range(44, 84)]]  # the pool has room for one of them
ASKS_AGAIN = [*LONG, 3]


@pytest.fixture(scope="session")
def busy() -> Trace:
    """Chunks, a split, evictions, a retraction, an abort, a failing step, two completions, a namespace; slow steps."""
    clock = map(float, range(10_000)).__next__
    engine = make_engine(rows=3, slots=32, chunked_prefill_size=6, schedule_conservativeness=0.1, clock=clock)
    with record(engine) as trace:
        ids = [engine.add_request([65, 66, 67, 68, 97 + i], greedy(12)) for i in range(3)]
        engine.add_request("ABCDEF" * 2, greedy(6), extra_key="lora")
        for _ in range(12):
            engine.step()
        engine.abort(ids[0])
        engine.pause(ids[1])
        for _ in range(2):
            engine.step()
        engine.resume(ids[1])
        engine.add_request("XY", SamplingParams(max_new_tokens=3, n=2))
        model_of(engine).fail_at = model_of(engine).passes + 4
        while engine.has_unfinished():
            try:
                engine.step()
            except RuntimeError:
                engine.add_request("ABCD", greedy(2))
        engine.flush_cache()
    return trace


@pytest.fixture(scope="session")
def drafted() -> Trace:
    """Request 0 comes to `abcdeab` `c`: the drafts `d`, `e`, `a` follow, and then comes `f`. Request 1 has no drafts."""
    clock = map(float, range(10_000)).__next__
    engine = make_engine(drafter="ngram", adaptive_drafts=False, clock=clock)
    with record(engine) as trace:
        serve(engine, "abcdeab", "opq", max_new_tokens=9)
    return trace


def fetched_from(files: bool) -> tuple[Trace, Engine, RequestOutput]:
    """Request 4 asks again for what request 0 did: its K/V comes back from files, or from host memory."""
    engine = make_engine(slots=56, host_cache_tokens=64 if files else 128)
    tier_of(engine)
    if files:
        with_files(engine)
    with record(engine) as trace:
        serve(engine, *PROMPTS, max_new_tokens=1)
        (output,) = serve(engine, ASKS_AGAIN, max_new_tokens=2)
        assert_same(trace, engine)
    return trace, engine, output
