"""Trace: what an engine did, step by step, with a method for everything you can do with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.viz.trace import events as ev
from nanoinfer.viz.trace.data import TraceData, dumps
from nanoinfer.viz.trace.describe import descriptions
from nanoinfer.viz.trace.perfetto import trace_events
from nanoinfer.viz.trace.player import Player

if TYPE_CHECKING:
    from nanoinfer.viz.picture import Picture


class Trace(TraceData):
    """A run of an engine, recorded (see recorder.py) or read from a file: TraceData, with methods to describe and draw it.

    It grows while the engine is being recorded, so read it between steps. Recording takes 70 microseconds per DECODE with
    one token for each of 16 requests, measured beside a model that computes nothing (beside the bundled model the
    difference was within the noise, of several percent of a step). The trace takes 1 KB per step, 300 bytes for each
    request in the step, and 70 for each token that arrives or enters the tree. The sizes of pool and tree don't matter.
    """

    def __repr__(self) -> str:
        modes = [event.mode for event in self.events]
        kinds = ", ".join(f"{modes.count(mode)} {mode}" for mode in ev.STEPS if mode in modes)
        return f"<Trace: {self.num_steps} steps ({kinds}), {len(self.requests)} requests>"

    def describe(self, step: int | None = None) -> str:
        """What happened in a step, in words; None: one line for every step. ValueError if there is no such step."""
        if step is None:
            return "\n".join(str(text) for _, text in descriptions(self))
        wanted = self.checked_step(step)
        return next(str(text) for event, text in descriptions(self) if event.is_step and event.step == wanted)

    def timeline(self, **options: Any) -> "Picture":
        """Its requests as lanes over steps. `viz.timeline` documents the options. Needs matplotlib."""
        from nanoinfer.viz.trace.timeline import timeline

        return timeline(self, **options)

    def player(self, title: str | None = None) -> Player:
        """A page that steps through the run. A notebook shows it inline; `save` writes one HTML file (see player.py)."""
        return Player(self, title)

    def to_perfetto(self, path: str | Path) -> None:
        """Write it in Chrome's trace-event format, for ui.perfetto.dev."""
        document = {"traceEvents": trace_events(self), "displayTimeUnit": "ms", "otherData": self.engine}
        Path(path).write_text(dumps(document) + "\n", encoding="utf-8")

    def stop(self) -> None:
        """End the recording, if it is still going on."""
        if self.writer is not None:
            self.writer.stop()
