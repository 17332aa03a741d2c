"""Recording: the engine does not notice, errors and replaced methods do no harm, and steps are read by number."""

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.viz.trace import Recorder, record
from tests.helpers.engines import V, greedy, make_engine, serve
from tests.helpers.traces import assert_same

# --- the engine does not notice ---------------------------------------------------------------------------------------


def test_tokens_are_the_same_with_and_without(story: LLM) -> None:
    prompts = ["Once upon a time there was a fox", "Once upon a time there was a bear"]
    for params in (SamplingParams(max_new_tokens=8, temperature=0), SamplingParams(max_new_tokens=8, seed=3, n=2)):
        plain = [out.token_ids for output in story.generate(prompts, params, use_tqdm=False) for out in output.outputs]
        with record(story) as trace:
            outputs = story.generate(prompts, params, use_tqdm=False)
        assert [out.token_ids for output in outputs for out in output.outputs] == plain
        assert [req.output_ids for req in trace.state().requests.values()] == plain


def test_afterwards_even_after_an_exception_the_engine_is_as_it_was() -> None:
    engine = make_engine()
    owners = (engine, engine.scheduler, engine.radix_cache)
    before = [dict(vars(owner)) for owner in owners]
    with suppress(KeyError), record(engine) as trace:
        serve(engine, [1, 2, 3])
        raise KeyError
    assert [vars(owner).keys() for owner in owners] == [old.keys() for old in before]
    steps = len(trace)
    serve(engine, [1, 2, 3])
    assert len(trace) == steps == 4
    trace.stop()  # again: nothing left to do


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_recorders_at_once_do_not_disturb_each_other(first_ends_first: bool) -> None:
    engine = make_engine()
    before = [dict(vars(owner)) for owner in (engine, engine.scheduler)]
    recorders = [Recorder(engine), Recorder(engine)]
    serve(engine, [1, 2, 3])
    early, late = recorders if first_ends_first else recorders[::-1]
    early.stop()
    serve(engine, [1, 2, 4])
    assert_same(late.trace, engine)
    late.stop()
    assert [len(recorder.trace) for recorder in (early, late)] == [4, 8]
    assert [dict(vars(owner)).keys() for owner in (engine, engine.scheduler)] == [old.keys() for old in before]
    serve(engine, [1, 2, 5])
    assert len(late.trace) == 8


def test_no_request_node_or_engine_is_kept_alive() -> None:
    engine = make_engine()
    with record(engine) as trace:
        rid = engine.add_request([1, 2, 3], greedy(3))
        (req,) = engine.open_requests.groups[rid].reqs
        ended = weakref.ref(req)
        del req
        while engine.has_unfinished():
            engine.step()
        engine.last_batch, engine.scheduler.planned = None, []  # what the engine itself still looks at
        engine.scheduler.waiting._ranked = []
        gc.collect()
        assert ended() is None, "while the recording still goes on"
    assert trace.writer is None
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    assert trace.state().requests[0].output_ids == [4, 5, 6]


def test_an_event_costs_what_happened_not_the_size_of_pool_and_tree() -> None:
    """Function calls of a decode step, with a tree of 3 and of 300 nodes."""
    from tests.helpers.fakes import counted_calls

    def calls(num_prompts: int) -> int:
        engine = make_engine(slots=4096)
        serve(engine, *([i % V, i // V, 7] for i in range(num_prompts)), max_new_tokens=2)
        with record(engine):
            engine.add_request([1, 2, 3], greedy(8))
            engine.step()
            with counted_calls() as counted:
                engine.step()
        return sum(counted.values())

    assert calls(300) == calls(3)


# --- LLM(trace=True) and reading --------------------------------------------------------------------------------------


def test_an_llm_keeps_its_trace(checkpoint: Callable[..., Any]) -> None:
    llm = LLM(checkpoint("llama"), trace=True, max_running_requests=2)
    assert llm.trace is not None
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    llm.generate([[1, 2, 3]], params, use_tqdm=False)
    assert len(llm.trace) == 3
    assert repr(llm.trace) == "<Trace: 3 steps (1 EXTEND, 2 DECODE), 1 requests>"
    llm.trace.stop()
    llm.generate([[1, 2, 3]], params, use_tqdm=False)
    assert len(llm.trace) == 3
    assert LLM(checkpoint("llama"), max_running_requests=2).trace is None
    with pytest.raises(ValueError, match="trace='yes'"):
        LLM(checkpoint("llama"), trace="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [4, -4, 99])
def test_a_step_that_is_not_there_is_refused(step: int) -> None:
    engine = make_engine()
    with record(engine) as trace:
        serve(engine, [1, 2, 3], max_new_tokens=3)
    for read in (trace.step, trace.state, trace.describe):
        if (read, step) != (trace.state, -4):  # the beginning
            with pytest.raises(ValueError, match=rf"step={step}"):
                read(step)
