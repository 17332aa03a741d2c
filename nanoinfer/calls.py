"""Calls: the calls of an LLM that are in flight, from any number of threads, and how they share one engine.

No thread serves the others. Whichever waits for an output steps the engine, one at a time, and puts what the step gave
into the calls that it belongs to, so that all of them are batched together:

    thread A   wait ─ step ─ step ─ step ─ step ─ has its outputs
    thread B      wait ······ a piece ·· a piece ·········· step ─ step ─ has its outputs
"""

import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from operator import setitem
from weakref import ReferenceType, ref

from nanoinfer.engine import Engine
from nanoinfer.errors import StepFailedError
from nanoinfer.exit_gate import exit_gate
from nanoinfer.requests.outputs import PieceReader, RequestGroup, RequestOutput, StreamPiece
from nanoinfer.signals import raised_by_handler, uninterrupted

SECONDS_BETWEEN_LOOKS = 0.02  # whether a request that another thread has paused goes on


class Call:
    """One call and what it has received: pieces of its only request, or the last output of each.

    `outputs`: the last outputs by request id. `error`: what ended a request in a step.
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
        """Whether every request has ended, none by an error, and its last output is here."""
        return len(self.outputs) == len(self.groups) and self.error is None

    @property
    def has_news(self) -> bool:
        """Whether pieces can be read, or requests have ended since the last `newly_ended`."""
        return bool(self._pieces or self._news)

    def newly_ended(self) -> list[RequestOutput]:
        """The last outputs of the requests that have ended since this was last asked."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def read(self) -> list[StreamPiece]:
        """What is new since the last read: one piece for each completion that has something new."""
        pieces: dict[int, StreamPiece] = {}
        for piece in [self._pieces.popleft() for _ in range(len(self._pieces))]:
            before = pieces.get(piece.index)
            pieces[piece.index] = piece if before is None else before + piece
        return list(pieces.values())

    def first_unended(self) -> RequestGroup | None:
        """The first request whose last output has not come."""
        while self._unended and self._unended[0].request_id in self.outputs:
            self._unended.popleft()
        return self._unended[0] if self._unended else None

    def put(self, output: RequestOutput) -> None:
        """A step has given an output. To be called between two passes."""
        if self._reader is not None:
            self._pieces.extend(self._reader.read())  # no lock: another thread may be reading, or collecting garbage
        self.error = self.error or output.error
        if output.finished:
            self.outputs[output.request_id] = output
            self._news.append(output)


class Calls:
    """The calls in flight on one engine. A call that is dropped is closed, too, wherever garbage collection finds it."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._calls: dict[int, ReferenceType[Call]] = {}  # by request id
        engine.turns.after_fork = self._forget_other_threads
        exit_gate.before_closing(self._end_all)

    def open(self, groups: Sequence[RequestGroup], stream: bool = False) -> Call:
        """Queue the requests of a call, all or none. Errors as `Engine.submit_all`; RuntimeError when an AsyncEngine serves
        with this engine.
        """
        call, turns = Call(groups, stream), self._engine.turns
        ids = [group.request_id for group in groups]
        try:
            with turns.visit():
                turns.check_between_passes()
                if turns.taken_by is not None:
                    raise RuntimeError(f"{turns.taken_by} serves with this engine: use its methods")
                self._engine.submit_all(groups)
                # When the call is dropped, `turns.later` gets to know: in C, where no signal handler gets in.
                reference = ref(call, partial(setitem, turns.later, partial(self._end, ids)))
                for request_id in ids:
                    self._calls[request_id], turns.callers[request_id] = reference, threading.current_thread()
        except BaseException:  # also a signal handler's, which had to wait: the caller does not get the call
            self.close(call)
            raise
        return call

    def close(self, call: Call) -> None:
        """The call is over: abort those of its requests that have not ended, as soon as no pass is being made."""
        ids = [group.request_id for group in call.groups if group.request_id in self._calls]
        if ids:  # else it is over already: closed before, or at exit
            self._engine.turns.soon(partial(self._end, ids))

    def _end_all(self) -> None:
        """Python exits."""
        with self._engine.turns.visit():
            self._end(list(self._calls))

    def _forget_other_threads(self) -> None:
        """In a new process: only the thread that forked it is left."""
        callers = self._engine.turns.callers
        self._end([request_id for request_id, thread in callers.items() if thread is not threading.current_thread()])

    def _end(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._engine.turns.callers.pop(request_id, None)
            if self._calls.pop(request_id, None) is not None:
                self._engine.abort(request_id)

    def wait(self, call: Call) -> None:
        """Until the call has news, or this thread has made a step.

        Raises what that step raised if it concerns this call, and StepFailedError when a step that another thread made
        has ended a request of the call. RuntimeError when every request is paused. When it raises, the call is over.
        """
        with uninterrupted():
            try:
                self._wait(call)
            except BaseException:
                self.close(call)  # here, where no other signal handler can come between
                raise

    def _wait(self, call: Call) -> None:
        self._check(call)
        turns, has_stepped = self._engine.turns, True
        with turns.step_unless(lambda: call.has_news or self._is_gone(call.first_unended())) as is_my_turn:
            if is_my_turn:
                has_stepped = self._step(call)
        if not has_stepped:
            turns.let_handlers_in(SECONDS_BETWEEN_LOOKS)
        if self._is_gone(call.first_unended()):  # either its output is being put here by another thread, or it was
            with turns.visit():  # aborted by hand or by a shutdown, whose caller got the last output
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
        """Make a step. False when there is nothing to do but wait, because every request is paused: until a deadline, or
        until another thread resumes what it has paused."""
        if not self._engine.has_work():
            self._deliver(self._engine.open_requests.deliver())
            if call.has_news:
                return True
            if self._engine.seconds_to_deadline() is None and not self._engine.turns.others_may_resume(
                self._engine.open_requests.groups
            ):
                raise RuntimeError(
                    "every request is paused: resume one (engine.resume) before its output can be waited for"
                )
            return False
        try:
            self._deliver(self._engine.step())
        except BaseException as error:
            ended = self._engine.open_requests.deliver()
            self._deliver(ended)
            is_known = any(output.error is error for output in ended)  # to the requests of the pass
            if call.error is error or not is_known or raised_by_handler(error):
                raise
        return True

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        """Put outputs into their calls; those of requests that were added by hand stay for the next `Engine.step`."""
        by_hand = []
        for output in outputs:
            if output.request_id not in self._calls:
                by_hand.append(output)
            elif (call := self._calls[output.request_id]()) is not None:
                call.put(output)
        self._engine.deliver_later(by_hand)
