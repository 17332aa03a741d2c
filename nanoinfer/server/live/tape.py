"""Tape: the last minutes of an engine that is watched, as a trace."""

import json
from collections.abc import Callable
from typing import Any

from nanoinfer.engine.engine import Engine
from nanoinfer.server.live.limits import Limits
from nanoinfer.trace import perfetto
from nanoinfer.trace.data import TraceData
from nanoinfer.trace.file import to_document
from nanoinfer.trace.recorder import Recorder, recorder_of
from nanoinfer.trace.without_texts import without_texts


class Tape:
    """Records at most `tape_steps` and `tape_seconds`, and then begins anew: so it is bounded, however long it runs.

    An engine has one recorder. If another one is there already (an LLM made with `trace=True`), its trace is what can be
    had. One that comes later (`record`) takes this one's place; the tape begins anew when it has ended. `after_pass` is
    called by whichever there is. All methods run between two steps of the engine.
    """

    def __init__(self, engine: Engine, limits: Limits, after_pass: Callable[[Engine], object]):
        self._engine, self._limits, self._after_pass = engine, limits, after_pass
        self._recorder: Recorder | None = None  # this tape's own
        self._source: Recorder | None = None  # the one that calls `after_pass`

    def keep_up(self) -> None:
        """Record, if nobody else does; begin anew when the tape is full."""
        there = recorder_of(self._engine)
        if there is None or (there is self._recorder and self._is_full(there)):
            self._recorder = there = Recorder(self._engine, gives_way=True)
        self._listen_to(there)

    def stop(self) -> None:
        """Record no more, and forget everything."""
        self._listen_to(None)
        if self._recorder is not None:
            self._recorder.stop()
        self._recorder = None

    def trace(self) -> TraceData | None:
        """What is on it now, and does not grow; None if nothing is recorded now."""
        there = recorder_of(self._engine)
        if there is None:
            return None
        there.settle()
        return there.trace.as_it_is()

    def _listen_to(self, source: Recorder | None) -> None:
        if source is self._source:
            return
        if self._source is not None:
            self._source.after_pass.remove(self._after_pass)
        if source is not None:
            source.after_pass.append(self._after_pass)
        self._source = source

    def _is_full(self, recorder: Recorder) -> bool:
        steps, seconds = recorder.trace.num_steps, self._engine._clock() - recorder.began
        return steps >= self._limits.tape_steps or seconds >= self._limits.tape_seconds


def document(trace: TraceData, show_prompts: bool) -> str:
    """A file that `Trace.load` and ui.perfetto.dev both open: a trace, and before it its events in Perfetto's form."""
    if not show_prompts:
        trace = without_texts(trace)
    both: dict[str, Any] = {"traceEvents": perfetto.trace_events(trace), "displayTimeUnit": "ms", **to_document(trace)}
    return json.dumps(both, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
