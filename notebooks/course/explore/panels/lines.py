"""Lines: curves and measured points over two axes, both logarithmic if wanted; points may be marked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from nanoinfer.viz.lettering import BODY, SMALL
from nanoinfer.viz.palette import GRID, INK, LINES, MUTED, ROLES
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import number
from notebooks.course.explore.panels.base import Panel

TALL = 11  # of a label in the drawing


@dataclass(frozen=True)
class Series:
    """`points` (x, y) joined by a line, or, with `dots`, each by itself: a disk, or, with `squares` too, an open square, in
    which a disk at the same place is seen. `label` is in the legend, and beside the point number `label_at` (None: not in
    the drawing). `colour`: its place in the palette's LINES. `face`: another one, for dots; disks then have an edge.
    `pale`: in the background, where all are dashed and have one colour, so its label is in the drawing only."""

    label: str
    points: Sequence[tuple[float, float]]
    dots: bool = False
    squares: bool = False
    colour: int = 0
    pale: bool = False
    label_at: int | None = -1
    face: str = ""


@dataclass(frozen=True)
class Mark:
    """The point to look at, with what is written beside it. `of`: the number of the series whose look it has; None: one of
    its own."""

    x: float
    y: float
    text: str = ""
    of: int | None = None


@dataclass(frozen=True)
class Lines(Panel):
    """`x`, `y`: what the axes say. `x_range`, `y_range`: from, to; the same in all frames, so that they can be compared."""

    kind: ClassVar[str] = "lines"
    title: str
    x: str
    y: str
    series: Sequence[Series]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    marks: Sequence[Mark] = ()
    log_x: bool = False
    log_y: bool = False
    note: str = ""

    def words(self) -> str:
        said = [
            f"{each.label}: from {number(each.points[0][1])} at {number(each.points[0][0])} "
            f"to {number(each.points[-1][1])} at {number(each.points[-1][0])}"
            for each in self.series
            if each.label
        ]
        marks = [f"{mark.text}: {number(mark.y)} at {number(mark.x)}" for mark in self.marks]
        return f"{self.title}. {self.y} over {self.x}. {'; '.join(said + marks)}."

    def draw(self, sheet: Sheet) -> None:
        left, top, width, height = sheet.left + 70, sheet.y + 18, 780, 260

        def place(x: float, y: float) -> tuple[float, float]:
            return (
                left + width * _share(x, self.x_range, self.log_x),
                top + height * (1 - _share(y, self.y_range, self.log_y)),
            )

        sheet.rect(left, top, width, height, edge=GRID)
        for each in self.series:
            places = [place(x, y) for x, y in each.points]
            colour = GRID if each.pale else LINES[each.colour]
            if each.dots:
                for x, y in places:
                    _point(sheet, each, x, y)
            else:
                sheet.line([x for x, _ in places], [y for _, y in places], colour=colour, line=2)
            if each.label and each.label_at is not None:
                x, y = places[each.label_at]
                others = [place(*other.points[-1])[1] for other in self.series if other is not each and not other.dots]
                down = 10 if any(0 < y - other < 2 * TALL for other in others) else -9
                side = "right" if x > left + width / 2 else "left"
                sheet.text(x, y + down, each.label, size=SMALL, colour=INK, ha=side, behind="white")
        for mark in self.marks:
            x, y = place(mark.x, mark.y)
            if mark.of is None:
                sheet.text(x, y, "●", size=13, colour=ROLES["highlight"].face, ha="center")
            else:
                _point(sheet, self.series[mark.of], x, y, large=True)
            sheet.text(x + 9, y + 11, mark.text, size=SMALL, weight="bold", behind="white")
        for value in _ticks(self.x_range, self.log_x):
            x, _ = place(value, self.y_range[0])
            sheet.text(x, top + height + 10, number(value), size=SMALL, colour=MUTED, ha="center")
        for value in _ticks(self.y_range, self.log_y):
            _, y = place(self.x_range[0], value)
            sheet.text(left - 6, y, number(value), size=SMALL, colour=MUTED, ha="right")
        sheet.text(left, top - 8, self.y, colour=MUTED)
        sheet.text(left + width / 2, top + height + 26, self.x, colour=MUTED, ha="center")
        sheet.y = top + height + 42
        for each in self.series:
            if each.label and each.label_at is None:
                if each.dots:
                    _point(sheet, each, left + 4, sheet.y)
                else:
                    sheet.text(left, sheet.y, "—", colour=LINES[each.colour], weight="bold")
                sheet.text(left + 16, sheet.y, each.label)
                sheet.y += 16


def _point(sheet: Sheet, series: Series, x: float, y: float, large: bool = False) -> None:
    """A point of it, which has an edge if it has a face of its own."""
    colour, size = series.face or LINES[series.colour], 13.0 if large else BODY
    if series.squares and not series.face:
        sheet.text(x, y, "□", size=size, colour=colour, ha="center")
        return
    sign = "■" if series.squares else "●"
    sheet.text(x, y, sign, size=size, colour=INK if series.face else colour, ha="center")
    if series.face:
        sheet.text(x, y, sign, size=0.78 * size, colour=colour, ha="center")


def _ticks(limits: tuple[float, float], log: bool) -> list[float]:
    """Powers of ten between the limits, or round numbers, about five, as in lines.js."""
    low, high = limits
    if not log:
        unit = 10.0 ** math.floor(math.log10((high - low) / 5))
        step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= (high - low) / 5 * (1 - 1e-9))
        return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    return [10.0**power for power in powers]


def _share(value: float, limits: tuple[float, float], log: bool) -> float:
    low, high = limits
    if log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return min(max((value - low) / (high - low), 0), 1)
