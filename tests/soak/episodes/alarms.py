"""Episodes in which a signal handler raises at random moments while the main thread uses an engine and its LLM.

What a handler raises ends the call of the LLM that it interrupts, and nothing else: calls of other threads never see it.
In a step or a change by hand, which only episodes without other threads make, it may reset the engine: then every request
has ended with the alarm. The alarm raises only where nanoinfer's code is running: what the harness itself knows is never
cut in two. Which calls are made follows from the seed; where an alarm strikes does not, because the operating system's
timer decides that.
"""

import gc
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import jinja2.debug  # noqa: F401 - jinja2 does it when a template fails, and an alarm there would leave it half imported
import numpy as np

import nanoinfer
from nanoinfer import LLM, QueueFullError, RequestOutput
from tests.helpers.pressure import Oracle
from tests.helpers.tiny_llm import Job, check_completion, random_job, words
from tests.helpers.waiting import until
from tests.soak.episodes.threads import REFUSED, Crowd, random_jobs

PACKAGE = str(Path(nanoinfer.__file__).parent)
CALLS = 60


class Alarm(BaseException):
    """What the handler raises. KeyboardInterrupt and SystemExit are no Exception either."""


class AlarmError(TimeoutError):
    """What the handler raises in other episodes: an Exception, as in the usual timeout recipe."""


def interrupted(error: BaseException | None) -> bool:
    """Whether an alarm is the reason."""
    return isinstance(error, Alarm | AlarmError)


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


class Handler:
    """For SIGALRM: raises `kind` while it is `armed` and code of nanoinfer is being run."""

    def __init__(self, kind: type[BaseException]):
        self.kind, self.armed, self.count = kind, False, 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.armed and in_package(sys._getframe(1)):
            self.count += 1
            raise self.kind("time is up")


@contextmanager
def installed(handler: Handler) -> Iterator[None]:
    """The handler of SIGALRM; and nothing printed for what it raises where Python cannot raise (in finalizers)."""
    before, hook = signal.getsignal(signal.SIGALRM), sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None if interrupted(unraisable.exc_value) else hook(unraisable)
    signal.signal(signal.SIGALRM, handler)
    try:
        yield
        assert signal.getsignal(signal.SIGALRM) is handler, "another handler"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook


class Alarmed:
    """An LLM, its engine driven by hand beside it, and what the main thread knows of its requests."""

    def __init__(self, llm: LLM, rng: np.random.Generator, counts: Counter[str]):
        self.llm, self.engine, self.rng, self.counts = llm, llm.engine, rng, counts
        self.handler = Handler((Alarm, AlarmError)[int(rng.integers(2))])
        self.open: dict[int, Job] = {}  # by hand, and not ended
        self.storm = rng.random() < 0.3  # alarms come again and again during a call of the LLM
        self.scale = float(rng.choice([2e-4, 1e-3, 5e-3]))  # seconds to an alarm

    def attempt(self, call: Callable[[], Any], storm: bool = False) -> tuple[Any, bool]:
        """What a call returns, and whether an alarm ended it; in a `storm` after more alarms, it may be."""
        delay = max(1e-6, float(self.rng.exponential(self.scale)))
        again = max(3e-4, self.scale * float(self.rng.random())) if storm else 0.0
        try:
            self.handler.armed = True
            signal.setitimer(signal.ITIMER_REAL, delay, again)
            return call(), False
        except (Alarm, AlarmError):
            self.counts["interrupted"] += 1
            return None, True
        finally:
            self.handler.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def add(self, job: Job) -> None:
        """By hand."""
        job.prompts, job.params, job.wanted = job.prompts[:1], job.params[:1], job.wanted[:1]
        try:
            rid, cut = self.attempt(lambda: self.engine.add_request(job.sent[0], job.params[0]))
        except QueueFullError:
            return
        if not cut:
            self.open[rid] = job
        self.counts["added"] += not cut
        self.check()

    def step(self) -> None:
        """By hand; refused while calls are in flight."""
        try:
            outputs, _ = self.attempt(self.engine.step)
        except RuntimeError as error:
            if REFUSED not in str(error):
                raise
            return
        self.look_at(outputs or [])
        self.check()

    def abort(self) -> None:
        """One of those that were added by hand."""
        rid = int(self.rng.choice(list(self.open)))
        output, _ = self.attempt(lambda: self.engine.abort(rid))
        self.look_at([] if output is None else [output])
        self.check()

    def look_at(self, outputs: Sequence[RequestOutput]) -> None:
        """Outputs of requests that were added by hand: each ends once, with its tokens."""
        for output in outputs:
            job = self.open[output.request_id]
            assert output.error is None or interrupted(output.error)
            for completion, wanted in zip(output.outputs, job.wanted[0], strict=True):
                reason, text = completion.finish_reason, completion.text
                if output.error is not None:  # the text of its last token may be missing
                    text = words(completion.token_ids)
                check_completion(completion.token_ids, text, reason, wanted, may_be_cut=True)
            if output.finished:
                del self.open[output.request_id]
                self.counts["ended by hand"] += 1

    def call(self, crowd: Crowd, job: Job) -> None:
        """A call of the LLM: its requests are gone when an alarm has ended it."""
        self.attempt(lambda: crowd.do([job]), self.storm)
        self.check()

    def check(self) -> None:
        """Every slot has one owner. Of the requests by hand that are known to be open, those that are not any more have
        ended with an alarm, and their outputs wait for a step; and nobody else's are open."""
        with self.engine.visit():
            self.engine.check_integrity()
            of_calls = self.engine.loop.request_ids()
            assert of_calls == self.llm._calls._calls.keys(), "the loop and its client disagree"
            by_hand = self.engine.open_requests.ids() - of_calls
            if lost := by_hand - self.open.keys():  # added, and interrupted before that was known
                for request_id in lost:
                    self.engine.abort(request_id)
            gone = self.open.keys() - by_hand  # the outputs of a step that was interrupted
            for request_id in gone:
                del self.open[request_id]


def run_episode(
    llm: LLM, rng: np.random.Generator, oracle: Oracle, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> Counter[str]:
    """About CALLS calls of the main thread; in half of the episodes, while other threads make calls, too."""
    counts: Counter[str] = Counter()
    world = Alarmed(llm, rng, counts)
    workers = int(rng.integers(1, 4)) if rng.random() < 0.5 else 0
    crowd = Crowd(llm, counts)
    jobs = random_jobs(rng, oracle, prompts, max_new_tokens, [15] * workers)
    mine = [random_job(rng, oracle, prompts, max_new_tokens) for _ in range(CALLS)]
    with installed(world.handler):
        for of_one in jobs:
            crowd.start(crowd.do, of_one)
        for job in mine:
            chance = rng.random()
            if workers or chance > 0.7:
                world.call(crowd, job)
            elif chance < 0.3:
                world.add(job)
            elif chance < 0.6 or not world.open:
                world.step()
            else:
                world.abort()
        crowd.join()
        gc.collect()  # dropped streams
        until(lambda: not llm.engine.loop.request_ids(), "the end of calls that were interrupted")
        while llm.engine.has_unfinished():
            world.look_at(llm.engine.step())
        assert not world.open, f"requests {list(world.open)} have not ended"
    crowd.check_all_free()
    stats = llm.engine.stats()
    counts["alarms"] = world.handler.count
    counts["steps"] = stats.extend_steps + stats.decode_steps
    again = Crowd(llm, Counter())
    again.do(mine[:5])
    again.check_all_free()
    return counts
