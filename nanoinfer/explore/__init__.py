"""Explorables: pages with sliders that choose among recorded runs of the live engine.

An explorable is one HTML file: it needs no network and no Jupyter. Python runs the engine, and
writes down for every combination of the controls what there is to see; the page looks it up and draws it. No part of the
engine is written again in JavaScript, and no number is computed there.

    from nanoinfer.explore import Bar, Bars, Control, Explorable, Frame

    sizes = [1, 2, 4]
    Explorable(
        "How many slots does a prompt take?",
        "Drag the page size. Grey is what is allocated and not used.",
        [Control("page_size", "page size", sizes)],
        {(i,): Frame([Bars("Slots", [Bar("used", 5, "5 slots")], most=8)], "...") for i, size in enumerate(sizes)},
    )

- As the last expression of a notebook cell it shows itself; `.save("page.html")` writes it, `.html()` is its text.
- `Control(name, label, values, labels=None, start=0)`: numbers make a slider, anything else a list to choose from.
- `Frame(panels, sentence)`: what one combination shows. The sentence is said aloud when a control moves: it names the
  cause of what there is to see. Frames may share panels; what repeats is in the file once.
- `frames` has every combination of indices, `{(0, 0): Frame, (0, 1): Frame, ...}`.
- Panels are plain data (panels/): `Bars` of `Bar`, `Lines` of `Series` and `Mark`, `Cells` of `CellRow` of `Cell`, `Lanes`
  of `Lane` of `Span` with a `Strip` above them and `Flag`s, `Tree` of `Node`, `Numbers` of `Number`. Each kind is a
  dataclass that checks itself, says itself in words and draws itself on paper (for the still picture), and next to it a
  file of JavaScript, `draw.KIND = (panel, box) => ...`.
- Looks are names of the palette: "r0" to "r7" (requests), "tree", "locked", "new", "free", "padding", "highlight",
  "leaked", "in-use", "bar" (of a chart), and "unused", which shows a dash. Phases of a span are those of PHASE_STYLES.
- A scale (`most`, `x_range`) is the same in all frames: what grows on the page has then grown.

The explorables of the package are functions in files of the same name, `from nanoinfer.explore.sampling import sampling`:
`sampling`, `padding`, `roofline`. To be written by `python -m nanoinfer.explore NAME`, one needs its line in catalogue.py.
"""

from nanoinfer.explore.control import Control
from nanoinfer.explore.explorable import Explorable, Frame
from nanoinfer.explore.panels.bars import Bar, Bars
from nanoinfer.explore.panels.cells import Cell, CellRow, Cells
from nanoinfer.explore.panels.lanes import Flag, Lane, Lanes, Span, Strip
from nanoinfer.explore.panels.lines import Lines, Mark, Series
from nanoinfer.explore.panels.numbers import Number, Numbers
from nanoinfer.explore.panels.tree import Node, Tree

__all__ = [
    "Bar",
    "Bars",
    "Cell",
    "CellRow",
    "Cells",
    "Control",
    "Explorable",
    "Flag",
    "Frame",
    "Lane",
    "Lanes",
    "Lines",
    "Mark",
    "Node",
    "Number",
    "Numbers",
    "Series",
    "Span",
    "Strip",
    "Tree",
]
