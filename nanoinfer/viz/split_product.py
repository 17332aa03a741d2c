"""split_product: two matrices, one after the other, divided over processes: the first by columns, the second by rows."""

from functools import partial
from typing import Any

import numpy as np

from nanoinfer.viz.lettering import SMALL
from nanoinfer.viz.palette import BARS, INK, MUTED, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count, number

CELL, HEIGHT = 17.0, 17.0  # a cell's largest side; the height of a number
WIDE = 36.0  # of a number
GUTTER, GAP = 92.0, 34.0
MOST_PARTS, MOST_SIZE = 4, 8


def split_product(
    x: Any, first: Any, second: Any, parts: int, *, title: str | None = None, caption: str | None = None
) -> Picture:
    """`x` [d] @ `first` [d, f] @ `second` [f, d], drawn per process: its columns of `first`, its rows of `second`, and the
    numbers of its partial sum; below, the sum of all.

    ValueError for shapes that do not fit, sizes above 8, and `parts` outside 1..4 or that does not divide f.
    """
    vector, one, two = (np.asarray(each, dtype=np.float64) for each in (x, first, second))
    _check(vector, one, two, parts)
    d, f = one.shape
    size = f // parts
    sheet = Sheet(title, "Columns of the first matrix, rows of the second", caption=caption)
    total, largest = np.zeros(two.shape[1]), vector @ one @ two
    room = sheet.right - sheet.left - GUTTER - 4 * GAP - WIDE * two.shape[1]
    cell = min(CELL, room / (d + 2 * f + two.shape[1]))
    height = cell * max(d, f)
    x_vector = sheet.left + GUTTER
    x_first = x_vector + cell * d + GAP
    x_hidden = x_first + cell * f + GAP
    x_second = x_hidden + cell * f + GAP
    x_sum = x_second + cell * two.shape[1] + GAP
    heads = {x_vector: f"x [{d}]", x_first: f"first [{d}, {f}]", x_hidden: f"h [{f}]"}
    heads |= {x_second: f"second [{f}, {two.shape[1]}]", x_sum: "its partial sum"}
    for left, words in heads.items():
        sheet.text(left, sheet.y + 6, words, size=SMALL, colour=MUTED)
    sheet.y += 16
    for part in range(parts):
        mine, style, middle = range(part * size, (part + 1) * size), BARS[part], sheet.y + height / 2
        sheet.text(sheet.left, middle, f"process {part}", weight="bold", width=GUTTER - 4)
        cells = partial(_cells, sheet, middle, cell, style)
        cells(x_vector, 1, d, lambda r, c: True, f"x {part}")
        cells(x_first, d, f, lambda r, c, mine=mine: c in mine, f"first {part}")
        cells(x_hidden, 1, f, lambda r, c, mine=mine: c in mine, f"h {part}")
        cells(x_second, f, two.shape[1], lambda r, c, mine=mine: r in mine, f"second {part}")
        for left, sign in ((x_first, "·"), (x_hidden, "="), (x_second, "·"), (x_sum, "=")):
            sheet.text(left - 18, middle, sign, size=11, ha="center")
        partial_sum = vector @ one[:, mine.start : mine.stop] @ two[mine.start : mine.stop]
        total += partial_sum
        _numbers(sheet, x_sum, middle - HEIGHT / 2, partial_sum, style, f"partial {part}")
        if part + 1 < parts:
            sheet.text(x_sum + WIDE * len(partial_sum) / 2, middle + height / 2 + 6, "+", size=11, ha="center")
        sheet.y += height + 14
    sheet.line([x_sum, x_sum + WIDE * len(total)], [sheet.y - 4] * 2, colour=INK)
    sheet.text(x_sum - 18, sheet.y + 10, "=", size=11, ha="center")
    sheet.text(x_sum - 34, sheet.y + 10, "the sum of all, in every process", size=SMALL, ha="right", colour=MUTED)
    _numbers(sheet, x_sum, sheet.y + 2, total, Style("#ffffff"), "sum")
    sheet.y += HEIGHT + 16
    sheet.legend([(BARS[part], f"process {part}: what it has and computes") for part in range(parts)])
    off = float(np.abs(total - largest).max())
    return sheet.picture(
        f"{count(parts, 'process')}: each has {size} of {f} columns of the first matrix and {size} of {f} rows of the "
        f"second. The partial sums add up to {', '.join(map(number, total.round(2)))}; "
        f"the whole product differs by {'nothing' if off < 1e-9 else number(off)}."
    )


def _cells(
    sheet: Sheet, middle: float, cell: float, style: Style, x: float, rows: int, columns: int, has: Any, name: str
) -> None:
    """A matrix: the cells that a process has are filled, the others only framed."""
    y = middle - cell * rows / 2
    for row in range(rows):
        for column in range(columns):
            place = x + cell * column, y + cell * row, cell, cell
            if has(row, column):
                sheet.rect(*place, style, edge="#ffffff", line=0.6, name=f"{name} {row} {column}")
            else:
                sheet.rect(*place, edge="#c8c8c8", line=0.5)
    sheet.rect(x, y, cell * columns, cell * rows, edge="#767676", line=0.9)


def _numbers(sheet: Sheet, x: float, y: float, values: np.ndarray, style: Style, name: str) -> None:
    for i, value in enumerate(values.tolist()):
        text = f"{value:.2f}".replace("-", "\u2212")
        sheet.cell(x + WIDE * i, y, WIDE, HEIGHT, style, text, edge="#b8b8b8", name=f"{name} {i}")


def _check(x: np.ndarray, first: np.ndarray, second: np.ndarray, parts: int) -> None:
    if x.ndim != 1 or first.ndim != 2 or second.ndim != 2 or first.shape != (len(x), len(second)):
        shapes = f"x {list(x.shape)}, first {list(first.shape)}, second {list(second.shape)}"
        raise ValueError(f"{shapes}: must be [d], [d, f] and [f, e]")
    if not 0 < max(*first.shape, *second.shape) <= MOST_SIZE:
        raise ValueError(f"sizes {[*first.shape, second.shape[1]]}: must be 1..{MOST_SIZE}")
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= MOST_PARTS:
        raise ValueError(f"parts={parts!r}: must be an integer, 1..{MOST_PARTS}")
    if first.shape[1] % parts:
        raise ValueError(f"parts={parts}: must divide f={first.shape[1]}")
