"""An LLM that several threads use at once, while others abort, look, and try to step it manually (clients.py has its
episodes); and episodes in which a signal handler raises at random moments in the main thread.

Which calls are made follows from the seed; how they meet does not, because the operating system decides that.
"""

import faulthandler
import gc
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import jinja2.debug  # noqa: F401 - jinja2 does it when a template fails, and an alarm there would leave it half imported
import numpy as np

import nanoinfer
from nanoinfer import LLM, QueueFullError, StreamPiece
from tests.helpers.pressure import Oracle
from tests.helpers.tiny_llm import Job, check_completion, check_outputs, random_job, words
from tests.helpers.waiting import until

SECONDS = 120  # in which the threads of an episode must have ended
REFUSED = "this engine's own thread is serving requests"  # what a manual step may be told
PACKAGE = str(Path(nanoinfer.__file__).parent)
ALARMED_CALLS = 60


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
        pieces = list[StreamPiece]()
        for number, piece in enumerate(stream):
            pieces.append(piece)
            if job.how == "drop" and number >= job.pieces:
                self._drop(stream, number)
                break
        cut = job.how == "drop" or job.timeout_s is not None or self._may_be_cut(pieces[0].request_id)
        self._check_pieces(pieces, job.wanted[0], cut, job.how == "drop")

    def _check_pieces(
        self, pieces: Sequence[StreamPiece], wanted: Sequence[list[int]], cut: bool, is_dropped: bool = False
    ) -> None:
        for index, its_wanted in enumerate(wanted):
            of_one = [piece for piece in pieces if piece.index == index]
            if is_dropped and not of_one:
                continue
            *before, last = of_one
            assert all(piece.finish_reason is None for piece in before), "pieces after the last one"
            tokens = [token for piece in of_one for token in piece.token_ids]
            check_completion(tokens, "".join(piece.text for piece in of_one), last.finish_reason, its_wanted, cut)

    def _drop(self, stream: Any, number: int) -> None:
        if number % 3 == 0:
            stream.close()
        elif number % 3 == 1:
            cycle: list[Any] = [stream]
            cycle.append(cycle)  # left for the garbage collector, which may run in any thread, at any time

    def _may_be_cut(self, request_id: int) -> bool:
        return request_id in self.aborted

    def meddle(self, seed: int, others: int) -> None:
        """Look, abort, flush, and try to step manually, until only `others` threads like this one are left."""
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
                self._step_manually()
            if rng.random() < 0.5:
                time.sleep(float(rng.uniform(0, 0.002)))

    def _step_manually(self) -> None:
        """Refused while requests are in flight; and otherwise there is nothing to do."""
        try:
            outputs = self.llm.engine.step()
        except RuntimeError as error:
            if REFUSED not in str(error):
                raise
            self.counts["steps refused"] += 1
        else:
            assert outputs == [], "a manual step has taken the outputs of others"

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


def end_of_episode(crowd: Crowd, jobs: Sequence[Job]) -> None:
    """Nothing is left, and the LLM serves `jobs` alone."""
    crowd.check_all_free()
    stats = crowd.llm.engine.stats()
    crowd.counts["steps"] = stats.extend_steps + stats.decode_steps
    again = Crowd(crowd.llm, Counter())
    again.do(jobs)
    again.check_all_free()


# --- alarms ----------------------------------------------------------------------------------------------------------


class Alarm(BaseException):
    """What the handler raises. KeyboardInterrupt and SystemExit are no Exception either."""


class AlarmError(TimeoutError):
    """What the handler raises in other episodes: an Exception, as in the usual timeout recipe."""


