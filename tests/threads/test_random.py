"""Many threads, and many coroutines, at random: every request gives what it gives alone."""

import asyncio
from collections import Counter
from threading import Event

import numpy as np
import pytest
import torch

from nanoinfer import LLM, AsyncEngine
from nanoinfer.model.loader import LoadedModel
from tests.helpers.async_engines import arrival, assert_all_free, following, idle, with_barrier
from tests.helpers.engines import V, greedy
from tests.helpers.pressure import VOCAB, Oracle
from tests.helpers.tiny_llm import make_llm_model, tiny_llm
from tests.helpers.waiting import Worker, run
from tests.soak.episodes.threads import Crowd, random_jobs

MAX_NEW_TOKENS = 12
THREADS, CALLS = 8, 50


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Oracle, list[list[int]]]:
    """The tiny model, transformers' opinion of it, and prompts that share beginnings."""
    path = tmp_path_factory.mktemp("tiny")
    stems = np.random.default_rng(7).integers(0, VOCAB, size=(2, 32)).tolist()
    prompts = [stem[:length] for stem in stems for length in (1, 4, 9, 16, 17, 32)]
    return make_llm_model(path), Oracle(path, MAX_NEW_TOKENS), prompts


def under_pressure(model: LoadedModel, **fields: object) -> LLM:
    """Slots for about three of the longest requests, of 8 that may run."""
    settings = {"max_running_requests": 8, "max_total_tokens": 128, "max_context_len": 48, "random_seed": 0}
    return tiny_llm(model, **settings, schedule_conservativeness=0.001, **fields)


@pytest.mark.soak
def test_400_calls_by_8_threads_give_the_tokens_that_each_gives_alone(
    tiny: tuple[LoadedModel, Oracle, list[list[int]]],
) -> None:
    model, oracle, prompts = tiny
    rng = np.random.default_rng(1)
    jobs = random_jobs(rng, oracle, prompts, MAX_NEW_TOKENS, [CALLS] * THREADS)
    llm, counts = under_pressure(model, chunked_prefill_size=16), Counter[str]()
    crowd = Crowd(llm, counts)
    for of_one in jobs:
        crowd.start(crowd.do, of_one)
    crowd.start(crowd.meddle, 2, 1)
    crowd.join()
    crowd.check_all_free()
    assert sum(counts[how] for how in ("generate", "chat", "stream", "stream_chat", "drop")) == THREADS * CALLS
    stats = llm.engine.stats()
    assert counts["aborts"] > 0
    assert stats.evicted_tokens > 0
    # Served together: far fewer passes than tokens.
    assert stats.decode_steps < stats.output_tokens / 2
    alone = Crowd(llm, Counter())  # the tree holds what the threads have computed
    alone.do(jobs[0])
    alone.check_all_free()


@pytest.mark.soak
def test_no_thread_is_kept_waiting_for_ever_by_those_that_look(
    tiny: tuple[LoadedModel, Oracle, list[list[int]]],
) -> None:
    """Visits go before steps, but not endlessly."""
    model, oracle, prompts = tiny
    llm, over = under_pressure(model), Event()
    crowd = Crowd(llm, Counter())
    jobs = random_jobs(np.random.default_rng(3), oracle, prompts, MAX_NEW_TOKENS, [10])

    def look() -> None:
        while not over.is_set():
            llm.engine.stats()

    lookers = [Worker(look) for _ in range(4)]
    try:
        crowd.start(crowd.do, jobs[0])
        crowd.join()
    finally:
        over.set()
    for looker in lookers:
        looker.result()
    crowd.check_all_free()


COROUTINES = 64


async def one(front: AsyncEngine, prompt: list[int], count: int, how: int, after: int) -> str:
    """A request of `count` tokens. `how`: 0 not streamed, 1 closed, 2 aborted after `after` tokens, 3 read to its end."""
    wanted = following(prompt[-1], count)
    if how == 0:
        assert (await front.generate(prompt, greedy(count))).token_ids == wanted
        return "finished"
    tokens: list[int] = []
    stream = await front.add(prompt, greedy(count))
    async for piece in stream:
        tokens += piece.token_ids
        assert tokens == wanted[: len(tokens)]
        if how == 1 and len(tokens) >= after:
            stream.close()
            return "closed"
        if how == 2 and len(tokens) >= after:
            await front.abort(stream.request_id)
    assert how == 2 or tokens == wanted
    return str((await stream.output()).finish_reason)


def check_coroutines(seed: int, pass_by_pass: bool) -> None:
    """Tiny pools, so that requests are evicted and retracted, too. Who is not cancelled gets exactly the right tokens.

    `pass_by_pass`: a pass is made between two cancels, and no other.
    """
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    async def test() -> None:
        engine, barrier = with_barrier(
            not pass_by_pass,
            slots=96,
            rows=8,
            chunked_prefill_size=16,
            schedule_conservativeness=0.001,
            page_size=(1, 4)[seed % 2],
        )
        async with AsyncEngine(engine) as front:
            tasks = []
            for _ in range(COROUTINES):
                prompt = [*range(integer(0, 30)), integer(0, V)]
                job = one(front, prompt, integer(1, 30), how=integer(0, 4), after=integer(1, 10))
                tasks.append(asyncio.create_task(job))
                if integer(0, 4) == 0:
                    await asyncio.sleep(0)
            if pass_by_pass:
                await arrival(barrier, 1)
            cancelled = set()
            for _ in range(16):
                i, seen = integer(0, COROUTINES), barrier.arrivals
                if tasks[i].cancel():
                    cancelled.add(i)
                looking = asyncio.create_task(front.check_integrity())
                await asyncio.sleep(0)  # both are posted
                if pass_by_pass:
                    barrier.let_one_through()
                    await arrival(barrier, seen + 1)
                await looking
            barrier.open()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for i, result in enumerate(results):
                if isinstance(result, BaseException):
                    assert isinstance(result, asyncio.CancelledError), result
                    assert i in cancelled
            assert sum(isinstance(result, str) for result in results) >= COROUTINES - 16
            await idle(front)
            stats = await front.stats()
            assert stats.failed == 0
            assert stats.finished + stats.aborted <= COROUTINES
        assert_all_free(engine)

    run(test)


@pytest.mark.parametrize("seed", range(2))
def test_64_coroutines_of_which_some_are_cancelled_between_two_passes(seed: int) -> None:
    check_coroutines(seed, pass_by_pass=True)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_64_coroutines_of_which_some_are_cancelled_at_any_moment(seed: int) -> None:
    check_coroutines(seed, pass_by_pass=False)
