"""Episodes of one LLM that several threads use at once, while others abort, look, and try to step it by hand.

Which calls are made follows from the seed; how they meet does not, because the operating system decides that.
"""

import faulthandler
import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from nanoinfer import LLM, QueueFullError, StreamPiece
from tests.helpers.pressure import Oracle
from tests.helpers.tiny_llm import Job, check_completion, check_outputs, random_job, words
from tests.helpers.waiting import until

SECONDS = 120  # in which the threads of an episode must have ended
REFUSED = "this engine's own thread is serving requests"  # what a step by hand may be told


class Crowd:
    """An LLM and the threads that use it. Each method may be called from any of them."""

    failures: tuple[type[BaseException], ...] = ()  # what calls may raise because a pass has failed

    def __init__(self, llm: LLM, counts: Counter[str]):
        self.llm, self.counts = llm, counts
        self.aborted: set[int] = set()  # requests that one thread has aborted, maybe in vain
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function in a new thread; what it raises is raised by `join`."""

        def call() -> None:
            try:
                function(*args)
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=call, daemon=True))
        self._threads[-1].start()

    def join(self) -> None:
        """Until all threads have ended."""
        deadline = time.monotonic() + SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                faulthandler.dump_traceback(all_threads=True)
                raise AssertionError(f"a thread has not ended after {SECONDS} seconds")
        if self.errors:
            raise self.errors[0]

    def is_busy(self, others: int = 1) -> bool:
        """Whether more threads than `others` go on."""
        return sum(thread.is_alive() for thread in self._threads) > others

    def do(self, jobs: Sequence[Job]) -> None:
        """Make calls one after the other, and check what each gives."""
        for job in jobs:
            try:
                self.call(job)
                self.counts[job.how] += 1
            except QueueFullError:
                self.counts["refused"] += 1
            except self.failures:
                self.counts["step failed"] += 1

    def call(self, job: Job) -> None:
        llm, prompts, params = self.llm, job.prompts, job.params
        if job.how == "generate":
            texts = [words(prompt) if i % 2 else prompt for i, prompt in enumerate(prompts)]
            outputs = llm.generate(texts, params, use_tqdm=False, timeout_s=job.timeout_s)
            check_outputs(job, outputs, self._may_be_cut)
        elif job.how == "chat":
            chats = [[{"role": "user", "content": words(prompt)}] for prompt in prompts]
            check_outputs(job, llm.chat(chats, params, use_tqdm=False, timeout_s=job.timeout_s), self._may_be_cut)
        elif job.how == "stream_chat":
            chat = [{"role": "user", "content": words(prompts[0])}]
            self._read(job, llm.stream_chat(chat, params[0], timeout_s=job.timeout_s))
        else:
            self._read(job, llm.stream(prompts[0], params[0], timeout_s=job.timeout_s))

    def _read(self, job: Job, stream: Any) -> None:
        pieces: dict[int, list[StreamPiece]] = {}
        for number, piece in enumerate(stream):
            pieces.setdefault(piece.index, []).append(piece)
            if job.how == "drop" and number >= job.pieces:
                self._drop(stream, number)
                break
        for index, wanted in enumerate(job.wanted[0]):
            of_one = pieces.get(index, [])
            if not of_one:
                assert job.how == "drop"
                continue
            *before, last = of_one
            assert all(piece.finish_reason is None for piece in before), "pieces after the last one"
            tokens = [token for piece in of_one for token in piece.token_ids]
            cut = job.how == "drop" or job.timeout_s is not None or self._may_be_cut(last.request_id)
            check_completion(tokens, "".join(piece.text for piece in of_one), last.finish_reason, wanted, cut)

    def _drop(self, stream: Any, number: int) -> None:
        if number % 3 == 0:
            stream.close()
        elif number % 3 == 1:
            cycle: list[Any] = [stream]
            cycle.append(cycle)  # left for the garbage collector, which may run in any thread, at any time

    def _may_be_cut(self, request_id: int) -> bool:
        return request_id in self.aborted

    def meddle(self, seed: int, others: int) -> None:
        """Look, abort, flush, and try to step by hand, until only `others` threads like this one are left."""
        rng, engine = np.random.default_rng(seed), self.llm.engine
        while self.is_busy(others) and not self.errors:
            chance = rng.random()
            if chance < 0.3:
                engine.check_integrity()
            elif chance < 0.6:
                stats = engine.stats()
                slots = stats.free_slots + stats.evictable_slots + stats.protected_slots + stats.request_slots
                assert slots == stats.total_slots
            elif chance < 0.75:
                if request_ids := sorted(engine.loop.request_ids()):
                    request_id = request_ids[int(rng.integers(len(request_ids)))]
                    self.aborted.add(request_id)
                    output = engine.abort(request_id)
                    assert output is None or (output.finished and output.request_id == request_id)
                    self.counts["aborts"] += output is not None
            elif chance < 0.8:
                engine.flush_cache()
            else:
                self._step_by_hand()
            if rng.random() < 0.5:
                time.sleep(float(rng.uniform(0, 0.002)))

    def _step_by_hand(self) -> None:
        """Refused while requests are in flight; and otherwise there is nothing to do."""
        try:
            outputs = self.llm.engine.step()
        except RuntimeError as error:
            if REFUSED not in str(error):
                raise
            self.counts["steps refused"] += 1
        else:
            assert outputs == [], "a step by hand has taken the outputs of others"

    def check_all_free(self) -> None:
        """Nothing is left of any request."""
        gc.collect()
        engine = self.llm.engine
        until(lambda: not engine.loop.request_ids(), "the end of what was dropped")
        assert not self.llm._calls._calls, f"calls left: {self.llm._calls._calls}"
        assert not engine.has_unfinished()
        assert not engine.open_requests.groups
        assert engine.step() == []
        engine.check_integrity()
        engine.flush_cache()
        stats = engine.stats()
        assert (stats.free_slots, stats.waiting, stats.running) == (stats.total_slots, 0, 0)
        assert engine.model_runner.req_to_token_pool.available_size() == engine.config.max_running_requests


def random_jobs(
    rng: np.random.Generator, oracle: Oracle, prompts: Sequence[Sequence[int]], max_new_tokens: int, counts: list[int]
) -> list[list[Job]]:
    """For each thread so many calls."""
    return [[random_job(rng, oracle, prompts, max_new_tokens) for _ in range(count)] for count in counts]


@contextmanager
def hurry(rng: np.random.Generator) -> Iterator[None]:
    """Collect garbage, and go from thread to thread, more or less often."""
    before = gc.get_threshold(), sys.getswitchinterval()
    try:
        gc.set_threshold(int(rng.choice([50, 200, 700])))
        sys.setswitchinterval(float(rng.choice([1e-5, 1e-4, 5e-3])))
        yield
    finally:
        gc.set_threshold(*before[0])
        sys.setswitchinterval(before[1])


def run_episode(
    llm: LLM, rng: np.random.Generator, oracle: Oracle, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> Counter[str]:
    """2 to 8 threads, about 15 calls each; then some of the calls again, alone."""
    counts: Counter[str] = Counter()
    crowd = Crowd(llm, counts)
    jobs = random_jobs(rng, oracle, prompts, max_new_tokens, [15] * int(rng.integers(2, 9)))
    meddlers = int(rng.integers(0, 3))
    with hurry(rng):
        for of_one in jobs:
            crowd.start(crowd.do, of_one)
        for _ in range(meddlers):
            crowd.start(crowd.meddle, int(rng.integers(2**31)), meddlers)
        crowd.join()
    crowd.check_all_free()
    stats = llm.engine.stats()
    counts["steps"] = stats.extend_steps + stats.decode_steps
    again = Crowd(llm, Counter())
    again.do(jobs[0][:5])
    again.check_all_free()
    return counts
