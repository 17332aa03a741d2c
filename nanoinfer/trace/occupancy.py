"""Who has the pool's slots after each step of a trace, drawn above its timeline."""

from collections.abc import Mapping

from nanoinfer.trace.data import TraceData
from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import INK, MUTED, PHASE_STYLES, ROLES
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count

HEIGHT = 84.0
KINDS = (
    (ROLES["tree_locked"], "tree, locked"),
    (ROLES["in_use"], "requests' own"),
    (ROLES["tree"], "tree, unlocked: may be evicted"),
)


def draw_occupancy(sheet: Sheet, trace: TraceData, steps: Mapping[int, tuple[float, float]], x0: float) -> str:
    """Bars over the steps' places: what running requests need at the bottom, what can be evicted above, the rest is free.

    `steps`: step → where it begins and ends on the sheet. Returns the fullest step and the retractions in words.
    """
    size, top = trace.engine["max_total_tokens"], sheet.y + 14
    bottom, end = top + HEIGHT, max(right for _, right in steps.values())
    sheet.rect(x0, top, end - x0, HEIGHT, ROLES["free"], edge=MUTED, line=0.6, name="pool")
    sheet.text(x0 - 8, (top + bottom) / 2 - 7, "slots in use", ha="right", size=SMALL, colour=MUTED)
    sheet.text(x0 - 8, (top + bottom) / 2 + 7, f"of {size:,}", ha="right", size=SMALL, colour=MUTED)
    fullest, retractions, last_mark = (0, 0), list[str](), -1e9
    for event, state in trace.states():
        if event.step not in steps or not event.is_step:
            continue
        left, right = steps[event.step]
        if event.step + 1 in steps:
            right = steps[event.step + 1][0]  # until the next step begins
        locked = sum(len(node) for _, node in state.walk() if node.lock_ref)
        unlocked = sum(len(node) for _, node in state.walk() if not node.lock_ref)
        held = size - state.free - locked - unlocked  # by running requests
        y = bottom
        for (style, name), slots in zip(KINDS, (locked, held, unlocked), strict=True):
            tall = HEIGHT * slots / size
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
    sheet.rect(x0, top, end - x0, HEIGHT, edge=INK, line=0.8)
    sheet.y = bottom + 8
    sheet.legend([*KINDS, (ROLES["free"], "free")])
    said = f" Retracted: {'; '.join(retractions)}." if retractions else ""
    used, step = fullest
    return f" After step {-step}, {count(used, 'slot')} of {size:,} are in use, the most.{said}"
