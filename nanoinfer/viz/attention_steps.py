"""attention_steps: attention of one token worked out with small numbers, one line per cached token."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nanoinfer.viz.lettering import BODY, SMALL, text_width
from nanoinfer.viz.palette import INK, MUTED, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import checked_texts, count

CELL, TALL, GAP = 72.0, 26.0, 30.0
PLAIN = ROLES["free"]._replace(text=INK)
MOST = 8  # tokens
MOST_WIDE = 4  # numbers in a key


def attention_steps(
    q: Any,
    keys: Any,
    values: Any,
    *,
    newest: bool = False,
    tokens: Sequence[str] | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """One query against every cached K: q · k, ÷ √D, softmax, weight × v, and the sum, each with its numbers.

    `q` [D], `keys` [S, D], `values` [S, D]: one head, from 1 to 8 tokens, D up to 4. `newest=True`: the last row has just
    been appended, computed in this pass; the others were in the cache. `tokens`: the tokens' texts. Raises ValueError when
    the shapes do not fit.
    """
    query, key, value = (_array(name, given) for name, given in (("q", q), ("keys", keys), ("values", values)))
    if query.ndim != 1 or not 1 <= len(query) <= MOST_WIDE:
        raise ValueError(f"q: shape {list(query.shape)}, must be [D] with D from 1 to {MOST_WIDE}")
    size = len(query)
    for name, array in (("keys", key), ("values", value)):
        if array.ndim != 2 or array.shape[1] != size or not 1 <= len(array) <= MOST or len(array) != len(key):
            raise ValueError(
                f"{name}: shape {list(array.shape)}, must be [S, {size}], the same S from 1 to {MOST} for keys and values"
            )
    names = checked_texts("tokens", tokens, len(key), "keys") or [f"token {i}" for i in range(len(key))]
    dots = key @ query
    scores = dots / size**0.5
    powers = np.exp(scores - scores.max())
    weights = powers / powers.sum()
    parts = weights[:, None] * value
    out = parts.sum(0)
    sheet = Sheet(
        title, f"Attention of one token over {count(len(key), 'token')}, one head, D = {size}", caption=caption
    )
    columns: list[tuple[str, str, np.ndarray]] = [
        ("k", "of each token", key),
        ("q · k", "how well they fit", dots[:, None]),
        (f"÷ √{size}", "kept small", scores[:, None]),
        ("softmax", "weights, sum 1", weights[:, None]),
        ("v", "of each token", value),
        ("weight × v", "its share", parts),
    ]
    gutter = min(max(text_width(name) for name in [*names, "the sum"]) + 16, 150)
    wide = sum(array.shape[1] for *_, array in columns)
    cell = min(CELL, (sheet.right - sheet.left - gutter - 5 * GAP - 10) / wide)
    # The query first, over the column of the keys that it is compared with.
    x, y = sheet.left + gutter, sheet.y + 2
    sheet.text(x - 10, y + TALL / 2, "q", ha="right", weight="bold")
    _row(sheet, x, y, cell, query, ROLES["new"], "q")
    sheet.text(x + size * cell + 12, y + TALL / 2, "the query of the newest token", size=SMALL, colour=MUTED)
    y += TALL + 16
    top = y + 34
    signs = ("", "→", "→", "→", "×", "=")
    for sign, (name, what, array) in zip(signs, columns, strict=True):
        width = array.shape[1] * cell
        sheet.text(x + width / 2, y + 7, name, ha="center", weight="bold")
        sheet.text(x + width / 2, y + 22, what, ha="center", size=6.5, colour=MUTED)
        for i, row in enumerate(array):
            cached = ROLES["new"] if newest and i == len(key) - 1 else ROLES["in_use"]
            style = cached if name in ("k", "v") else PLAIN
            _row(sheet, x, top + i * (TALL + 4), cell, row, style, f"{name} {i}")
            if sign:
                sheet.text(x - GAP / 2, top + i * (TALL + 4) + TALL / 2, sign, ha="center", size=BODY, colour=MUTED)
        if name == "weight × v":
            last = top + len(key) * (TALL + 4) + 4
            sheet.line([x - 2, x + width + 2], [last, last], colour=INK, line=1.3)
            _row(sheet, x, last + 6, cell, out, PLAIN, "out")
            sheet.text(x - 10, last + 6 + TALL / 2, "their sum: the result", ha="right", weight="bold")
        x += width + GAP
    for i, text in enumerate(names):
        sheet.text(sheet.left + gutter - 10, top + i * (TALL + 4) + TALL / 2, text, ha="right", width=gutter - 10)
    sheet.y = top + (len(key) + 1) * (TALL + 4) + 20
    entries = [(ROLES["in_use"], "K and V from earlier passes"), (ROLES["new"], "computed in this pass")]
    sheet.legend(entries if not newest or len(key) > 1 else entries[1:])
    steps = "; ".join(
        f"{text}: q·k {_short(dot)}, ÷√{size} {_short(score)}, weight {_short(weight)}"
        for text, dot, score, weight in zip(names, dots, scores, weights, strict=True)
    )
    appended = f"; {names[-1]} has just been appended" if newest else ""
    return sheet.picture(f"q = {_list(query)}; {steps}{appended}; the result is {_list(out)}.")


def _array(name: str, given: Any) -> np.ndarray:
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: must be numbers: {error}") from None
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: must be finite")
    return array


def _row(sheet: Sheet, x: float, y: float, cell: float, numbers: np.ndarray, style: Style, name: str) -> None:
    for i, number in enumerate(numbers):
        sheet.cell(x + i * cell, y, cell, TALL, style, _short(number), edge="#8a8a8a", name=f"{name} {i}")


def _short(number: float) -> str:
    """Up to three places behind the point: the same number is the same everywhere."""
    text = f"{number:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("-", "−")


def _list(numbers: np.ndarray) -> str:
    return "[" + ", ".join(map(_short, numbers)) + "]"
