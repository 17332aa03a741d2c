"""What threads do and when: steps of an engine, callbacks of event loops, and nothing is watched afterwards."""

import asyncio

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.frontends.async_engine import AsyncEngine
from notebooks.course.thread_spans import COROUTINES, STEP, thread_spans


def test_steps_and_callbacks_are_noted_with_their_threads_and_put_back() -> None:
    llm, run = LLM("story", max_total_tokens=256), asyncio.Handle._run
    params = SamplingParams(max_new_tokens=5, temperature=0, ignore_eos=True)

    async def write() -> None:
        async with AsyncEngine(llm) as engine:
            await engine.generate([5, 6, 7], params)

    with thread_spans(llm.engine) as spans:
        asyncio.run(write())
    steps = [thread for thread, kind, _, _ in spans if kind == STEP]
    assert steps == ["nanoinfer-engine"] * 5
    callbacks = {thread for thread, kind, _, _ in spans if kind == COROUTINES}
    assert "MainThread" in callbacks, "other event loops of this process may be there as well"
    assert all(start <= end for _, _, start, end in spans)
    assert asyncio.Handle._run is run
    assert "make_step" not in vars(llm.engine)


def test_what_was_changed_is_put_back_after_an_error_too() -> None:
    llm, run = LLM("story", max_total_tokens=256), asyncio.Handle._run
    with pytest.raises(KeyError), thread_spans(llm.engine):
        raise KeyError
    assert asyncio.Handle._run is run
    assert "make_step" not in vars(llm.engine)
