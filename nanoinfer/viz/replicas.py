"""replicas: what each replica of a model found and computed over time, and how many requests it had."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator

from nanoinfer.viz.lettering import SMALL, TINY, drawable, text_width
from nanoinfer.viz.palette import GRID, INK, MUTED, ROLES
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count, number, percent

UPPER, LOWER, GAP = 40.0, 34.0, 20.0  # heights of the tokens and of the requests of a replica, and the gap below


def replicas(
    passes: Mapping[str, Sequence[Any]],
    *,
    until: float | None = None,
    most_requests: int | None = None,
    ends: Mapping[str, float] | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """`passes` of each replica, in order: objects with `start`, `end` (seconds), `cached` and `computed` (prompt tokens),
    and `running` and `waiting` (requests when the pass begins), such as `ReplicaPass`.

    Above, a bar per pass that computes prompts; below, the requests. `until` and `most_requests`: the scales, so that
    several pictures can be compared. `ends`: when a replica died.
    """
    everything = [each for of in passes.values() for each in of]
    last = max(each.end for each in everything) if until is None else until
    tallest = max(each.cached + each.computed for each in everything) or 1.0
    most = max(each.running + each.waiting for each in everything) if most_requests is None else most_requests
    sheet = Sheet(title, "What each replica finds and computes, and its requests", caption=caption)
    gutter = min(max(text_width(drawable(name), weight="bold") for name in passes) + 14, 120) + 62
    x0 = sheet.left + gutter
    scale = (sheet.right - x0 - 118) / (last or 1.0)
    said = []
    for name, of in passes.items():
        died = (ends or {}).get(name)
        said.append(_replica(sheet, name, of, x0, scale, tallest, most or 1.0, last, died))
    for at in MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(0, last):
        if 0 <= at <= last + 1e-9:
            sheet.text(x0 + scale * at, sheet.y - GAP + 9, number(round(at, 9)), size=SMALL, ha="center", colour=MUTED)
    sheet.text(x0 - 8, sheet.y - GAP + 9, "seconds", size=SMALL, ha="right", colour=MUTED)
    sheet.y += 8
    sheet.legend(
        [
            (ROLES["tree"], "prompt tokens found in the tree"),
            (ROLES["new"], "prompt tokens computed"),
            (ROLES["in_use"], "requests running: rows in use"),
            (ROLES["hidden"], "requests waiting"),
        ]
    )
    return sheet.picture("; ".join(said) + ".")


def _replica(
    sheet: Sheet,
    name: str,
    of: Sequence[Any],
    x0: float,
    scale: float,
    tallest: float,
    most: float,
    last: float,
    died: float | None,
) -> str:
    """One replica's two bands; returns its numbers in words."""
    upper, lower = sheet.y + UPPER, sheet.y + UPPER + 6 + LOWER
    sheet.text(sheet.left, (sheet.y + lower) / 2, name, weight="bold", width=100)
    sheet.text(x0 - 8, upper - UPPER / 2, "tokens", size=TINY, ha="right", colour=MUTED)
    sheet.text(x0 - 8, lower - LOWER / 2, "requests", size=TINY, ha="right", colour=MUTED)
    for base in (upper, lower):
        sheet.line([x0, x0 + scale * last], [base, base], colour=GRID, line=0.6)
    for i, each in enumerate(of):
        x, tokens = x0 + scale * each.start, max(scale * (each.end - each.start), 2.0)
        found, new = UPPER * each.cached / tallest, UPPER * each.computed / tallest
        if each.cached:
            sheet.rect(x, upper - found, tokens, found, ROLES["tree"], name=f"{name} found {i}")
        if each.computed:
            sheet.rect(x, upper - found - new, tokens, new, ROLES["new"], name=f"{name} computed {i}")
        width = max(scale * (each.end - each.start), 0.6)
        run, wait = LOWER * each.running / most, LOWER * each.waiting / most
        if each.running:
            sheet.rect(x, lower - run, width, run, ROLES["in_use"], name=f"{name} running {i}")
        if each.waiting:
            sheet.rect(x, lower - run - wait, width, wait, ROLES["hidden"], name=f"{name} waiting {i}")
            sheet.line([x, x + width], [lower - run - wait] * 2, colour=MUTED, line=0.8)
    sheet.line([x0, x0], [sheet.y, lower], colour=INK)
    cached, computed = sum(each.cached for each in of), sum(each.computed for each in of)
    longest = max((each.waiting for each in of), default=0.0)
    words = [
        f"{percent(cached, cached + computed)} found",
        f"{number(computed)} computed",
        f"at most {number(longest)} wait",
    ]
    for row, text in enumerate(words):
        sheet.text(sheet.right - 110, sheet.y + 16 + 17 * row, text, size=SMALL, width=110)
    if died is not None:
        x = x0 + scale * died
        sheet.line([x, x], [sheet.y - 2, lower], colour=ROLES["highlight"].face, line=2.2)
        sheet.text(x + 5, sheet.y + 6, "dies", size=SMALL, colour=ROLES["highlight"].face, weight="bold")
    sheet.y = lower + GAP
    dead = "" if died is None else f", dies at {number(died)} s"
    return f"{name}: {number(cached)} prompt tokens found, {', '.join(words[1:])}, {count(len(of), 'pass')}{dead}"
