"""A small explorable with a panel of each kind."""

from typing import Any

from notebooks.course.explore import (
    Bar,
    Bars,
    Cell,
    CellRow,
    Cells,
    Control,
    Explorable,
    Frame,
    Lane,
    Lanes,
    Node,
    Number,
    Numbers,
    Span,
    Strip,
    Tree,
)

SLOTS, NAMES = (4, 8, 16), ("few", "many")


def panels(slots: int, name: str) -> list[Any]:
    """One panel of each kind; the last never changes."""
    used = slots // 2 + (name == "many")
    before = Node("", key="r", children=[Node("abcd", "0..3", 1, key="a")])
    after = [Node("cd", "2..3", 1, was="a"), Node("xy", "8..9", mark="new")]
    return [
        Bars("Bars", [Bar("used", used, f"{used} slots"), Bar("cut", 0, "cut", True, before=2)], most=16),
        Cells(
            "Cells",
            [CellRow("row 0", [Cell("r0", str(i)) for i in range(used)] + [Cell()] * (slots - used))],
            [("r0", "request 0")],
        ),
        Lanes(
            "Lanes",
            4,
            [Lane("request 0", [Span(0, 1, "waiting"), Span(1, 4, "decode")], "r0", 4)],
            Strip("slots", slots, [[("r0", min(used, step))] for step in range(4)]),
            at=2,
            legend=[("decode", "decode"), ("r0", "held by request 0")],
        ),
        Tree("Tree", Node("", children=[Node("ab", "0..1", 1, "split", was="a", children=after)]), before),
        Numbers("Numbers", [Number("always", "the same"), Number("long", "a long sentence that takes space")]),
    ]


def make(**changes: Any) -> Explorable:
    controls = [Control("slots", "slots", SLOTS, start=1), Control("name", "how many", NAMES)]
    frames = {
        (i, j): Frame(panels(slots, name), f"{slots} slots, {name}.")
        for i, slots in enumerate(SLOTS)
        for j, name in enumerate(NAMES)
    }
    given: dict[str, Any] = {"title": "Which?", "intro": "Look.", "controls": controls, "frames": frames}
    return Explorable(**given | changes)
