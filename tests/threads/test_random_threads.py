"""One LLM and many threads, at random: every call gives what it gives alone."""

from collections import Counter
from threading import Event

import numpy as np
import pytest

from nanoinfer import LLM
from nanoinfer.model.loader import LoadedModel
from tests.helpers.pressure import VOCAB, Oracle
from tests.helpers.tiny_llm import make_llm_model, tiny_llm
from tests.helpers.waiting import Worker
from tests.soak.episodes import alarms, threads
from tests.soak.episodes.threads import Crowd, random_jobs

pytestmark = pytest.mark.soak

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


@pytest.mark.parametrize("seed", range(2))
def test_the_threads_of_the_soak(tiny: tuple[LoadedModel, Oracle, list[list[int]]], seed: int) -> None:
    model, oracle, prompts = tiny
    llm = under_pressure(model, page_size=(1, 4)[seed])
    counts = threads.run_episode(llm, np.random.default_rng(seed), oracle, prompts, MAX_NEW_TOKENS)
    assert counts["generate"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_the_alarms_of_the_soak(tiny: tuple[LoadedModel, Oracle, list[list[int]]], seed: int) -> None:
    model, oracle, prompts = tiny
    llm = under_pressure(model, page_size=(1, 4, 2)[seed])
    counts = alarms.run_episode(llm, np.random.default_rng(seed), oracle, prompts, MAX_NEW_TOKENS)
    assert counts["alarms"] > 0


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
