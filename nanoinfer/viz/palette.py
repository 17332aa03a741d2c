"""One palette for every picture: role → colour, hatch, text colour.

Roles that meet in one picture can be distinguished with any of the three colour blindnesses and in grey print: by
lightness, or else by hatch. tests/tools/test_viz_palette.py simulates both and measures.
"""

import re
from typing import NamedTuple


class Style(NamedTuple):
    """How a role looks: colours of the `face`, of `text` on it and of the `hatch`'s lines (`mark`)."""

    face: str
    text: str = "#1a1a1a"
    hatch: str = ""
    mark: str = "#1a1a1a"


INK, MUTED, GRID, PAPER = "#1a1a1a", "#5c5c5c", "#9a9a9a", "#ffffff"

ROLES: dict[str, Style] = {
    "free": Style("#ffffff", "#767676"),
    "tree": Style("#a6dcbc"),  # held by the radix tree, evictable
    "tree_locked": Style("#1f7a57", "#ffffff"),  # held by the radix tree, a running request relies on it
    "new": Style("#e57d0a"),  # computed in this pass
    "padding": Style("#e3e3e3", "#5c5c5c", "xxx", "#9a9a9a"),
    "hidden": Style("#f0f0f2", "#6a6a6a"),
    "leftover": Style("#f4f4f4", "#8c8c8c"),
    "highlight": Style("#d4006a", "#ffffff"),
    "leaked": Style("#ffd9d0", "#7a1500", "xxx", "#c0392b"),  # not free, and without a known owner
    "conflict": Style("#111111", "#ffffff", "..", "#ffffff"),  # more than one owner
    "in_use": Style("#b9bdc6"),
}
REQUESTS: tuple[Style, ...] = (
    Style("#6cbcee"),
    Style("#f2e35b", "#1a1a1a", "//", "#b5a000"),
    Style("#5b2a9b", "#ffffff"),
    Style("#dd92bd", "#1a1a1a", "..", "#8f2f68"),
    Style("#7b1f57", "#ffffff", "//", "#c583ab"),
    Style("#c2a3e8", "#1a1a1a", "\\\\", "#6d3fb0"),
    Style("#8a5a2b", "#ffffff", "..", "#e0bd95"),
    Style("#0b5fa5", "#ffffff", "\\\\", "#7fb6e6"),
)

# What a request does in a step, and what kind of pass a step is.
PHASE_STYLES: dict[str, Style] = {
    "waiting": ROLES["hidden"],
    "extend": ROLES["new"],
    "decode": Style("#0b5fa5", "#ffffff"),
    "idle": REQUESTS[0],  # holds slots, but is not in the pass
    "retracted": ROLES["leaked"],
    "paused": Style("#e3e3e3", "#5c5c5c", "//", "#9a9a9a"),
    "failed": ROLES["conflict"],
}

# Lines of a chart; the one four further on has the same dashes.
LINES: tuple[str, ...] = (
    "#0b5fa5",
    "#d35400",
    "#1f7a57",
    "#7b1f57",
    "#5a5a5a",
    "#8a5a2b",
    "#33288a",
    "#b5a000",
)


COMPLETION = 3  # looks from one completion of a request to the next; as many in player_draw.js


def request_style(number: int) -> Style:
    """The look of request `number`; eight, then again from the first."""
    return REQUESTS[number % len(REQUESTS)]


def owner_style(label: str, index: int) -> Style:
    """The look of an owner: by the request's number in its label, so that it stays the same from picture to picture, else
    by its place `index`. The completions of one request, `request 3 (2)`, have different looks. What is "set aside",
    and so empty, looks like padding."""
    if label == "set aside":
        return ROLES["padding"]
    request = re.search(r"(?:request|row)\D{0,2}(\d+)(?: \((\d+)\)$)?(?!.*request)", label)
    return request_style(int(request[1]) + COMPLETION * (int(request[2] or 1) - 1) if request else index)
