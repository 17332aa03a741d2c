"""decoder, split_product: a model's parts in their order, and its matrices over several processes."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.families import find_family
from nanoinfer.model.layers.rms_norm import RMSNorm
from nanoinfer.viz.lettering import SMALL, TINY
from nanoinfer.viz.palette import BARS, GRID, INK, MUTED, PAPER, PLAIN, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Sheet
from nanoinfer.viz.words import count, number

EARLIER, NEW = ROLES["in_use"], ROLES["new"]
RAIL, X_BOXES, THIRD = 34.0, 96.0, 220.0  # of the residual stream; where boxes begin; a third of their width
HEIGHT, PITCH = 36.0, 54.0  # of a box; from one to the next
LAYER = Style("#f7f7f7")


class Box(NamedTuple):
    """A part of the model: its name, the shape that comes out of it, and how many parameters it has."""

    name: str
    shape: str
    parameters: int | None = None  # None: it has none, 0: it shares another part's
    thirds: tuple[int, int] = (0, 3)  # where it is drawn


def decoder(config: ModelConfig, **heading: Unpack[Heading]) -> Picture:
    """How `T` tokens go through a dense decoder, from ids to logits: what each part makes and how many parameters it has.

    In attention, K and V of the new tokens join those of earlier passes in the cache; the query of each new token is
    compared with every cached K, and the values of V are summed by the result.
    """
    c, sheet = config, Sheet(default_title="From token ids to logits", **heading)
    hidden, heads, kv_heads, size = c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim
    kv, q_shape, kv_shape = (
        (hidden + c.qkv_bias) * kv_heads * size,
        f"[T, H={heads}, D={size}]",
        f"Hk={kv_heads}, D={size}]",
    )
    norm = Box("norm", f"[T, {hidden}]", hidden)
    embedding = Box("embedding", f"[T, {hidden}]", c.vocab_size * hidden)
    head = Box("head", f"logits [T, {c.vocab_size}]", 0 if c.tie_word_embeddings else c.vocab_size * hidden)
    query = Box("query", q_shape, (hidden + c.qkv_bias) * heads * size, (0, 1))
    key, value = Box("key", f"[T, {kv_shape}", kv, (1, 2)), Box("value", f"[T, {kv_shape}", kv, (2, 3))
    output = Box("output", f"[T, {hidden}]", hidden * (heads * size + c.o_bias))
    gate = Box("gate, up", f"2 × [T, {c.intermediate_size}]", 2 * (hidden + c.mlp_bias) * c.intermediate_size)
    down = Box("down", f"[T, {hidden}]", hidden * (c.intermediate_size + c.mlp_bias))
    rotated = "heads are normed, then rotated by position" if c.qk_norm else "rotated by position"
    layer_of = find_family(c.architecture).layer_class(c, 0, torch.float32, torch.device("meta"))
    in_layer = sum(isinstance(part, RMSNorm) for part in layer_of.children())  # beside those of query and key heads
    behind = [[norm]] if in_layer == 4 else []  # in some families there is one before and one behind each
    attention = [
        [norm],
        [query, key, value],
        [Box("rotate", rotated, thirds=(0, 1)), Box("rotate", rotated, thirds=(1, 2))],
        [Box("K/V cache", f"[tokens so far, {kv_shape}", thirds=(1, 3))],
        [Box("q · every K → ÷ √D, softmax → weights · every V", q_shape)],
        [output],
        *behind,
    ]
    mlp = [
        [norm],
        [gate],
        [Box(f"{c.activation.partition('_')[0]}(gate) · up", f"[T, {c.intermediate_size}]")],
        [down],
        *behind,
    ]
    sheet.text(X_BOXES + THIRD * 1.5, sheet.y + 4, "T token ids", ha="center", weight="bold")
    sheet.arrow([X_BOXES + THIRD * 1.5] * 2, [sheet.y + 12, sheet.y + 30])
    sheet.y += 30
    top = sheet.y + HEIGHT / 2
    _boxes(sheet, [[embedding]])
    sheet.arrow([X_BOXES + 4, RAIL], [top, top])
    sheet.text(RAIL + 10, sheet.y - 6, "the residual stream: a row of numbers per token", size=SMALL, colour=MUTED)
    sheet.y += 14
    tall = (len(attention) + len(mlp)) * PITCH + 62
    sheet.rect(X_BOXES - 20, sheet.y - 6, sheet.right - X_BOXES + 20, tall, LAYER, edge=GRID, dashed=True, name="layer")
    sheet.text(X_BOXES - 12, sheet.y + 6, f"one layer; there are L = {c.num_hidden_layers}", weight="bold")
    for what, rows in (
        ("attention: each token looks at itself and those before it", attention),
        ("MLP: each token alone", mlp),
    ):
        sheet.text(sheet.right - 12, sheet.y + 6, what, size=SMALL, ha="right")
        sheet.y += 18
        _boxes(sheet, rows, branch=True)
        sheet.y += 12
    sheet.y += 4
    _boxes(sheet, [[norm], [head]])
    sheet.line([RAIL, RAIL], [top, sheet.y - 2 * PITCH + HEIGHT / 2], colour=INK, line=2.2)
    sheet.arrow([RAIL, X_BOXES], [sheet.y - 2 * PITCH + HEIGHT / 2] * 2)
    sheet.legend([(EARLIER, "K/V from earlier passes"), (NEW, "K/V computed in this pass")])
    in_attention = sum(box.parameters or 0 for box in (query, key, value, output)) + (2 * size if c.qk_norm else 0)
    in_mlp = (gate.parameters or 0) + (down.parameters or 0)
    layer = in_attention + in_mlp + in_layer * hidden
    total = c.vocab_size * hidden + hidden + (head.parameters or 0) + c.num_hidden_layers * layer
    return sheet.picture(
        f"Embedding {embedding.parameters:,} parameters; {c.num_hidden_layers} layers of {layer:,}: attention "
        f"{in_attention:,}, MLP {in_mlp:,}, {in_layer} norms {in_layer * hidden:,}; last norm {hidden:,}; "
        f"head {head.parameters:,}: {total:,} together. In attention: norm → query, key, value; query and key are rotated; "
        "K and V go to the cache; query with every cached K, softmax, sum of every cached V → output."
    )


def _boxes(sheet: Sheet, rows: Sequence[Sequence[Box]], *, branch: bool = False) -> None:
    """Rows of boxes from top to bottom, each with an arrow from what is above it. `branch`: out of the residual stream and
    back to it, where the result is added."""
    above: list[tuple[float, float, int] | None] = [None] * 3  # per third: middle, bottom and width of the box there
    for boxes in rows:
        for box in boxes:
            (first, end), y = box.thirds, sheet.y
            x, width, middle = X_BOXES + THIRD * first, THIRD * (end - first), X_BOXES + THIRD * (first + end) / 2
            for other in dict.fromkeys(each for each in above[first:end] if each is not None):
                at = other[0] if other[2] < end - first else middle
                sheet.arrow([at, at], [other[1], y])
            sheet.rect(x + 4, y, width - 8, HEIGHT, PLAIN, edge="#767676", name=f"box {box.name}")
            amount = f"{box.parameters:,} parameters" if box.parameters else "no parameters"
            amount = "shared with the embedding" if box.parameters == 0 else amount
            sheet.text(middle, y + 11, box.name, ha="center", weight="bold", width=width - 12)
            sheet.text(middle, y + 26, f"{box.shape} · {amount}", ha="center", size=TINY, width=width - 10)
            if box.name == "K/V cache":
                for i in range(6):
                    style = NEW if i == 5 else EARLIER
                    sheet.rect(x + 14 + 14 * i, y + 9, 14, 18, style, edge=PAPER, name=f"cached {i}")
            above[first:end] = [(middle, y + HEIGHT, end - first)] * (end - first)
        sheet.y += PITCH
    if branch:
        middle_of_first, back = sheet.y - len(rows) * PITCH + HEIGHT / 2, sheet.y - 8
        sheet.arrow([RAIL, X_BOXES + 4], [middle_of_first] * 2)
        sheet.arrow([X_BOXES + THIRD * 1.5] * 2 + [RAIL + 9], [sheet.y - PITCH + HEIGHT, back, back])
        sheet.text(RAIL, back, "⊕", size=13, ha="center", weight="bold", behind=PAPER)
        sheet.text(X_BOXES - 12, back + 8, "added to the stream", size=TINY, colour=MUTED)


EDGE, FRAME = "#767676", "#c8c8c8"
CELL, TALL, WIDE = 17.0, 17.0, 36.0  # a cell's largest side; the height and the width of a number
NAMES, SPACE = 92.0, 34.0


def split_product(x: Any, first: Any, second: Any, parts: int, **heading: Unpack[Heading]) -> Picture:
    """`x` [d] @ `first` [d, f] @ `second` [f, d], drawn per process: its columns of `first`, its rows of `second`, and the
    numbers of its partial sum; below, the sum of all.
    `parts` divides f.
    """
    vector, one, two = (np.asarray(each, dtype=np.float64) for each in (x, first, second))
    (d, f), out = one.shape, two.shape[1]
    size = f // parts
    sheet = Sheet(default_title="Columns of the first matrix, rows of the second", **heading)
    cell = min(CELL, (sheet.right - sheet.left - NAMES - 4 * SPACE - WIDE * out) / (d + 2 * f + out))
    height, total = cell * max(d, f), np.zeros(out)
    matrices = (("x", 1, d, ""), ("first", d, f, "·"), ("h", 1, f, "="), ("second", f, out, "·"))
    starts = np.cumsum([sheet.left + NAMES, *(cell * columns + SPACE for _, _, columns, _ in matrices)]).tolist()
    for left, words in zip(
        starts, (f"x [{d}]", f"first [{d}, {f}]", f"h [{f}]", f"second [{f}, {out}]", "its partial sum"), strict=True
    ):
        sheet.text(left, sheet.y + 6, words, size=SMALL, colour=MUTED)
    sheet.y += 16
    for part in range(parts):
        mine, style, middle = slice(part * size, (part + 1) * size), BARS[part], sheet.y + height / 2
        sheet.text(sheet.left, middle, f"process {part}", weight="bold", width=NAMES - 4)
        for left, (name, rows, columns, sign) in zip(starts, matrices, strict=False):
            has = np.zeros((rows, columns), bool)
            has[(mine,) if name == "second" else (slice(None), mine if name != "x" else slice(None))] = True
            sheet.text(left - 18, middle, sign, size=11, ha="center")
            for (row, column), there in np.ndenumerate(has):
                place = left + cell * column, middle + cell * (row - rows / 2), cell, cell
                sheet.rect(
                    *place, style if there else None, edge=FRAME, name=f"{name} {part} {row} {column}" if there else ""
                )
            sheet.rect(left, middle - cell * rows / 2, cell * columns, cell * rows, edge=EDGE, line=0.9)
        sheet.text(starts[-1] - 18, middle, "=", size=11, ha="center")
        partial_sum = vector @ one[:, mine] @ two[mine]
        total += partial_sum
        _numbers(sheet, starts[-1], middle - TALL / 2, partial_sum, style)
        if part + 1 < parts:
            sheet.text(starts[-1] + WIDE * out / 2, middle + height / 2 + 6, "+", size=11, ha="center")
        sheet.y += height + 14
    sheet.line([starts[-1], starts[-1] + WIDE * out], [sheet.y - 4] * 2, colour=INK)
    sheet.text(starts[-1] - 8, sheet.y + 10, "the sum of all, in every process =", size=SMALL, ha="right", colour=MUTED)
    _numbers(sheet, starts[-1], sheet.y + 2, total, PLAIN)
    sheet.y += TALL + 16
    sheet.legend([(BARS[part], f"process {part}: what it has and computes") for part in range(parts)])
    off = float(np.abs(total - vector @ one @ two).max())
    return sheet.picture(
        f"{count(parts, 'process')}: each has {size} of {f} columns of the first matrix and {size} of {f} rows of the "
        f"second. The partial sums add up to {', '.join(map(number, total.round(2)))}; "
        f"the whole product differs by {'nothing' if off < 1e-9 else number(off)}."
    )


def _numbers(sheet: Sheet, x: float, y: float, values: np.ndarray, style: Style) -> None:
    for i, value in enumerate(values.tolist()):
        sheet.cell(x + WIDE * i, y, WIDE, TALL, style, f"{value:.2f}".replace("-", "\u2212"), edge="#b8b8b8")
