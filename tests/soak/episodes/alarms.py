"""Episodes in which a signal handler raises at random moments while the main thread uses an engine and its LLM.

What a handler raises ends the call that it interrupts, and nothing else: calls of other threads never see it. The alarm
raises only where nanoinfer's code is running: what the harness itself knows is never cut in two. Which calls are made
follows from the seed; where an alarm strikes does not, because the operating system's timer decides that.
"""

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
from nanoinfer import LLM, QueueFullError, RequestOutput, SamplingParams
from nanoinfer.frontends.calls import Call
from nanoinfer.threads import signals
from tests.helpers.pressure import Oracle
from tests.helpers.tiny_llm import Job, check_completion, random_job
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
    handlers = {number: signal.getsignal(number) for number in signals.SIGNALS}
    hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None if interrupted(unraisable.exc_value) else hook(unraisable)
    signal.signal(signal.SIGALRM, handler)
    try:
        yield
        with signals.uninterrupted():  # brings back what a storm has left
            pass
        assert signals._active is None, "a shield is left"
        for number, before in handlers.items():
            assert signal.getsignal(number) is (handler if number == signal.SIGALRM else before), "a handler is left"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handlers[signal.SIGALRM])
        sys.unraisablehook = hook


def _calls_alive() -> list[Call]:
    return [it for it in gc.get_objects() if isinstance(it, Call)]


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
        """By hand. When it raises, nothing has been queued."""
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
        output, cut = self.attempt(lambda: self.engine.abort(rid))
        assert cut or output is not None, "an output was lost"
        self.look_at([] if cut else [output])
        self.check()

    def look_at(self, outputs: Sequence[RequestOutput]) -> None:
        """Outputs of requests that were added by hand: each ends once, with its tokens."""
        for output in outputs:
            job = self.open[output.request_id]
            assert output.error is None or interrupted(output.error)
            for completion, wanted in zip(output.outputs, job.wanted[0], strict=True):
                reason = completion.finish_reason
                check_completion(completion.token_ids, completion.text, reason, wanted, may_be_cut=True)
            if output.finished:
                del self.open[output.request_id]
                self.counts["ended by hand"] += 1

    def call(self, crowd: Crowd, job: Job) -> None:
        """A call of the LLM: its requests are gone when an alarm has ended it."""
        _, cut = self.attempt(lambda: crowd.do([job]), self.storm)
        self.check()
        for _ in range(1000):
            if not (left := self._in_flight()):
                return
            if self.storm:  # an alarm has kept it from being closed, and the last pass keeps what was raised
                self.llm.generate([1], SamplingParams(max_new_tokens=1, temperature=0.0))
            gc.collect()  # or a stream was dropped
            time.sleep(0.01)  # or another thread still has what was raised
        held_by = [type(it).__name__ for call in _calls_alive() for it in gc.get_referrers(call)]
        raise AssertionError(f"requests {left} of a call that is over ({job.how}, {cut=}, held by {held_by})")

    def _in_flight(self) -> list[int]:
        """The requests of calls of this thread."""
        with self.engine.turns.visit():
            calls = {request_id: reference() for request_id, reference in self.llm._calls._calls.items()}
            me = threading.current_thread()
            return [request_id for request_id, call in calls.items() if call is not None and call.thread is me]

    def check(self) -> None:
        """Exactly the requests known to be open are, beside those of calls, and these are the loop's; every slot has one
        owner."""
        with self.engine.turns.visit():
            self.engine.check_integrity()
            of_calls = self.engine.loop.request_ids()
            assert of_calls == self.llm._calls._calls.keys(), "the loop and its door disagree"
            by_hand = self.engine.open_requests.ids() - of_calls
            assert by_hand == self.open.keys(), f"open: {by_hand}, known: {self.open.keys()}"
        assert signals._active is None, "a shield is left"


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
            if chance < 0.3:
                world.add(job)
            elif chance < 0.6:
                world.step()
            elif chance < 0.7 and world.open:
                world.abort()
            else:
                world.call(crowd, job)
        crowd.join()
        gc.collect()  # dropped streams
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
