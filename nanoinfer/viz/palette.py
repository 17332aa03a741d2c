"""One palette for every picture: role → colour, hatch, text colour.

One colour means one thing in all pictures of the series. Roles that meet in one picture can be distinguished with any of
the three colour blindnesses and in grey print: by lightness, or else by hatch. tests/tools/viz/test_picture.py simulates
both and measures.
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
    "tree": Style("#a6dcbc"),
    "tree_locked": Style("#1f7a57", "#ffffff"),
    "new": Style("#e57d0a"),
    "in_use": Style("#cdb891"),
    "padding": Style("#e3e3e3", "#5c5c5c", "xxx", "#9a9a9a"),
    "hidden": Style("#f0f0f2", "#6a6a6a"),
    "leftover": Style("#f4f4f4", "#666666"),
    "highlight": Style("#d4006a", "#ffffff"),
    "leaked": Style("#ffd9d0", "#7a1500", "xxx", "#c0392b"),
    "conflict": Style("#111111", "#ffffff", "..", "#ffffff"),
}
PLAIN = ROLES["free"]._replace(text=INK)  # of what has no owner at all
# Slots of the tree, locked, whose K/V came back from a tier below the pool.
FETCHED: dict[str, Style] = {
    "host": ROLES["tree_locked"]._replace(hatch="..", mark="#c9eed9"),
    "disk": ROLES["tree_locked"]._replace(hatch="\\\\", mark="#c9eed9"),
}
REQUESTS: tuple[Style, ...] = (
    Style("#6cbcee"),
    Style("#f2e35b", "#1a1a1a", "//", "#b5a000"),
    Style("#5b2a9b", "#ffffff"),
    Style("#dd92bd", "#1a1a1a", "..", "#8f2f68"),
    Style("#7b1f57", "#ffffff", "//", "#c583ab"),
    Style("#c2a3e8", "#1a1a1a", "\\\\", "#6d3fb0"),
    Style("#8a5a2b", "#ffffff", "..", "#e0bd95"),
    Style("#565411", "#ffffff", "\\\\", "#c2bf74"),
)

# What a request does in a step, and what kind of pass a step is.
PHASE_STYLES: dict[str, Style] = {
    "waiting": ROLES["hidden"],
    "extend": ROLES["new"],
    "decode": Style("#fbcf95"),  # orange as well, since it is computed: less of it
    "verify": Style("#f4a947", "#1a1a1a", "\\\\", "#fcd9a4"),  # between the two, as it is
    "idle": Style("#767676", "#ffffff"),
    "retracted": Style("#8c1d18", "#ffffff"),
    "paused": Style("#d8d8d8", "#4f4f4f", "//", "#8a8a8a"),
    "failed": Style("#111111", "#ffffff", "//", "#ffffff"),
}

# Charts and adapters have a family of their own, charcoal and brick: they are neither a request nor the tree's.
BARS: tuple[Style, ...] = (
    Style("#55585f", "#ffffff"),
    Style("#c8776b"),
    Style("#ecd9c8"),
    Style("#7d2a22", "#ffffff"),
)
LINES: tuple[str, ...] = (  # the one four further on has the same dashes
    "#2b2d31",
    "#b0493c",
    "#7c7f86",
    "#7d2a22",
    "#9da0a6",
    "#5e403b",
    "#43464c",
    "#d08a80",
)
DARKEST = "#7d2a22"  # of a heat map


COMPLETION = 3  # looks from one completion of a request to the next; as many in state.js


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
