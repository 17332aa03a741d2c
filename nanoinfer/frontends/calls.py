"""Calls: the calls of an LLM that are in progress, from any number of threads. They are one of the doors of the engine's
loop: it steps, and puts each output into the call that it belongs to, while the callers wait.
"""

import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from operator import setitem
from queue import Empty
from typing import Generic, TypeVar
from weakref import ReferenceType, ref

from nanoinfer.engine.engine import Engine
from nanoinfer.engine.engine_loop import loop_of
from nanoinfer.errors import EngineClosedError, StepFailedError
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.request_group import RequestGroup, Update
from nanoinfer.requests.stream_pieces import PieceReader, StreamPiece
from nanoinfer.threads.exit_gate import exit_gate
from nanoinfer.threads.signals import interruptible, uninterrupted

T = TypeVar("T")
SECONDS_BETWEEN_LOOKS = 0.5  # a signal handler may have paused, in the thread that waits, what it waits for


class Mailbox(Generic[T]):
    """A queue that one thread reads. Whoever puts something in does so alone, for example during a turn.

    `queue.SimpleQueue` will not do: if a signal handler takes longer than what is left of the wait, CPython 3.11 goes on
    waiting without a limit.
    """

    def __init__(self) -> None:
        self._letters: deque[T] = deque()
        self._bell = threading.Lock()  # free if something was put in since the reader waited
        self._bell.acquire()

    def put(self, letter: T) -> None:
        """Add something, and wake the reader."""
        self._letters.append(letter)
        if self._bell.locked():
            self._bell.release()

    def take_all(self, timeout_s: float) -> list[T]:
        """Wait until something is there, and take all of it, in order; queue.Empty after `timeout_s`. Signal handlers run,
        also if the reader does not have to wait (see `interruptible`)."""
        with interruptible():
            while not self._letters:
                if not self._bell.acquire(timeout=timeout_s):
                    raise Empty
        return [self._letters.popleft() for _ in range(len(self._letters))]


class Call:
    """One call and what it has received: the pieces of its only request, or the last output of each request.

    `outputs`: the last outputs by request id. `thread`: the one that has made the call.
    """

    def __init__(self, groups: Sequence[RequestGroup], stream: bool):
        self.groups, self.thread = groups, threading.current_thread()
        self.outputs: dict[int, RequestOutput] = {}
        self._reader = PieceReader(groups[0]) if stream else None
        self._error: BaseException | None = None  # raised when all that came before it has been received
        self._news = Mailbox[list[StreamPiece] | RequestOutput | BaseException]()

    @property
    def done(self) -> bool:
        """True when the last output of every request has been received."""
        return len(self.outputs) == len(self.groups)

    def receive(self, timeout_s: float) -> tuple[list[StreamPiece], list[RequestOutput]]:
        """Wait until something new is there, and return all of it: one piece for each completion that has something new,
        and the last outputs of requests. queue.Empty after `timeout_s`; raises what has ended a request."""
        if self._error is not None:
            raise self._error
        pieces, ended = dict[int, StreamPiece](), list[RequestOutput]()
        for news in self._news.take_all(timeout_s):
            if isinstance(news, BaseException):
                self._error = news
                break
            if isinstance(news, RequestOutput):
                self.outputs[news.request_id] = news
                ended.append(news)
                continue
            for piece in news:
                before = pieces.get(piece.index)
                pieces[piece.index] = piece if before is None else before + piece
        if self._error is not None and not pieces:
            raise self._error
        return list(pieces.values()), ended

    def put(self, update: Update) -> None:
        """Add what a step says of a request. Call it between two passes."""
        if self._reader is not None and (pieces := list(self._reader.read())):
            self._news.put(pieces)
        if isinstance(update, RequestOutput) and update.finished and update.error is None:
            self._news.put(update)

    def fail(self, error: BaseException) -> None:
        """Raise `error` in whoever waits."""
        self._news.put(error)


