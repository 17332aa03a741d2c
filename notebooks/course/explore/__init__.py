"""Interactive figures: pages with sliders that choose among recorded runs of the live engine.

An interactive figure is one HTML file: it needs no network and no Jupyter. Python runs the engine, and
writes down for every combination of the controls what there is to see; the page looks it up and draws it. No part of the
engine is written again in JavaScript, and no number is computed there.

    from notebooks.course.explore import Bar, Bars, Control, InteractiveFigure, Frame

    sizes = [1, 2, 4]
    InteractiveFigure(
        "How many slots does a prompt take?",
        "Drag the page size. Grey is what is allocated and not used.",
        [Control("page_size", "page size", sizes)],
        lambda size: Frame([Bars("Slots", [Bar("used", 5, "5 slots")], most=8)], "..."),
    )

- As the last expression of a notebook cell it shows itself; `.save("page.html")` writes it, `.html()` is its text.
- `Control(name, label, values, labels=None, start=0)`: numbers make a slider, anything else a list to choose from.
- `Frame(panels, sentence)`: what one combination shows. The sentence is said aloud when a control moves: it names the
  cause of what there is to see. Frames may share panels; what repeats is in the file once.
- The function makes the frame of the values that the controls choose; `figure.frames[0, 1]` is one, by their indices.
- Panels are plain data (panels/): `Bars` of `Bar`, `Cells` of `CellRow` of `Cell`, `Lanes`
  of `Lane` of `Span` with a `Strip` above them and `Flag`s, `Tree` of `Node`, `Numbers` of `Number`. Each kind is a
  dataclass that says itself in words and draws itself on paper (for the still picture), and in panels.js has
  `draw.KIND = (panel, box) => ...`. `bars_of` makes bars to compare, `padded` lines of cells of the same length.
- Looks are names of the palette: "r0" to "r7" (requests), "tree", "locked", "new", "free", "padding", "highlight",
  "leaked", "in-use", "bar" (of a chart), and "unused", which shows a dash. Phases of a span are those of PHASE_STYLES.
- A scale (`most`, `x_range`) is the same in all frames: what grows on the page has then grown.

The interactive figures of the series are functions in files of the same name: `sampling`, `pool_sizes`, `routing`. The
command `python -m notebooks.course.explore NAME` writes one.
"""

from notebooks.course.explore.interactive_figure import Control, Frame, InteractiveFigure
from notebooks.course.explore.panels.base import Bar, Bars, Number, Numbers, bars_of
from notebooks.course.explore.panels.cells import Cell, CellRow, Cells, padded
from notebooks.course.explore.panels.lanes import Flag, Lane, Lanes, Span, Strip
from notebooks.course.explore.panels.tree import Node, Tree

__all__ = [
    "Bar",
    "Bars",
    "Cell",
    "CellRow",
    "Cells",
    "Control",
    "Flag",
    "Frame",
    "InteractiveFigure",
    "Lane",
    "Lanes",
    "Node",
    "Number",
    "Numbers",
    "Span",
    "Strip",
    "Tree",
    "bars_of",
    "padded",
]
