"""Traces: what an engine did, step by step. Recorded from the outside, saved, rebuilt, exported, played in a browser.

Needs nothing beyond the engine itself; pictures of a trace (`viz.timeline`, the player's PNG) need matplotlib.
"""

from nanoinfer.trace.recorder import Recorder, record
from nanoinfer.trace.state import TraceState
from nanoinfer.trace.trace import Trace

__all__ = ["Recorder", "Trace", "TraceState", "record"]