class Calls:
    """The calls in progress on one engine: a door of its `loop`. A call that is garbage-collected is closed, too."""

    def __init__(self, engine: Engine):
        self._engine, self.loop = engine, loop_of(engine)
        self._calls: dict[int, ReferenceType[Call]] = {}  # by request id, until its last output

    def open(self, groups: Sequence[RequestGroup], stream: bool = False) -> Call:
        """Queue the requests of a call, all or none. Errors as in `Engine.submit_all`; RuntimeError in code that the
        engine's own thread runs: it would wait for itself. When Python is exiting, SystemExit ends other threads."""
        call, turns = Call(groups, stream), self._engine.turns
        ids = [group.request_id for group in groups]
        if not exit_gate.lets_call():
            raise SystemExit("Python is exiting")
        self.loop.check_may_wait()
        self.loop.use_threads_of_caller()
        try:
            with turns.visit():
                self.loop.submit(groups, self)
                # When the call is dropped, this adds to `turns.later`, in C code that no signal handler can interrupt.
                reference = ref(call, partial(setitem, turns.later, partial(self._end, ids)))
                self._calls.update(dict.fromkeys(ids, reference))
        except BaseException:  # even if a delayed signal handler raised it: the caller does not get the call
            self.close(call)
            raise
        return call

    def close(self, call: Call) -> None:
        """End the call: abort those of its requests that have not ended, as soon as no pass is running."""
        ids = [group.request_id for group in call.groups if group.request_id in self._calls]
        if ids:  # otherwise it is over already
            self._engine.turns.soon(partial(self._end, ids))

    def wait(self, call: Call) -> tuple[list[StreamPiece], list[RequestOutput]]:
        """Wait until the call has something new, and return it: pieces, and the last outputs of requests.

        Raises what a pass raised that ended one of its requests: itself to one call, to others a StepFailedError with it
        as the cause. RuntimeError when all its requests are paused, and by this thread. When it raises, the call is over.
        """
        try:
            while True:
                self.loop.start()  # there is none in a process that a signal handler has forked
                self._check_paused(call)
                try:
                    return call.receive(SECONDS_BETWEEN_LOOKS)
                except Empty:
                    continue
        except BaseException:
            with uninterrupted():
                self.close(call)
            raise

    def _check_paused(self, call: Call) -> None:
        """RuntimeError if this thread would wait for itself: it has paused all that the call still waits for."""
        by, me = self._engine.paused_by, threading.current_thread()
        if not any(by.get(group.request_id) is me for group in call.groups):
            return  # looked up without a turn, for which each piece would wait
        with self._engine.turns.visit():
            open_groups = [group for group in call.groups if self._engine.is_unfinished(group.request_id)]
            if open_groups and all(by.get(group.request_id) is me and group.timeout_s is None for group in open_groups):
                raise RuntimeError("every request is paused: resume one (engine.resume) before you wait for its output")

    # --- for the loop ------------------------------------------------------------------------------------------------

    def hand_out(self, updates: Sequence[Update]) -> None:
        """Tell the calls what is new of their requests."""
        told: list[BaseException] = []  # errors that a call raises itself
        for update in updates:
            reference = self._calls.get(update.request_id)
            if update.finished:
                self._calls.pop(update.request_id, None)
            if reference is None or (call := reference()) is None:
                continue
            error = update.error if isinstance(update, RequestOutput) else None
            try:
                call.put(update)
            except BaseException as failure:  # its pieces cannot be made, which concerns no other call
                self._end([update.request_id])
                error = error or failure
            if error is not None:
                call.fail(_step_failed(error) if error in told else error)
                told.append(error)

    def lose(self, failure: BaseException) -> None:
        """Have all calls raise an EngineClosedError."""
        for reference in set(self._calls.values()):
            if (call := reference()) is not None:
                lost = EngineClosedError(f"a request was lost: {failure!r}")
                lost.__cause__ = failure
                call.fail(lost)
        self._calls.clear()

    def after_fork(self) -> None:
        """In a forked process, end the calls of other threads: only the thread that forked is left."""
        calls = {request_id: reference() for request_id, reference in self._calls.items()}
        me = threading.current_thread()
        self._engine.turns.soon(partial(self._end, [i for i, call in calls.items() if call and call.thread is not me]))

    def _end(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            if self._calls.pop(request_id, None) is not None:
                self.loop.drop(request_id)


def _step_failed(error: BaseException) -> StepFailedError:
    failed = StepFailedError(f"a request ended because its step failed: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
