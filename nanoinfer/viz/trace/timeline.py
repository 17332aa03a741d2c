"""Draws a trace's timeline: its requests as lanes over steps. Call it as `viz.timeline`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import GRID, INK, MUTED, PHASE_STYLES, ROLES
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.trace import events as ev
from nanoinfer.viz.trace.data import TraceData
from nanoinfer.viz.trace.events import TraceEvent
from nanoinfer.viz.trace.phases import (
    DECODE,
    EXTEND,
    IDLE,
    PAUSED,
    PHASES,
    RETRACTED,
    SEPARATE,
    VERIFY,
    WAITING,
    Mark,
    Span,
    spans,
)
from nanoinfer.viz.words import abridged, count, plural_list

MOST_LANES = 32
FAILED = ev.FAILED.lower()
WORDS = {IDLE: "running, not in this pass", FAILED: "failed pass"}
Place = Callable[[float], float]
POOL = 84.0  # height of the pool above the lanes
KINDS = (
    (ROLES["tree_locked"], "tree, locked"),
    (ROLES["in_use"], "requests' own"),
    (ROLES["tree"], "tree, unlocked: may be evicted"),
)


def timeline(
    trace: TraceData,
    *,
    title: str | None = None,
    caption: str | None = None,
    steps: int | None = None,
    labels: Mapping[int, str] | None = None,
    highlight: int | None = None,
    occupancy: bool = False,
) -> Picture:
    """`viz.timeline`, which documents the options and the errors."""
    sheet = Sheet(title, "Requests over steps", caption=caption)
    names = labels or {}
    shown_steps = [event for event in trace.events if event.is_step]
    if not shown_steps:
        raise ValueError("trace: has no steps yet")
    drawn, marks = spans(trace)
    lanes = sorted({span.request for span in drawn})
    shown = abridged(len(lanes), MOST_LANES)

    lane_names = ["… and others" if i is None else names.get(lanes[i], trace.requests[lanes[i]].name) for i in shown]
    x0 = sheet.left + max(map(text_width, [*lane_names, "slots in use" if occupancy else "pass"])) + 12
    x1 = sheet.right - 52  # room for the last ends
    width = (x1 - x0) / (steps or len(shown_steps))  # of a step

    def place(value: float) -> float:
        return x0 + (value - 0.5) * width

    def ends(span: Span) -> tuple[float, float]:
        return place(span.first - 0.5), place(span.last + 0.5)

    used = _occupancy(sheet, trace, place) if occupancy else ""
    _axis(sheet, place, steps or len(shown_steps))
    sheet.text(x0 - 8, sheet.y + 5, "pass", ha="right", size=SMALL, colour=MUTED)
    for event in shown_steps:
        style = PHASE_STYLES.get(event.mode.lower())
        edge = "#ffffff" if width > 5 else None
        sheet.rect(place(event.step - 0.5), sheet.y, width, 10, style, edge=edge, name=f"pass {event.step}")
    sheet.y += 18
    height = 20.0 if len(shown) <= 12 else 15.0 if len(shown) <= 22 else 11.0
    for i, label in zip(shown, lane_names, strict=True):
        marked = i is not None and lanes[i] == highlight
        colour = ROLES["highlight"].face if marked else INK if i is not None else MUTED
        weight = "bold" if marked else "normal"
        sheet.text(x0 - 8, sheet.y + height / 2, label, ha="right", size=SMALL, colour=colour, weight=weight)
        if marked:
            edge = ROLES["highlight"].face
            sheet.rect(x0 - 3, sheet.y - 2, sheet.right - x0 + 3, height + 4, edge=edge, line=1.6)
        if i is not None:
            _lane(sheet, [span for span in drawn if span.request == lanes[i]], ends, height)
            for mark in marks:
                if mark.request == lanes[i]:
                    _mark(sheet, mark, place(mark.step + 0.5), height)
        sheet.y += height + (6 if height > 12 else 3)
    sheet.y += 4
    present = [phase for phase in PHASES if any(span.phase == phase and span.last >= span.first for span in drawn)]
    if any(event.mode == ev.FAILED for event in shown_steps):
        present.append(FAILED)
    sheet.legend([(PHASE_STYLES[phase], WORDS.get(phase, phase)) for phase in present])
    numbers = "tokens extended in a pass" + (", tokens that a verify gave" if VERIFY in present else "")
    sheet.caption(f"Numbers: {numbers}.  ✓: finished (stop, length).  ✕: ended in another way.", size=SMALL)
    return sheet.picture(_alt(trace, shown_steps, drawn, marks, lanes, names) + used)


def _axis(sheet: Sheet, place: Place, steps: int) -> None:
    distance = next(d for d in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, steps) if steps / d <= 16)
    sheet.text(sheet.left, sheet.y + 5, "step", size=SMALL, colour=MUTED)
    for at in range(distance, steps + 1, distance):
        sheet.text(place(at), sheet.y + 5, f"{at:,}", ha="center", size=SMALL, colour=MUTED)
        sheet.line([place(at), place(at)], [sheet.y + 12, sheet.y + 15], colour=GRID)
    sheet.y += 18


def _lane(sheet: Sheet, lane: Sequence[Span], ends: Callable[[Span], tuple[float, float]], height: float) -> None:
    """Draw the spans of a request."""
    y = sheet.y
    for span in lane:
        left, right = ends(span)
        thin = span.phase in (WAITING, IDLE, RETRACTED, PAUSED)
        top, tall = (y + height * 0.3, height * 0.4) if thin else (y, height)
        if right > left:
            name = f"{span.phase} {span.first}-{span.last}"
            edge = "#ffffff" if span.phase in SEPARATE else "#9a9a9a" if thin else None
            sheet.rect(left, top, right - left, tall, PHASE_STYLES[span.phase], edge=edge, line=0.5, name=name)
    for span in lane:
        if span.phase not in SEPARATE:
            continue
        (left, right), style = ends(span), PHASE_STYLES[span.phase]
        text = str(span.tokens if span.phase == EXTEND else span.sampled)
        look: dict[str, Any] = {"ha": "center", "colour": style.text}
        if right - left >= text_width(text, SMALL) + 3:
            sheet.text((left + right) / 2, y + height / 2, text, size=SMALL, **look)
        elif right - left >= TINY * 1.4 and height >= text_width(text, TINY) + 2:  # upright, not over its neighbours
            sheet.text((left + right) / 2, y + height / 2, text, size=TINY, rotation=90, **look)


def _mark(sheet: Sheet, mark: Mark, x: float, height: float) -> None:
    by_itself = mark.reason in ("stop", "length")
    sheet.line([x, x], [sheet.y - 1, sheet.y + height + 1], colour=INK, line=1.6)
    text = "✓" if by_itself else f"✕ {mark.reason}"
    sheet.text(x + 4, sheet.y + height / 2, text, size=SMALL, colour=INK, behind="#ffffff")


def _alt(
    trace: TraceData,
    steps: Sequence[TraceEvent],
    drawn: Sequence[Span],
    marks: Sequence[Mark],
    lanes: Sequence[int],
    names: Mapping[int, str],
) -> str:
    modes = [event.mode for event in steps]
    kinds = ", ".join(f"{modes.count(mode)} {mode}" for mode in ev.STEPS if mode in modes)
    each = [f"{names.get(i, trace.requests[i].name)} {_request_alt(drawn, marks, i)}" for i in lanes]
    return f"{count(len(steps), 'step')}, {kinds}; {count(len(lanes), 'request')}: {plural_list(each)}."


def _request_alt(drawn: Sequence[Span], marks: Sequence[Mark], index: int) -> str:
    lane = [span for span in drawn if span.request == index]
    steps = {phase: sum(span.last - span.first + 1 for span in lane if span.phase == phase) for phase in PHASES}
    drafted, accepted = (sum(getattr(span, name) for span in lane) for name in ("drafted", "accepted"))
    said = {
        WAITING: f"waits {steps[WAITING]}",
        EXTEND: f"extends {'+'.join(str(span.tokens) for span in lane if span.phase == EXTEND)}",
        DECODE: f"decodes {steps[DECODE]}",
        VERIFY: f"verifies {steps[VERIFY]} ({accepted} of {count(drafted, 'draft')} accepted)",
        **{phase: f"{phase} {steps[phase]}" for phase in (IDLE, RETRACTED, PAUSED)},
    }
    ends = [f"{mark.reason} at {mark.step}" for mark in marks if mark.request == index]
    return " · ".join([*(words for phase, words in said.items() if steps[phase]), *ends])


def _occupancy(sheet: Sheet, trace: TraceData, place: Place) -> str:
    """Bars over the steps' places: what running requests need at the bottom, what can be evicted above, the rest is free.

    Returns the fullest step and the retractions in words.
    """
    size, top = trace.engine["max_total_tokens"], sheet.y + 14
    x0, bottom, end = place(0.5), top + POOL, place(len(trace) + 0.5)
    sheet.rect(x0, top, end - x0, POOL, ROLES["free"], edge=MUTED, line=0.6, name="pool")
    sheet.text(x0 - 8, (top + bottom) / 2 - 7, "slots in use", ha="right", size=SMALL, colour=MUTED)
    sheet.text(x0 - 8, (top + bottom) / 2 + 7, f"of {size:,}", ha="right", size=SMALL, colour=MUTED)
    fullest, retractions, last_mark = (0, 0), list[str](), -1e9
    for event, state in trace.states():
        if not event.is_step:
            continue
        left, right = place(event.step - 0.5), place(event.step + 0.5)
        locked, unlocked = state.protected_size(), state.evictable_size()
        held = size - state.free - locked - unlocked  # by running requests
        y = bottom
        for (style, name), slots in zip(KINDS, (locked, held, unlocked), strict=True):
            tall = POOL * slots / size
            y -= tall
            if slots:
                sheet.rect(left, y, right - left, tall, style, name=f"{name.partition(':')[0]} step {event.step}")
        fullest = max(fullest, (size - state.free, -event.step))
        if event.retracted:
            names = [trace.requests[index].name for index in event.retracted]
            retractions.append(f"{', '.join(names)} in step {event.step}")
            sheet.line([left, left], [top - 3, bottom], colour=PHASE_STYLES["retracted"].face, line=1.8)
            words = "retraction"
            if left - last_mark > text_width(words, TINY) + 8:
                sheet.text(left, top - 9, words, size=TINY, colour=PHASE_STYLES["retracted"].face, ha="center")
                last_mark = left
    sheet.rect(x0, top, end - x0, POOL, edge=INK, line=0.8)
    sheet.y = bottom + 8
    sheet.legend([*KINDS, (ROLES["free"], "free")])
    said = f" Retracted: {'; '.join(retractions)}." if retractions else ""
    used, step = fullest
    return f" After step {-step}, {count(used, 'slot')} of {size:,} are in use, the most.{said}"
