"""StepGuard: everything that has to happen around a pass, so that the code of the pass itself stays simple."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from nanoinfer.engine.stats import StepMeter, log_step
from nanoinfer.model.input_metadata import ForwardMode
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.open_requests import OpenRequests
from nanoinfer.requests.outputs import RequestOutput, Update, made
from nanoinfer.requests.req import FinishReason
from nanoinfer.scheduling.batch import Batch
from nanoinfer.scheduling.scheduler import Scheduler
from nanoinfer.threads.signals import raised_by_handler, uninterrupted
from nanoinfer.threads.turns import Turns


class Loop(Protocol):
    """What owns an engine that requests reach through doors: an EngineLoop. All of it is called during a turn."""

    is_stepping: bool

    def has_work(self) -> bool:
        """True while a request of a door has something to do."""

    def request_ids(self) -> set[int]:
        """The requests of doors that have not ended. May be called at any time."""

    def deliver(self, updates: Sequence[Update]) -> list[RequestOutput]:
        """Hand out updates to the doors of their requests; returns the outputs of requests that were added by hand."""

    def wake(self) -> None:
        """Have it look whether there is work. May be called at any time."""


class NoLoop:
    """Of an engine that is only driven by hand."""

    is_stepping = False

    def has_work(self) -> bool:
        return False

    def request_ids(self) -> set[int]:
        return set()

    def deliver(self, updates: Sequence[Update]) -> list[RequestOutput]:
        return [made(update) for update in updates]

    def wake(self) -> None: ...


class StepGuard:
    """Keeps the promises that an engine makes about its steps, whatever happens in a pass:

    - Signal handlers wait, except where the pass lets them in (threads/signals.py).
    - Requests whose time is up end before the step's first pass.
    - When a pass raises, its requests end and their slots are freed. The others are untouched, and the next step
      continues with them. If even that is cut short, the requests of the pass end at the start of the next step. No
      request ever continues after a pass that did not finish, because its K/V may be missing.
    - When the runner is broken, so that no pass can be made any more, all requests end, with its reason.
    - Outputs that callers have not seen yet are kept until a step delivers them.
    - One thread at a time is in the engine (threads/turns.py). During a pass, nothing may change the requests of that pass.
    - Each pass is timed, counted and logged.
    """

    def __init__(
        self, scheduler: Scheduler, open_requests: OpenRequests, runner: ModelRunner, clock: Callable[[], float]
    ):
        self.meter, self.turns = StepMeter(), Turns()
        self.loop: Loop = NoLoop()
        self._runner = runner
        self._scheduler, self._open, self._clock = scheduler, open_requests, clock
        self._in_pass = False  # True from the start of a pass until its requests have their tokens or have ended
        self._error: BaseException | None = None  # what an unfinished pass raised, if it is known

    def step(self, one_pass: Callable[[], Batch | None], check: Callable[[], None]) -> list[RequestOutput]:
        """Make one pass and return the outputs of requests that were added by hand; others go to the doors of the loop.

        `check` is called first, in the same turn. Raises what it, the pass or a delayed signal handler raises.
        """

        def checked() -> list[Update]:
            check()
            return self._guarded(one_pass)

        return self.hand_out(checked, only_by_hand=True)

    def hand_out(self, outputs_of: Callable[[], Sequence[Update]], only_by_hand: bool = False) -> list[RequestOutput]:
        """Call a function without interruptions, and return its outputs to the caller; doors of the loop get theirs, too.
        If it raises, or a delayed signal handler does, the caller does not get its outputs, and the next step returns
        them. RuntimeError inside a pass.
        """
        by_hand: list[RequestOutput] = []
        try:
            with self.turns.visit():
                self.turns.check_between_passes()
                updates = outputs_of()
                by_hand = self.loop.deliver(updates)
            return by_hand if only_by_hand else [made(update) for update in updates]
        except BaseException:  # a handler may raise until after the return
            if by_hand:
                with self.turns.visit(let_handlers_in=False):
                    self._open.hold_again(by_hand)
            self.loop.wake()  # outputs that are held may be of its doors
            raise

    def _guarded(self, one_pass: Callable[[], Batch | None]) -> list[Update]:
        started = self._clock()
        self._end_unfinished_pass()
        self.end(self._open.overdue(started), FinishReason.TIMEOUT, "timed_out")
        self._pass(one_pass, started)
        while self._scheduler.passes_left:  # only with num_scheduler_steps > 1
            self._pass(one_pass, self._clock())
        return self._open.deliver_updates()

    def _pass(self, one_pass: Callable[[], Batch | None], started: float) -> None:
        """Make one pass of a step, which counts as having begun at `started`."""
        retracted = self._scheduler.retractions
        self._in_pass = self.turns.is_computing = True
        try:
            batch = one_pass()
        except BaseException as error:
            self.turns.is_computing, self._error = False, error
            with uninterrupted():  # even if it was raised while handlers were let in
                self._end_unfinished_pass()
                if self._runner.broken is not None:
                    self.end(list(self._open.groups), FinishReason.ABORT, "failed", self._runner.broken)
            raise
        self._in_pass = self.turns.is_computing = False
        if batch is not None:
            seconds = self._clock() - started
            self.meter.add(batch.forward_mode is ForwardMode.EXTEND, batch.num_sampled, seconds)
            retracted = self._scheduler.retractions - retracted
            log_step(batch, self._scheduler, self.meter, self._runner, retracted, seconds)

    def end(
        self, request_ids: Iterable[int], reason: FinishReason, counted_as: str, error: BaseException | None = None
    ) -> None:
        """End those of the requests that are open, and keep their last outputs for the next delivery."""
        groups = [self._open.groups[request_id] for request_id in request_ids if request_id in self._open.groups]
        finished = [group for group in groups if group.finished]  # their outputs could not be collected
        self._scheduler.end([req for group in groups for req in group.reqs], reason, error)
        self._open.remove(finished, "finished")
        self._open.remove([group for group in groups if group not in finished], counted_as)
        self._open.hold([group.output() for group in groups])

    def _end_unfinished_pass(self) -> None:
        if self._in_pass:
            failed = dict.fromkeys(req.request_id for req in self._scheduler.planned)
            stopped = self._error is not None and raised_by_handler(self._error)  # by Ctrl-C, for example
            self.end(failed, FinishReason.ABORT, "aborted" if stopped else "failed", self._error)
            self._in_pass, self._error = False, None
