"""split_layer, split_product: matrices over several processes: what each has of every one, and where they add up."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.split import Cut
from nanoinfer.parallel.shard import Shard, cuts_of
from nanoinfer.viz.lettering import SMALL
from nanoinfer.viz.palette import BARS, INK, MUTED, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count, number

GUTTER, GAP, HEADS, BAND = 84.0, 24.0, 74.0, 22.0  # widths: of names, between things, of all heads, of what all have
MOST_HEIGHT = 112.0  # of a matrix
EDGE, FRAME = "#767676", "#c8c8c8"
COMMON = Style("#f7f7f7")


def split_layer(config: ModelConfig, parts: int, *, title: str | None = None, caption: str | None = None) -> Picture:
    """A layer of a model with `config` over `parts` processes, by the engine's own rules (nanoinfer/parallel/cuts.py).

    From left to right, matrices as [inputs, outputs], to scale. A process has columns of q, k, v, gate and up, and the rows
    of the output projection and of down that belong to them. ValueError if `parts` cannot split it.
    """
    shards = [Shard(part, parts) for part in range(parts)]
    for shard in shards:
        shard.own_config(config)
    cuts = [cuts_of(shard, config) for shard in shards]
    hidden, q, kv = config.hidden_size, cuts[0]["q_proj"].total, cuts[0]["k_proj"].total
    mlp = cuts[0]["gate_proj"].total
    sheet = Sheet(title, f"A layer over {count(parts, 'process')}", caption=caption)
    room = sheet.right - sheet.left - GUTTER - 7 * GAP - HEADS - 3 * BAND
    scale = min(room / (q + 2 * kv + 2 * hidden + 2 * mlp + 20), MOST_HEIGHT / max(hidden, q, mlp))
    lane = max(hidden, q, mlp) * scale + 18
    top, middles = sheet.y + 34, [sheet.y + 34 + lane * (part + 0.5) for part in range(parts)]
    for part, middle in enumerate(middles):
        sheet.text(sheet.left, middle, f"process {part}", weight="bold", width=GUTTER - 8)
    draw = _Lanes(sheet, middles, scale, top, lane * parts, cuts, sheet.left + GUTTER)
    draw.band("x")
    draw.matrices("q, k, v", hidden, {"q_proj": q, "k_proj": kv, "v_proj": kv})
    draw.heads(config, shards)
    draw.matrices("output", q, {"o_proj": hidden})
    draw.band("sum")
    draw.matrices("gate, up", hidden, {"gate_proj": mlp, "up_proj": mlp})
    draw.matrices("down", mlp, {"down_proj": hidden})
    draw.band("sum")
    sheet.y = top + lane * parts + 10
    sheet.legend([(BARS[part], f"process {part}: what it has and computes") for part in range(parts)])
    return sheet.picture(_words(config, shards, cuts))


def _words(config: ModelConfig, shards: Sequence[Shard], cuts: Sequence[Mapping[str, Cut]]) -> str:
    each = []
    for part, shard in enumerate(shards):
        own = shard.own_config(config)
        heads = f"{count(own.num_attention_heads, 'query head')} and {count(own.num_key_value_heads, 'K/V head')}"
        each.append(
            f"process {part} has {heads}, and {own.intermediate_size} of {config.intermediate_size} MLP columns"
        )
    of_qkv = [cuts[0][name] for name in ("q_proj", "k_proj", "v_proj")]
    columns = f"{sum(cut.size for cut in of_qkv)} of {sum(cut.total for cut in of_qkv)} columns"
    return f"A layer from left to right: {'; '.join(each)}. Of q, k and v, process 0 has {columns}. There are two sums."


class _Lanes:
    """Draws the same thing in every process's lane, one thing after another."""

    def __init__(
        self,
        sheet: Sheet,
        middles: Sequence[float],
        scale: float,
        top: float,
        height: float,
        cuts: Sequence[Mapping[str, Cut]],
        x: float,
    ):
        self._sheet, self._middles, self._scale, self._top, self._height = sheet, middles, scale, top, height
        self._cuts, self._x = cuts, x

    def band(self, name: str) -> None:
        """What all processes have: the same numbers in each."""
        self._arrive()
        self._sheet.rect(self._x, self._top, BAND, self._height, COMMON, edge=EDGE, name=f"{name} {self._x:.0f}")
        self._head(BAND, name)
        self._leave(BAND)

    def matrices(self, head: str, rows: int, columns: Mapping[str, int]) -> None:
        """Matrices side by side, with `rows` inputs and so many columns each; a process's part is filled."""
        self._arrive()
        x, height = self._x, rows * self._scale
        for name, size in columns.items():
            width = size * self._scale
            for part, (cuts, middle) in enumerate(zip(self._cuts, self._middles, strict=True)):
                y, cut = middle - height / 2, cuts[name]
                for start, end in cut.ranges:
                    where = (start * self._scale, (end - start) * self._scale)
                    place = (x + where[0], y, where[1], height) if cut.dim == 0 else (x, y + where[0], width, where[1])
                    self._sheet.rect(*place, BARS[part], name=f"{name} {part}")
                self._sheet.rect(x, y, width, height, edge=EDGE, line=0.9)
            x += width + 4
        self._head(x - 4 - self._x, head)
        self._leave(x - 4 - self._x)

    def heads(self, config: ModelConfig, shards: Sequence[Shard]) -> None:
        """Query heads in one row and K/V heads in another; a process has some of each."""
        self._arrive()
        for part, (shard, middle) in enumerate(zip(shards, self._middles, strict=True)):
            of_queries, of_kv = config.num_attention_heads, config.num_key_value_heads
            rows = (("q", of_queries, shard.part(of_queries), -16), ("K/V", of_kv, shard.kv_heads(of_kv), 4))
            for name, total, (start, end), below in rows:
                width = HEADS / total
                for i in range(total):
                    style, place = BARS[part] if start <= i < end else None, (self._x + i * width, middle + below)
                    self._sheet.rect(
                        *place, width, 12, style, edge=FRAME, name=f"{name} head {part} {i}" if style else ""
                    )
                self._sheet.rect(self._x, middle + below, HEADS, 12, edge=EDGE)
        self._head(HEADS, "heads: q, K/V")
        self._leave(HEADS)

    def _head(self, width: float, words: str) -> None:
        self._sheet.text(self._x + width / 2, self._top - 12, words, size=SMALL, colour=MUTED, ha="center")

    def _arrive(self) -> None:
        """Arrows from what came before."""
        if self._x > self._sheet.left + GUTTER:
            for middle in self._middles:
                self._sheet.arrow([self._x + 4, self._x + GAP - 3], [middle, middle], line=1.0)
            self._x += GAP

    def _leave(self, width: float) -> None:
        self._x += width


