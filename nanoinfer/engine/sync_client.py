"""SyncClient: the calls of an LLM that are in progress, from any number of threads. It is one of the clients of the
engine's loop, which steps, and puts each output into the call that it belongs to, while the callers wait.

Python runs signal handlers in the main thread. There, a call only posts commands and waits for what comes, so what a
handler raises (Ctrl-C's KeyboardInterrupt) ends the requests of this call, and nothing else.
"""

from collections.abc import Sequence
from functools import partial
from queue import Empty, SimpleQueue

from nanoinfer.engine.engine import Engine
from nanoinfer.engine.engine_loop import loop_of
from nanoinfer.errors import EngineClosedError, StepFailedError
from nanoinfer.outputs import RequestOutput, StreamPiece
from nanoinfer.requests.pieces import PieceReader
from nanoinfer.requests.request_group import RequestGroup, Update

News = list[StreamPiece] | RequestOutput | BaseException


class Call:
    """One call and what it has received: the pieces of its only request, or the last output of each request (`outputs`, by
    request id)."""

    def __init__(self, groups: Sequence[RequestGroup], stream: bool = False):
        self.groups = groups
        self.outputs: dict[int, RequestOutput] = {}
        self.news: SimpleQueue[News] = SimpleQueue()
        self.reader = PieceReader(groups[0]) if stream else None
        self._error: BaseException | None = None  # raised when all that came before it has been received

    @property
    def done(self) -> bool:
        """True when the last output of every request has been received."""
        return len(self.outputs) == len(self.groups)

    def wait(self) -> tuple[list[StreamPiece], list[RequestOutput]]:
        """Wait until something new is there, and return all of it: one piece for each completion that has something new,
        and the last outputs of requests.

        Raises what a pass raised that ended one of its requests: itself to one call, to others a StepFailedError with it
        as the cause.
        """
        pieces, ended = dict[int, StreamPiece](), list[RequestOutput]()
        news = None if self._error is not None else self.news.get()
        while news is not None:
            if isinstance(news, BaseException):
                self._error = news
                break
            if isinstance(news, RequestOutput):
                self.outputs[news.request_id] = news
                ended.append(news)
            else:
                for piece in news:
                    before = pieces.get(piece.index)
                    pieces[piece.index] = piece if before is None else before + piece
            try:
                news = self.news.get_nowait()
            except Empty:
                news = None
        if self._error is not None and not pieces:
            raise self._error
        return list(pieces.values()), ended


class SyncClient:
    """The calls in progress on one engine: a client of its `loop`."""

    def __init__(self, engine: Engine):
        self.loop = loop_of(engine)
        self._calls: dict[int, Call] = {}  # by request id, until its last output

    def start(self, call: Call) -> None:
        """Queue the requests of a call, all or none; `call.wait` raises what `Engine.submit_all` does.

        EngineClosedError; RuntimeError in code that the engine's own thread runs: it would wait for itself.
        """
        self.loop.use_threads_of_caller()
        self.loop.post(partial(self._submit, call))

    def close(self, call: Call) -> None:
        """Abort those of a call's requests that have not ended, as soon as no pass is running."""
        if not call.done:
            self.loop.post_soon(partial(self._abort, call))

    # --- for the loop ------------------------------------------------------------------------------------------------

    def _submit(self, call: Call) -> None:
        try:
            self._calls.update(dict.fromkeys(self.loop.submit(call.groups, self), call))
        except Exception as error:
            call.news.put(error)

    def _abort(self, call: Call) -> None:
        for group in call.groups:
            if self._calls.pop(group.request_id, None) is not None:
                self.loop.drop(group.request_id)

    def dispatch(self, updates: Sequence[Update]) -> None:
        """Tell the calls what is new of their requests."""
        raised: list[BaseException] = []  # errors that a call raises itself
        for update in updates:
            if (call := self._calls.get(update.request_id)) is None:
                continue
            if update.finished:
                del self._calls[update.request_id]
            error = update.error if isinstance(update, RequestOutput) else None
            try:
                if call.reader is not None and (pieces := list(call.reader.read())):
                    call.news.put(pieces)
            except Exception as failure:  # its pieces cannot be made, which concerns no other call
                self._abort(call)
                error = error or failure
            if error is not None:
                call.news.put(_step_failed(error) if error in raised else error)
                raised.append(error)
            elif isinstance(update, RequestOutput) and update.finished:
                call.news.put(update)

    def lose(self, failure: BaseException) -> None:
        """Have all calls raise an EngineClosedError."""
        for call in dict.fromkeys(self._calls.values()):
            lost = EngineClosedError(f"a request was lost: {failure!r}")
            lost.__cause__ = failure
            call.news.put(lost)
        self._calls.clear()


def _step_failed(error: BaseException) -> StepFailedError:
    failed = StepFailedError(f"a request ended because its step failed: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
