"""Calls: the calls of an LLM that are in progress, from any number of threads, and how they share one engine.

There is no thread that serves the others. Any thread that waits for an output steps the engine, one thread at a time, and
puts each output into the call that it belongs to. So all calls are batched together:

    thread A   wait ─ step ─ step ─ step ─ step ─ has its outputs
    thread B      wait ······ a piece ·· a piece ·········· step ─ step ─ has its outputs
"""

import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from operator import setitem
from weakref import ReferenceType, ref

from nanoinfer.engine.engine import Engine
from nanoinfer.errors import StepFailedError
from nanoinfer.requests.outputs import PieceReader, RequestGroup, RequestOutput, StreamPiece
from nanoinfer.threads.exit_gate import exit_gate
from nanoinfer.threads.signals import raised_by_handler, uninterrupted

SECONDS_BETWEEN_LOOKS = 0.02  # how often to check whether a request that another thread paused is running again


class Call:
    """One call and what it has received: the pieces of its only request, or the last output of each request.

    `outputs`: the last outputs by request id. `error`: the exception of a step that ended one of its requests.
    """

    def __init__(self, groups: Sequence[RequestGroup], stream: bool):
        self.groups = groups
        self.outputs: dict[int, RequestOutput] = {}
        self._pieces: deque[StreamPiece] = deque()  # not read yet
        self.error: BaseException | None = None
        self._reader = PieceReader(groups[0]) if stream else None
        self._unended = deque(groups)
        self._news: deque[RequestOutput] = deque()

    @property
    def done(self) -> bool:
        """True when every request has ended without an error and its last output has arrived."""
        return len(self.outputs) == len(self.groups) and self.error is None

    @property
    def has_news(self) -> bool:
        """True when there are pieces to read, or requests have ended since the last `newly_ended`."""
        return bool(self._pieces or self._news)

    def newly_ended(self) -> list[RequestOutput]:
        """The last outputs of the requests that have ended since the last call of this method."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def read(self) -> list[StreamPiece]:
        """Return what is new since the last read: one piece for each completion that has something new."""
        pieces: dict[int, StreamPiece] = {}
        for piece in [self._pieces.popleft() for _ in range(len(self._pieces))]:
            before = pieces.get(piece.index)
            pieces[piece.index] = piece if before is None else before + piece
        return list(pieces.values())

    def first_unended(self) -> RequestGroup | None:
        """The first request whose last output has not arrived; None if there is none."""
        while self._unended and self._unended[0].request_id in self.outputs:
            self._unended.popleft()
        return self._unended[0] if self._unended else None

    def put(self, output: RequestOutput) -> None:
        """Add an output of a step. Call it between two passes."""
        if self._reader is not None:
            self._pieces.extend(self._reader.read())  # no lock: another thread may be reading, or collecting garbage
        self.error = self.error or output.error
        if output.finished:
            self.outputs[output.request_id] = output
            self._news.append(output)


class Calls:
    """The calls in progress on one engine. A call that is garbage-collected is closed, too."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._calls: dict[int, ReferenceType[Call]] = {}  # by request id
        engine.turns.after_fork = self._forget_other_threads
        exit_gate.before_closing(self._end_all)

    def open(self, groups: Sequence[RequestGroup], stream: bool = False) -> Call:
        """Queue the requests of a call, all or none. Errors as in `Engine.submit_all`; RuntimeError when an AsyncEngine has
        this engine to itself.
        """
        call, turns = Call(groups, stream), self._engine.turns
        ids = [group.request_id for group in groups]
        try:
            with turns.visit():
                turns.check_between_passes()
                if turns.taken_by is not None:
                    raise RuntimeError(f"{turns.taken_by} is using this engine: call its methods instead")
                self._engine.submit_all(groups)
                # When the call is dropped, this adds to `turns.later`, in C code that no signal handler can interrupt.
                reference = ref(call, partial(setitem, turns.later, partial(self._end, ids)))
                for request_id in ids:
                    self._calls[request_id], turns.callers[request_id] = reference, threading.current_thread()
        except BaseException:  # even if a delayed signal handler raised it: the caller does not get the call
            self.close(call)
            raise
        return call

    def close(self, call: Call) -> None:
        """End the call: abort those of its requests that have not ended, as soon as no pass is running."""
        ids = [group.request_id for group in call.groups if group.request_id in self._calls]
        if ids:  # otherwise it is over already: it was closed before, or at exit
            self._engine.turns.soon(partial(self._end, ids))

    def _end_all(self) -> None:
        """End all calls, because Python is exiting."""
        with self._engine.turns.visit():
            self._end(list(self._calls))

    def _forget_other_threads(self) -> None:
        """In a forked process, end the calls of other threads: only the thread that forked is left."""
        callers = self._engine.turns.callers
        self._end([request_id for request_id, thread in callers.items() if thread is not threading.current_thread()])

    def _end(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._engine.turns.callers.pop(request_id, None)
            if self._calls.pop(request_id, None) is not None:
                self._engine.abort(request_id)

    def wait(self, call: Call) -> None:
        """Wait until the call has something new, or this thread has made a step.

        Raises what that step raised if it concerns this call, and StepFailedError when another thread's step failed and
        ended a request of this call. RuntimeError when every request is paused. When it raises, the call is over.
        """
        with uninterrupted():
            try:
                self._wait(call)
            except BaseException:
                self.close(call)  # here, because no other signal handler can interrupt
                raise

    def _wait(self, call: Call) -> None:
        self._check(call)
        turns, has_stepped = self._engine.turns, True
        with turns.step_unless(lambda: call.has_news or self._is_gone(call.first_unended())) as is_my_turn:
            if is_my_turn:
                has_stepped = self._step(call)
        if not has_stepped:
            turns.let_handlers_in(SECONDS_BETWEEN_LOOKS)
        if self._is_gone(call.first_unended()):  # another thread is about to put its output here, or it was
            with turns.visit():  # aborted by hand or by a shutdown, and that caller got the last output
                group = call.first_unended()
                if group is not None and self._is_gone(group):
                    call.put(group.output())
        self._check(call)

    def _check(self, call: Call) -> None:
        if call.error is not None:
            reason = f"{type(call.error).__name__}: {call.error}"
            raise StepFailedError(f"a request ended because its step failed: {reason}") from call.error

    def _is_gone(self, group: RequestGroup | None) -> bool:
        return group is not None and not self._engine.is_unfinished(group.request_id)

    def _step(self, call: Call) -> bool:
        """Make a step. False when there is nothing to do because every request is paused. Then the thread has to wait for a
        deadline, or for another thread to resume a request that it has paused."""
        if not self._engine.has_work():
            self._deliver(self._engine.open_requests.deliver())
            if call.has_news:
                return True
            if self._engine.seconds_to_deadline() is None and not self._engine.turns.others_may_resume(
                self._engine.open_requests.groups
            ):
                raise RuntimeError("every request is paused: resume one (engine.resume) before you wait for its output")
            return False
        try:
            self._deliver(self._engine.step())
        except BaseException as error:
            ended = self._engine.open_requests.deliver()
            self._deliver(ended)
            is_known = any(output.error is error for output in ended)  # the requests of the pass carry it
            if call.error is error or not is_known or raised_by_handler(error):
                raise
        return True

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        """Put outputs into their calls. Outputs of requests that were added by hand wait for the next `Engine.step`."""
        by_hand = []
        for output in outputs:
            if output.request_id not in self._calls:
                by_hand.append(output)
            elif (call := self._calls[output.request_id]()) is not None:
                call.put(output)
        self._engine.deliver_later(by_hand)
