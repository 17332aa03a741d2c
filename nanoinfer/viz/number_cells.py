"""attention_steps, heat_map, wire: numbers in cells: attention worked out, a matrix of shares, and bytes."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import BARS, DARKEST, GRID, INK, MUTED, PAPER, PLAIN, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Sheet
from nanoinfer.viz.words import SPACE_NOTE, count, visible

CELL, TALL, GAP, NAMES = 72.0, 26.0, 30.0, 62.0


def attention_steps(q: Any, keys: Any, values: Any, *, newest: bool = False, **heading: Unpack[Heading]) -> Picture:
    """One query against every cached K: q · k, ÷ √D, softmax, weight × v, and the sum, each with its numbers.

    `q` [D], `keys` [S, D], `values` [S, D]: one head, from 1 to 8 tokens, D up to 4. `newest=True`: the last row has just
    been appended, computed in this pass; the others were in the cache.
    """
    query, key, value = (np.asarray(given, dtype=np.float64) for given in (q, keys, values))
    size = len(query)
    names = [f"token {i}" for i in range(len(key))]
    dots = key @ query
    scores = dots / size**0.5
    powers = np.exp(scores - scores.max())
    weights = powers / powers.sum()
    parts = weights[:, None] * value
    out = parts.sum(0)
    sheet = Sheet(
        default_title=f"Attention of one token over {count(len(key), 'token')}, one head, D = {size}", **heading
    )
    columns: list[tuple[str, str, np.ndarray]] = [
        ("k", "of each token", key),
        ("q · k", "how well they fit", dots[:, None]),
        (f"÷ √{size}", "kept small", scores[:, None]),
        ("softmax", "weights, sum 1", weights[:, None]),
        ("v", "of each token", value),
        ("weight × v", "its share", parts),
    ]
    cell = min(CELL, (sheet.right - sheet.left - NAMES - 5 * GAP - 10) / sum(array.shape[1] for *_, array in columns))
    # The query first, over the column of the keys that it is compared with.
    x, y, pitch = sheet.left + NAMES, sheet.y + 2, TALL + 4
    sheet.text(x - 10, y + TALL / 2, "q", ha="right", weight="bold")
    _row(sheet, x, y, cell, query, ROLES["new"], "q")
    sheet.text(x + size * cell + 12, y + TALL / 2, "the query of the newest token", size=SMALL, colour=MUTED)
    y += TALL + 16
    top = y + 34
    for i, text in enumerate(names):
        sheet.text(x - 10, top + i * pitch + TALL / 2, text, ha="right")
    signs = ("", "→", "→", "→", "×", "=")
    for sign, (name, what, array) in zip(signs, columns, strict=True):
        width = array.shape[1] * cell
        sheet.text(x + width / 2, y + 7, name, ha="center", weight="bold")
        sheet.text(x + width / 2, y + 22, what, ha="center", size=TINY, colour=MUTED)
        for i, row in enumerate(array):
            cached = ROLES["new"] if newest and i == len(key) - 1 else ROLES["in_use"]
            _row(sheet, x, top + i * pitch, cell, row, cached if name in ("k", "v") else PLAIN, f"{name} {i}")
            sheet.text(x - GAP / 2, top + i * pitch + TALL / 2, sign, ha="center", colour=MUTED)
        if name == "weight × v":
            last = top + len(key) * pitch + 4
            sheet.line([x - 2, x + width + 2], [last, last], colour=INK, line=1.3)
            _row(sheet, x, last + 6, cell, out, PLAIN, "out")
            sheet.text(x - 10, last + 6 + TALL / 2, "their sum: the result", ha="right", weight="bold")
        x += width + GAP
    sheet.y = top + (len(key) + 1) * pitch + 20
    entries = [(ROLES["in_use"], "K and V from earlier passes"), (ROLES["new"], "computed in this pass")]
    sheet.legend(entries if not newest or len(key) > 1 else entries[1:])
    steps = "; ".join(
        f"{text}: q·k {_short(dot)}, ÷√{size} {_short(score)}, weight {_short(weight)}"
        for text, dot, score, weight in zip(names, dots, scores, weights, strict=True)
    )
    appended = f"; {names[-1]} has just been appended" if newest else ""
    return sheet.picture(
        f"q = [{', '.join(map(_short, query))}]; {steps}{appended}; the result is [{', '.join(map(_short, out))}]."
    )


def _row(sheet: Sheet, x: float, y: float, cell: float, numbers: np.ndarray, style: Style, name: str) -> None:
    for i, number in enumerate(numbers):
        sheet.cell(x + i * cell, y, cell, TALL, style, _short(number), edge="#8a8a8a", name=f"{name} {i}")


def _short(number: float) -> str:
    """Up to three places behind the point: the same number is the same everywhere."""
    text = f"{number:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("-", "−")


def heat_map(
    values: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    numbers: bool = False,
    **heading: Unpack[Heading],
) -> Picture:
    """Shares `values` [rows, columns], 0..1, as cells: white for 0, darkest for 1; with `numbers` also as text.

    Labels may be token texts; their spaces are shown. Of attention weights, rows are the queries and columns the keys.
    Raises ValueError when a value is outside 0..1.
    """
    matrix = np.asarray(values, dtype=np.float64)
    if not 0 <= matrix.min() <= matrix.max() <= 1 + 1e-6:
        raise ValueError(f"values: {matrix.min():g}..{matrix.max():g}, must be in 0..1")
    sheet = Sheet(**heading)
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
        for column in range(len(across)):
            share = float(matrix[row, column])
            label = f"{share:.2f}" if numbers and share >= 0.005 else ""
            look, name = _shade(share), f"cell {row} {column}"
            sheet.cell(x0 + column * width, sheet.y, width, height, look, label, size=TINY, edge="#d0d0d0", name=name)
        sheet.y += height
    sheet.y += 10
    steps = (0, 0.25, 0.5, 0.75, 1)
    sheet.legend([(_shade(step), f"{step:g}") for step in steps])
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


BY_SIZE: tuple[Style, ...] = (BARS[2], BARS[1], BARS[0], BARS[3])  # the most bytes are on the lightest
COLUMNS = 64
GUTTER, HEIGHT = 36.0, 19.0
ESCAPES = {0x20: "·", 0x0D: "\\r", 0x0A: "\\n", 0x09: "\\t"}


def wire(parts: Sequence[tuple[str, bytes]], **heading: Unpack[Heading]) -> Picture:
    """`parts` in order, as (label, bytes); a label may come several times. Each line of the bytes begins a row, with the
    number of its first byte. A byte that is no printable ASCII is shown as `\\r`, `\\n`, `\\t` or in hexadecimal.
    """
    sizes: dict[str, int] = {}
    for label, data in parts:
        if len(data):
            sizes[label] = sizes.get(label, 0) + len(data)
    total = sum(sizes.values())
    styles = {label: BY_SIZE[i] for i, label in enumerate(sorted(sizes, key=lambda label: -sizes[label]))}
    sheet = Sheet(default_title=f"{count(total, 'byte')} on the wire", **heading)
    width = (sheet.right - sheet.left - GUTTER) / COLUMNS
    column = at = 0
    for label, data in parts:
        for byte in data:
            if column == 0:
                sheet.text(sheet.left + GUTTER - 8, sheet.y + HEIGHT / 2, str(at), size=TINY, ha="right", colour=MUTED)
            text = ESCAPES.get(byte) or (chr(byte) if 0x21 <= byte < 0x7F else f"{byte:02x}")
            place = sheet.left + GUTTER + width * column, sheet.y, width, HEIGHT
            sheet.cell(*place, styles[label], text, edge=GRID, name=f"byte {at}")
            at, column = at + 1, column + 1
            if byte == 0x0A or column == COLUMNS:
                sheet.y, column = sheet.y + HEIGHT + 2, 0
    sheet.y += HEIGHT + 8 if column else 6
    sheet.legend([(styles[label], f"{label}: {count(sizes[label], 'byte')}") for label in sizes])
    said = ", ".join(f"{label} {size}" for label, size in sizes.items())
    return sheet.picture(f"{count(total, 'byte')}: {said}.")
