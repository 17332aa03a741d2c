"""The run that tests of what is said and written look at."""

import pytest

from nanoinfer import SamplingParams
from nanoinfer.trace import Trace, record
from tests.helpers.engines import greedy, make_engine, model_of


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
