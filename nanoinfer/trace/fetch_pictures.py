"""Draws in a trace's pictures where cached tokens came from: strips in the lanes of its timeline, and rows."""

from collections.abc import Sequence

from nanoinfer.trace.fetches import FROM, FetchedPrefix
from nanoinfer.trace.state import RequestState, TraceState
from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import FETCHED, INK, MUTED, PAPER, ROLES, Style, owner_style
from nanoinfer.viz.sheet import Look, Sheet
from nanoinfer.viz.words import count, span

NARROWEST = 11.0  # pixels: hatches need as much to be told apart
MOST_ROWS = 8
BOX, HEIGHT = 46.0, 26.0
TREE, REST = "tree", "rest"
WORDS = {TREE: "in the tree", **{storey: f"from {where}" for storey, where in FROM.items()}, REST: "left to compute"}
Part = tuple[str, int, int]  # TREE, a storey or REST; the first position, and the one behind the last


def strip_height(height: float) -> float:
    """Of a strip in a lane of this height."""
    return round(height * 0.32)


def draw_strip(sheet: Sheet, fetched: FetchedPrefix, left: float, right: float, height: float, leftmost: float) -> None:
    """At the bottom of a lane, up to the end of the pass that admits the request: a part for each storey, wider for more
    tokens. Where a pass is too narrow, the strip begins before it, but not before `leftmost`."""
    least, total = NARROWEST * len(fetched.tokens), sum(fetched.tokens.values())
    spare, tall = max(right - left - least, 0.0), strip_height(height)
    x = max(right - least - spare, leftmost)
    for storey, tokens in fetched.tokens.items():
        part, name = NARROWEST + spare * tokens / total, f"fetched {storey} {fetched.step}"
        sheet.rect(x, sheet.y + height - tall, part, tall, FETCHED[storey], edge=PAPER, line=0.5, name=name)
        x += part


def strip_legend(fetched: Sequence[FetchedPrefix]) -> list[tuple[Style, str]]:
    """What the strips mean, with the tokens of all."""
    totals = {storey: sum(each.tokens.get(storey, 0) for each in fetched) for storey in FROM}
    return [
        (FETCHED[storey], f"admitted with K/V of {count(tokens, 'token')} from {FROM[storey]}, locked in the tree")
        for storey, tokens in totals.items()
        if tokens
    ]


def draw_fetched_rows(sheet: Sheet, state: TraceState) -> str:
    """A row for each request whose prefix was fetched at its first admission: the parts of its prompt. Draws nothing if
    there is none. Returns the parts in words."""
    rows = [(req, parts) for req in state.requests.values() if (parts := _parts(req))]
    if not rows:
        return ""
    sheet.heading("Prompts whose K/V was fetched, when they were admitted")
    shown = rows[:MOST_ROWS]
    x0 = sheet.left + max(text_width(name, SMALL) for name in ("position", *(req.name for req, _ in shown))) + 12
    longest = max(len(req.request.prompt) for req, _ in shown)
    for i, (req, parts) in enumerate(shown):
        x, y, length = x0, sheet.y + 12, len(req.request.prompt)
        spare = max((sheet.right - x0) * length / longest - BOX * len(parts), 0.0)
        sheet.text(x0 - 8, y - 6, "position", size=TINY, colour=MUTED, ha="right")
        sheet.text(x0 - 8, y + HEIGHT / 2, req.name, size=SMALL, ha="right")
        for where, start, end in parts:
            width, name = BOX + spare * (end - start) / length, f"{req.name} {where}"
            sheet.cell(x, y, width, HEIGHT, _look(where, req, i), f"{end - start:,}", edge="#767676", name=name)
            sheet.text(x + width / 2, y - 6, span(start, end - 1), size=TINY, colour=MUTED, ha="center")
            x += width
        sheet.line([x, x], [y - 2, y + HEIGHT + 2], colour=INK, line=2)
        sheet.y += HEIGHT + 20
    if len(rows) > len(shown):
        sheet.caption(f"… and {count(len(rows) - len(shown), 'more request')}.")
    sheet.legend(_row_legend(shown))
    sheet.caption("Above each box: positions. In it: how many tokens (not to scale).", size=SMALL)
    said = [
        f"{req.name}: " + ", ".join(f"{span(start, end - 1)} {WORDS[where]}" for where, start, end in parts)
        for req, parts in shown
    ]
    more = f"; and {len(rows) - len(shown)} more" if len(rows) > len(shown) else ""
    return f" Positions of prompts whose K/V was fetched: {'; '.join(said)}{more}."


def _parts(req: RequestState) -> list[Part]:
    """The parts of a prompt at its first admission; none if no K/V was fetched for it."""
    cached, parts, at = req.cached_tokens, list[Part](), 0
    for storey, (start, end) in sorted(req.fetched.items(), key=lambda entry: entry[1]):
        start, end = min(start, cached), min(end, cached)
        if start < end:
            parts += [(TREE, at, start), (storey, start, end)]
            at = end
    if parts:
        parts += [(TREE, at, cached), (REST, cached, len(req.request.prompt))]
    return [part for part in parts if part[1] < part[2]]


def _look(where: str, req: RequestState, i: int) -> Style:
    if where == REST:
        return owner_style(req.name, i)
    return ROLES["tree_locked"] if where == TREE else FETCHED[where]


def _row_legend(rows: Sequence[tuple[RequestState, list[Part]]]) -> list[tuple[Look, str]]:
    words = {
        TREE: "found in the tree, locked",
        **{storey: f"of the tree, locked: came back from {where}" for storey, where in FROM.items()},
        REST: "left to compute for " + ("each request, in its colour" if len(rows) > 1 else "the request"),
    }
    present = {where for _, parts in rows for where, _, _ in parts}
    return [(_look(where, rows[0][0], 0), label) for where, label in words.items() if where in present]