class Alarms:
    """A handler of SIGALRM. It raises only where code of nanoinfer is running, so that the harness is never cut in two."""

    def __init__(self, rng: np.random.Generator):
        self.rng, self.armed, self.count = rng, False, 0
        self.kind = (Alarm, AlarmError)[int(rng.integers(2))]
        self.scale = float(rng.choice([2e-4, 1e-3, 5e-3]))  # seconds to an alarm

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.armed and in_package(sys._getframe(1)):
            self.count += 1
            raise self.kind("time is up")

    def attempt(self, call: Callable[[], Any], storm: bool = False) -> Any:
        """What a call returns; None if an alarm ended it. In a `storm`, others may come after the first one."""
        delay = max(1e-6, float(self.rng.exponential(self.scale)))
        again = max(3e-4, self.scale * float(self.rng.random())) if storm else 0.0
        try:
            self.armed = True
            signal.setitimer(signal.ITIMER_REAL, delay, again)
            return call()
        except (Alarm, AlarmError):
            return None
        except (RuntimeError, KeyError) as error:  # threading's own, interrupted while a thread starts
            if isinstance(error.__context__, self.kind):
                return None
            raise
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)


def in_package(frame: FrameType | None) -> bool:
    """Whether code of nanoinfer is being run, or what it calls.

    Not while Python imports a module: an exception there may leave the module's lock taken for ever.
    """
    is_running = False
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return False
        is_running = is_running or frame.f_code.co_filename.startswith(PACKAGE)
        frame = frame.f_back
    return is_running


@contextmanager
def installed(alarms: Alarms) -> Iterator[None]:
    """The handler; and nothing printed for what it raises where Python cannot raise (in finalizers)."""
    before, hook = signal.signal(signal.SIGALRM, alarms), sys.unraisablehook
    sys.unraisablehook = lambda it: None if isinstance(it.exc_value, Alarm | AlarmError) else hook(it)
    try:
        yield
        assert signal.getsignal(signal.SIGALRM) is alarms, "another handler"
    finally:
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook


def manual_steps(llm: LLM, alarms: Alarms, jobs: Sequence[Job]) -> None:
    """Add requests and step under alarms, each of which may reset the engine: whatever comes out is right."""
    engine, jobs_by_id = llm.engine, dict[int, Job]()

    def step(alarmed: bool) -> None:
        for output in alarms.attempt(engine.step) or [] if alarmed else engine.step():
            if job := jobs_by_id.get(output.request_id):  # or the call that has added it was interrupted
                for completion, wanted in zip(output.outputs, job.wanted[0], strict=True):
                    tokens = completion.token_ids
                    text = completion.text if output.error is None else words(tokens)  # the last token's may be missing
                    check_completion(tokens, text, completion.finish_reason, wanted, may_be_cut=True)

    for job in jobs:
        request_id = alarms.attempt(lambda job=job: engine.add_request(job.sent[0], job.params[0]))
        if request_id is not None:
            jobs_by_id[request_id] = job
        engine.check_integrity()
        step(alarmed=True)
        engine.check_integrity()
    while engine.has_unfinished():
        step(alarmed=False)


def run_alarms(
    llm: LLM, rng: np.random.Generator, oracle: Oracle, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> Counter[str]:
    """Calls of the main thread that alarms end, beside those of other threads, which never see one; or manual steps."""
    counts: Counter[str] = Counter()
    crowd, alarms = Crowd(llm, counts), Alarms(rng)
    storm = rng.random() < 0.3
    workers = int(rng.integers(0, 4))
    *others, mine = random_jobs(rng, oracle, prompts, max_new_tokens, [15] * workers + [ALARMED_CALLS])
    with installed(alarms):
        if not workers and llm.config.max_queue is None:
            manual_steps(llm, alarms, mine)
        for of_one in others:
            crowd.start(crowd.do, of_one)
        for job in mine:
            alarms.attempt(lambda job=job: crowd.do([job]), storm)
            with llm.engine.visit():
                llm.engine.check_integrity()
                assert llm.engine.loop.request_ids() == llm._calls._calls.keys(), "the loop and its client disagree"
        crowd.join()
    counts["alarms"] = alarms.count
    end_of_episode(crowd, mine[:5])
    return counts
