"""The lines and dots of a hatch, drawn for each shape from its own lower edge.

Matplotlib's own hatches are one pattern behind the whole picture, of which a shape shows what happens to be behind it: of
a strip a few pixels tall, often nothing.
"""

from math import ceil
from typing import Any

import numpy as np
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from nanoinfer.viz.palette import Style

SPACING = 7.0  # CSS pixels from one line to the next, along the edge
DOTS = 5.0  # and from one dot to the next
RADIUS = 0.9


def marks_of(style: Style, x: float, y: float, width: float, height: float, z: float) -> PathPatch | None:
    """The hatch of `style` in the rectangle, y down; None where no mark fits in."""
    bottom, paths = y + height, []
    if "." in style.hatch:
        rows = max(round(height / DOTS), 1)
        for row in range(rows):
            middle = bottom - height * (row + 0.5) / rows
            shift = DOTS / 2 * (row % 2)
            for i in range(ceil((x + RADIUS - shift) / DOTS), int((x + width - RADIUS - shift) / DOTS) + 1):
                paths.append(Path.circle((shift + i * DOTS, middle), min(RADIUS, height / 2)))
    slopes = {"/": (1,), "\\": (-1,), "x": (1, -1)}
    for slope in slopes.get(style.hatch[:1], ()):
        for i in range(ceil((x - height) / SPACING), int((x + width + height) / SPACING) + 1):
            foot = i * SPACING  # where the line meets the lower edge; it rises to the right, or to the left
            ends = sorted(((x - foot) * slope, (x + width - foot) * slope))
            low, high = max(ends[0], 0.0), min(ends[1], height)
            if high - low > 0.5:
                points = [(foot + slope * up, bottom - up) for up in (low, high)]
                paths.append(Path(np.array(points), [Path.MOVETO, Path.LINETO]))
    if not paths:
        return None
    look: dict[str, Any] = {"facecolor": style.mark, "linewidth": 0} if "." in style.hatch else {"fill": False}
    return PathPatch(Path.make_compound_path(*paths), **{"edgecolor": style.mark, "linewidth": 0.7, **look}, zorder=z)
