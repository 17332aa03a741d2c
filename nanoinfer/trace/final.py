"""final_state: a trace in one picture, for viewers without scripts. It has the timeline, and slots and tree at the end."""

from nanoinfer.trace.data import TraceData
from nanoinfer.trace.state import TraceState
from nanoinfer.trace.timeline import draw_timeline
from nanoinfer.viz.lettering import SMALL, TINY, shortened
from nanoinfer.viz.palette import MUTED, ROLES, Style, owner_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import ENDS_NOTE, count, runs, visible_ends

MOST_NODES = 12
ROW = 64  # slots


def final_state(trace: TraceData, *, title: str | None = None) -> Picture:
    """Draw what the requests did, the owner of each slot after the last step, and the tree. ValueError without a step."""
    sheet = Sheet(title, "What the engine did, and its state at the end")
    timeline = draw_timeline(sheet, trace)
    state = trace.state()
    sheet.heading(f"TokenToKVPool after step {state.step}: {count(state.size, 'slot')}")
    slots = _draw_slots(sheet, state)
    sheet.heading(f"RadixCache: {count(len(state.tree_slots()), 'token')} in {count(len(state.nodes) - 1, 'node')}")
    _draw_tree(sheet, state, trace)
    return sheet.picture(f"{timeline} In the end: {slots}.")


def _draw_slots(sheet: Sheet, state: TraceState) -> str:
    """Draw lines of slots, up to the last one that has an owner. Returns the counts."""
    looks: list[tuple[Style, str, list[int]]] = [
        (ROLES["tree_locked"], "tree, locked", [s for _, node in state.walk() if node.lock_ref for s in node.value]),
        (ROLES["tree"], "tree", [s for _, node in state.walk() if not node.lock_ref for s in node.value]),
        *((owner_style(name, i), name, owned) for i, (name, owned) in enumerate(state.owners().items())),
    ]
    styles = {slot: style for style, _, owned in looks for slot in owned}
    last = max(styles, default=0)
    width = min((sheet.right - sheet.left - 40) / ROW, 13)
    for start in range(0, min(last + 1, 32 * ROW), ROW):
        sheet.text(sheet.left + 34, sheet.y + 6, str(start), size=SMALL, colour=MUTED, ha="right")
        for i in range(start, min(start + ROW, state.size)):
            x = sheet.left + 40 + (i - start) * width
            style = styles.get(i, ROLES["free"])
            sheet.rect(x, sheet.y, width - 1, 12, style, edge="#b8b8b8", line=0.4, name=f"slot {i}")
        sheet.y += 14
    sheet.y += 6
    entries = [(style, f"{name}: {len(owned)}") for style, name, owned in looks if owned]
    sheet.legend([*entries, (ROLES["free"], f"free: {state.free}")])
    return ", ".join([*(f"{len(owned)} {name}" for _, name, owned in looks if owned), f"{state.free} free"])


def _draw_tree(sheet: Sheet, state: TraceState, trace: TraceData) -> None:
    nodes = list(state.walk())
    for depth, node in nodes[:MOST_NODES]:
        x = sheet.left + 18 * (depth - 1)
        text = "".join(trace.texts.get(token, f" {token}") for token in node.key)
        style = ROLES["tree_locked" if node.lock_ref else "tree"]
        sheet.rect(x, sheet.y, sheet.right - x, 16, style, edge="#4a4a4a")
        right = sheet.text(
            sheet.right - 6,
            sheet.y + 8,
            f"{count(len(node), 'token')} · slot{'s' * (len(node) != 1)} {runs(node.value, 3)}",
            size=SMALL,
            colour=style.text,
            ha="right",
        )
        room = sheet.right - x - right - 24
        sheet.text(x + 6, sheet.y + 8, shortened(visible_ends(text), room, SMALL), size=SMALL, colour=style.text)
        sheet.y += 19
    if len(nodes) > MOST_NODES:
        sheet.caption(f"… and {count(len(nodes) - MOST_NODES, 'more node')}.")
    if nodes:
        sheet.caption(ENDS_NOTE, size=TINY)
    else:
        sheet.caption("The tree is empty.")
