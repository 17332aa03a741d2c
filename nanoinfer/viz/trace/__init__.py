"""Traces: what an engine did, step by step. They are recorded from the outside, and you can save, rebuild and export them,
and play them in a browser.

They need nothing but the engine itself. Only pictures of a trace (`viz.timeline`, the player's PNG) need matplotlib.
"""

from nanoinfer.viz.trace.recorder import Recorder, record
from nanoinfer.viz.trace.state import TraceState
from nanoinfer.viz.trace.trace import Trace

__all__ = ["Recorder", "Trace", "TraceState", "record"]
