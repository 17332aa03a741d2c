"""A trace in Chrome's trace-event format, which ui.perfetto.dev opens. It shows tracks over time instead of steps.

Source: "Trace Event Format" (Chromium project). Times are in microseconds. `ph` says what an entry is: M names a track, X
is a slice with a duration, i an instant, C a counter.
"""

from typing import Any

from nanoinfer.viz.trace import events as ev
from nanoinfer.viz.trace.data import TraceData
from nanoinfer.viz.trace.phases import spans

ENGINE, REQUESTS = 1, 2  # process ids: groups of tracks


def trace_events(trace: TraceData) -> list[dict[str, Any]]:
    """A track of steps, counters of slots and requests, and a track per request that shows when it waited, extended,
    decoded or verified, and when its K/V came back from tiers."""
    entries = [_name("process_name", ENGINE, 0, "engine"), _name("thread_name", ENGINE, 1, "steps")]
    entries.append(_name("process_name", REQUESTS, 0, "requests"))
    for index, request in enumerate(trace.requests):
        entries.append(_name("thread_name", REQUESTS, index + 1, request.name))
    for event, state in trace.states():
        if event.is_step:
            args: dict[str, Any] = {
                "step": event.step,
                "tokens": sum(entry.end - entry.start for entry in event.batch),
                **{name: len(getattr(event, name)) for name in ("batch", "admitted", "retracted", "paused", "ended")},
            }
            if event.mode == ev.VERIFY:
                args |= {"drafted": event.drafted, "accepted": event.accepted}
            if event.error is not None:
                args["error"] = event.error
            entries.append(_slice(ENGINE, 1, event.mode, event.time, event.time + event.seconds, args))
        tree, running = len(state.tree_slots()), state.running
        counters = {
            "free slots": state.free,
            "tree slots": tree,
            "request slots": sum(len(req.slots) for req in running),
            "running": len(running),
            "waiting": len(state.waiting),
        }
        at = _microseconds(max(event.time + event.seconds, 0.0))
        entries += [
            {"ph": "C", "name": name, "pid": ENGINE, "tid": 0, "ts": at, "args": {name: value}}
            for name, value in counters.items()
        ]
    slices, marks = spans(trace)
    for span in slices:
        args = {"steps": max(span.last - span.first + 1, 0)}
        if span.tokens:
            args |= {"step": span.first, "tokens": span.tokens, "sampled": span.sampled}
        if span.phase == ev.VERIFY.lower():
            args |= {"drafted": span.drafted, "accepted": span.accepted}
        entries.append(_slice(REQUESTS, span.request + 1, span.phase, span.start, span.end, args))
    for event in trace.events:
        for fetch in event.fetched:  # how many tokens came from each tier
            tokens = {tier: end - start for tier, (start, end) in fetch.parts.items()}
            entries.append(_instant(fetch.request, "fetch", event.time, {"step": event.step, **tokens}))
    entries += [_instant(mark.request, mark.reason, mark.time, {"step": mark.step}) for mark in marks]
    return entries


def _instant(request: int, name: str, time: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "i", "s": "t", "name": name, "cat": "request", "pid": REQUESTS, "tid": request + 1,
            "ts": _microseconds(time), "args": args}  # fmt: skip


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(pid: int, tid: int, name: str, start: float, end: float, args: dict[str, Any]) -> dict[str, Any]:
    begin = _microseconds(start)
    return {"ph": "X", "name": name, "cat": "step" if pid == ENGINE else "request", "pid": pid, "tid": tid,
            "ts": begin, "dur": round(_microseconds(end) - begin, 3), "args": args}  # fmt: skip


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)
