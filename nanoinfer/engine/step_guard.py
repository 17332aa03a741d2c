"""StepGuard: everything that has to happen around a pass, so that the code of the pass itself stays simple."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from nanoinfer.engine.by_hand import Loop, NoLoop
from nanoinfer.engine.stats import StepMeter, log_step
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.open_requests import OpenRequests
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.req import FinishReason
from nanoinfer.requests.request_group import Update, made
from nanoinfer.scheduling.batch import Batch
from nanoinfer.scheduling.scheduler import Scheduler
from nanoinfer.threads.signals import raised_by_handler, uninterrupted
from nanoinfer.threads.turns import Turns


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
        self.around_step: Callable[[], AbstractContextManager[object]] = nullcontext  # what a trace sees of a step
        self._runner = runner
        self._scheduler, self._open, self._clock = scheduler, open_requests, clock
        self._in_pass = False  # True from the start of a pass until its requests have their tokens or have ended
        self._error: BaseException | None = None  # what an unfinished pass raised, if it is known

    def step(self, one_pass: Callable[[], Batch | None], check: Callable[[], None]) -> list[RequestOutput]:
        """Make one pass and return the outputs of requests that were added by hand; others go to the doors of the loop.

        `check` is called first, in the same turn. Raises what it, the pass or a delayed signal handler raises.
        """
        by_hand: list[RequestOutput] = []
        try:
            with self.turns.visit():
                self.turns.check_between_passes()
                check()
                with self.around_step():
                    started = self._clock()
                    self._end_unfinished_pass()
                    self.end(self._open.overdue(started), FinishReason.TIMEOUT, "timed_out")
                    goes_on = True
                    while goes_on:  # for several passes only with num_scheduler_steps > 1
                        before = self._scheduler.retractions, self._scheduler.output_tokens
                        with self._pass():
                            batch = one_pass()
                        self._note(batch, started, *before)
                        started, goes_on = self._clock(), self._scheduler.passes_left > 0
                    updates = self._open.deliver_updates()
                by_hand = self.loop.deliver(updates)
            return by_hand  # noqa: RET504 (a handler may raise until after the return)
        except BaseException:
            self._keep(by_hand)
            raise

    def hand_out(self, updates_of: Callable[[], Sequence[Update]]) -> list[RequestOutput]:
        """Call a function without interruptions, and return its outputs; doors of the loop get theirs, too.

        If it raises, or a delayed signal handler does, the caller does not get its outputs, and the next step returns them.
        RuntimeError inside a pass.
        """
        by_hand: list[RequestOutput] = []
        try:
            with self.turns.visit():
                self.turns.check_between_passes()
                updates = updates_of()
                by_hand = self.loop.deliver(updates)
            return [made(update) for update in updates]
        except BaseException:
            self._keep(by_hand)
            raise

    def _keep(self, by_hand: Sequence[RequestOutput]) -> None:
        """The next step returns these outputs, which nobody has got."""
        if by_hand:
            with self.turns.visit(let_handlers_in=False):
                self._open.hold_again(by_hand)
        self.loop.wake()  # outputs that are held may be of its doors

    @contextmanager
    def _pass(self) -> Iterator[None]:
        """Around a pass: when it raises, its requests end."""
        self._in_pass = self.turns.is_computing = True
        try:
            yield
        except BaseException as error:
            self.turns.is_computing, self._error = False, error
            with uninterrupted():  # even if it was raised while handlers were let in
                self._end_unfinished_pass()
                if self._runner.broken is not None:
                    self.end(list(self._open.groups), FinishReason.ABORT, "failed", self._runner.broken)
            raise
        self._in_pass = self.turns.is_computing = False

    def _note(self, batch: Batch | None, started: float, retractions: int, output_tokens: int) -> None:
        """Count and log a pass that counts as having begun at `started`, when there had been so many of both."""
        if batch is not None:
            seconds, scheduler = self._clock() - started, self._scheduler
            self.meter.add(batch, scheduler.output_tokens - output_tokens, seconds)
            log_step(batch, scheduler, self.meter, self._runner, scheduler.retractions - retractions, seconds)

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