CELL, TALL = 17.0, 17.0  # a cell's largest side; the height of a number
WIDE = 36.0  # of a number
NAMES, SPACE = 92.0, 34.0


def split_product(
    x: Any, first: Any, second: Any, parts: int, *, title: str | None = None, caption: str | None = None
) -> Picture:
    """`x` [d] @ `first` [d, f] @ `second` [f, d], drawn per process: its columns of `first`, its rows of `second`, and the
    numbers of its partial sum; below, the sum of all.

    ValueError for `parts` that do not divide f.
    """
    vector, one, two = (np.asarray(each, dtype=np.float64) for each in (x, first, second))
    d, f = one.shape
    if f % parts:
        raise ValueError(f"parts={parts}: must divide f={f}")
    size = f // parts
    sheet = Sheet(title, "Columns of the first matrix, rows of the second", caption=caption)
    total, largest = np.zeros(two.shape[1]), vector @ one @ two
    room = sheet.right - sheet.left - NAMES - 4 * SPACE - WIDE * two.shape[1]
    cell = min(CELL, room / (d + 2 * f + two.shape[1]))
    height = cell * max(d, f)
    x_vector = sheet.left + NAMES
    x_first = x_vector + cell * d + SPACE
    x_hidden = x_first + cell * f + SPACE
    x_second = x_hidden + cell * f + SPACE
    x_sum = x_second + cell * two.shape[1] + SPACE
    heads = {x_vector: f"x [{d}]", x_first: f"first [{d}, {f}]", x_hidden: f"h [{f}]"}
    heads |= {x_second: f"second [{f}, {two.shape[1]}]", x_sum: "its partial sum"}
    for left, words in heads.items():
        sheet.text(left, sheet.y + 6, words, size=SMALL, colour=MUTED)
    sheet.y += 16
    for part in range(parts):
        mine, style, middle = range(part * size, (part + 1) * size), BARS[part], sheet.y + height / 2
        sheet.text(sheet.left, middle, f"process {part}", weight="bold", width=NAMES - 4)
        cells = partial(_matrix, sheet, middle, cell, style)
        cells(x_vector, 1, d, lambda r, c: True, f"x {part}")
        cells(x_first, d, f, lambda r, c, mine=mine: c in mine, f"first {part}")
        cells(x_hidden, 1, f, lambda r, c, mine=mine: c in mine, f"h {part}")
        cells(x_second, f, two.shape[1], lambda r, c, mine=mine: r in mine, f"second {part}")
        for left, sign in ((x_first, "·"), (x_hidden, "="), (x_second, "·"), (x_sum, "=")):
            sheet.text(left - 18, middle, sign, size=11, ha="center")
        partial_sum = vector @ one[:, mine.start : mine.stop] @ two[mine.start : mine.stop]
        total += partial_sum
        _numbers(sheet, x_sum, middle - TALL / 2, partial_sum, style, f"partial {part}")
        if part + 1 < parts:
            sheet.text(x_sum + WIDE * len(partial_sum) / 2, middle + height / 2 + 6, "+", size=11, ha="center")
        sheet.y += height + 14
    sheet.line([x_sum, x_sum + WIDE * len(total)], [sheet.y - 4] * 2, colour=INK)
    sheet.text(x_sum - 18, sheet.y + 10, "=", size=11, ha="center")
    sheet.text(x_sum - 34, sheet.y + 10, "the sum of all, in every process", size=SMALL, ha="right", colour=MUTED)
    _numbers(sheet, x_sum, sheet.y + 2, total, Style("#ffffff"), "sum")
    sheet.y += TALL + 16
    sheet.legend([(BARS[part], f"process {part}: what it has and computes") for part in range(parts)])
    off = float(np.abs(total - largest).max())
    return sheet.picture(
        f"{count(parts, 'process')}: each has {size} of {f} columns of the first matrix and {size} of {f} rows of the "
        f"second. The partial sums add up to {', '.join(map(number, total.round(2)))}; "
        f"the whole product differs by {'nothing' if off < 1e-9 else number(off)}."
    )


def _matrix(
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
        sheet.cell(x + WIDE * i, y, WIDE, TALL, style, text, edge="#b8b8b8", name=f"{name} {i}")
