"""heat_map: a matrix of shares, darker where there is more."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import DARKEST, INK, MUTED, PAPER, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import SPACE_NOTE, expect_type, visible


def heat_map(
    values: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    numbers: bool = False,
    most: float = 1.0,
    causal: bool = False,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """Shares `values` [rows, columns], 0..1, as cells: white for 0, darkest from `most` on; with `numbers` also as text.

    `causal`: row i has cells up to column i only, since a token sees none after it. `numbers` have three decimals if `most`
    is small. Labels may be token texts; their spaces are shown. Of attention weights, rows are the queries and columns the
    keys.
    Raises ValueError when labels do not fit the shape, a value is outside 0..1, or `most` is not in (0, 1].
    """
    try:
        matrix = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"values: must be numbers [rows, columns]: {error}") from None
    expect_type("rows", rows, Sequence)
    expect_type("columns", columns, Sequence)
    if matrix.ndim != 2 or matrix.shape != (len(rows), len(columns)) or not matrix.size:
        raise ValueError(
            f"values: shape {list(matrix.shape)}, must be [{len(rows)}, {len(columns)}] as labelled, not empty"
        )
    if not (np.isfinite(matrix).all() and matrix.min() >= 0 and matrix.max() <= 1 + 1e-6):
        raise ValueError(f"values: {matrix.min():g}..{matrix.max():g}, must be in 0..1")
    if not 0 < most <= 1:
        raise ValueError(f"most={most}: must be above 0 and at most 1")
    sheet = Sheet(title, caption=caption)
    places = 2 if most > 0.2 else 3
    across, down = [_label(text) for text in columns], [_label(text) for text in rows]
    gutter = min(max(text_width(text) for text in down) + 16, 220)
    x0 = sheet.left + gutter
    width = min((sheet.right - x0 - 30) / len(across), 64.0)
    height = 24.0 if len(down) <= 12 else 19.0
    upright = all(text_width(text, SMALL) <= width - 4 for text in across)
    headroom = 16 if upright else min(max(text_width(text, SMALL) for text in across), 110) * 0.72 + 12
    sheet.y += headroom
    for column, text in enumerate(across):
        middle = x0 + (column + 0.5) * width
        if upright:
            sheet.text(middle, sheet.y - 8, text, size=SMALL, ha="center")
        else:
            sheet.text(middle - 2, sheet.y - 5, text, size=SMALL, va="baseline", rotation=45, width=140)
    for row, text in enumerate(down):
        sheet.text(x0 - 8, sheet.y + height / 2, text, ha="right", width=gutter - 8)
        for column in range(min(row + 1, len(across)) if causal else len(across)):
            share = float(matrix[row, column])
            label = f"{share:.{places}f}" if numbers and share >= 0.5 * 10**-places else ""
            sheet.cell(
                x0 + column * width, sheet.y, width, height, _shade(share / most), label, size=TINY, edge="#d0d0d0",
                name=f"cell {row} {column}",
            )  # fmt: skip
        sheet.y += height
    sheet.y += 10
    steps = (0, 0.25, 0.5, 0.75, 1)
    sheet.legend([(_shade(step), f"{step * most:.3g}{' or more' if step == 1 > most else ''}") for step in steps])
    if any("·" in text for text in across + down):
        sheet.caption(SPACE_NOTE, size=TINY)
    peaks = matrix.argmax(axis=1)
    alt = "; ".join(
        f"{text}: largest at {across[column]}, {matrix[row, column]:.2f}"
        for row, (text, column) in enumerate(zip(down, peaks, strict=True))
    )
    return sheet.picture(alt + ".")


def _label(text: str) -> str:
    """A token's text with the space before it shown."""
    return visible(text) if text != text.strip() else text


def _shade(share: float) -> Style:
    share = min(round(20 * share) / 20, 1.0)  # few colours: a PNG's palette has room for them all
    white, darkest = (tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in (PAPER, DARKEST))
    mixed = [round(light + (dark - light) * share) for light, dark in zip(white, darkest, strict=True)]
    return Style("#" + "".join(f"{part:02x}" for part in mixed), "#ffffff" if share > 0.8 else INK if share else MUTED)
