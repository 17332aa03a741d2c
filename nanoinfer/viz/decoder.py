"""decoder: the parts of a decoder in their order, with shapes and parameters."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.families import find_family
from nanoinfer.model.layers.rms_norm import RMSNorm
from nanoinfer.viz.lettering import BODY, SMALL, TINY, text_width
from nanoinfer.viz.palette import GRID, INK, MUTED, PAPER, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet

PLAIN = ROLES["free"]._replace(text=INK)
EARLIER, NEW = ROLES["in_use"], ROLES["new"]
HEIGHT = 50.0  # of a box
RAIL, EDGE = 2.2, "#767676"
LAYER = Style("#f7f7f7")


class Box(NamedTuple):
    """A part of the model: its name, the shape that comes out of it, and how many parameters it has."""

    name: str
    shape: str
    parameters: int | None  # None: it has none, 0: it shares another part's


def decoder(config: ModelConfig, *, title: str | None = None, caption: str | None = None) -> Picture:
    """How `T` tokens go through a dense decoder, from ids to logits: what each part makes and how many parameters it has.

    In attention, K and V of the new tokens join those of earlier passes in the cache; the query of each new token is
    compared with every cached K, and the values of V are summed by the result.
    """
    c, sheet = config, Sheet(title, "From token ids to logits", caption=caption)
    hidden, heads, kv_heads, size = c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim
    q, kv = (hidden + c.qkv_bias) * heads * size, (hidden + c.qkv_bias) * kv_heads * size
    in_layer = _norms_per_layer(c)
    activation = c.activation.partition("_")[0]
    norm = Box("norm", f"[T, {hidden}]", hidden)
    embedding = Box("embedding", f"[T, {hidden}]", c.vocab_size * hidden)
    head = Box("head", f"logits [T, {c.vocab_size}]", 0 if c.tie_word_embeddings else c.vocab_size * hidden)
    projections = (
        Box("query", f"[T, H={heads}, D={size}]", q),
        Box("key", f"[T, Hk={kv_heads}, D={size}]", kv),
        Box("value", f"[T, Hk={kv_heads}, D={size}]", kv),
    )
    output = Box("output", f"[T, {hidden}]", hidden * (heads * size + c.o_bias))
    mlp = (
        Box("gate, up", f"2 × [T, {c.intermediate_size}]", 2 * (hidden + c.mlp_bias) * c.intermediate_size),
        Box(f"{activation}(gate) · up", f"[T, {c.intermediate_size}]", None),
        Box("down", f"[T, {hidden}]", hidden * (c.intermediate_size + c.mlp_bias)),
    )
    behind = [norm] if in_layer == 4 else []  # in some families there is one before and one behind each
    rail, left = sheet.left + 20, sheet.left + 52

    # The way in: ids → embedding → the residual stream, a rail down the left side.
    y = sheet.y + 2
    sheet.text(left + 42, y + HEIGHT / 2, "T token ids", weight="bold")
    sheet.arrow([left + 122, left + 152], [y + HEIGHT / 2] * 2)
    _box(sheet, left + 152, y, 104, embedding)
    stream = "the residual stream: one row of numbers per token"
    sheet.text(left + 318, y + HEIGHT / 2, stream, size=SMALL, colour=MUTED)
    top = y + HEIGHT + 14
    turn = left + 300
    sheet.line(
        [left + 256, turn, turn, rail, rail], [y + HEIGHT / 2] * 2 + [top - 6] * 2 + [top + 6], colour=INK, line=RAIL
    )

    # Attention: three rows of boxes, q above k above v.
    rows = [top + 34 + i * (HEIGHT + 12) for i in range(3)]
    middles = [row + HEIGHT / 2 for row in rows]
    attention_end = rows[2] + HEIGHT + 30
    mlp_row = attention_end + 32
    bottom = mlp_row + HEIGHT + 34
    sheet.rect(sheet.left, top, sheet.right - sheet.left, bottom - top, LAYER, edge=GRID, dashed=True, name="layer")
    sheet.text(sheet.right - 10, top + 14, f"one layer; there are L = {c.num_hidden_layers}", ha="right", weight="bold")
    sheet.line([rail, rail], [top, bottom + 4], colour=INK, line=RAIL)
    note = "; heads of query and key are normed first" if c.qk_norm else ""
    _heading(sheet, left, top + 16, "attention", f"each token looks at itself and those before it{note}")
    _attention(sheet, rail, left, middles, norm, projections, behind, output)
    _back(sheet, rail, attention_end - 14, sheet.right - 8, middles[1])

    # MLP: one row.
    _heading(sheet, left, mlp_row - 14, "MLP", "each token alone")
    x, middle = left, mlp_row + HEIGHT / 2
    sheet.arrow([rail, x], [middle] * 2)
    for i, (box, width) in enumerate(zip([norm, *mlp, *behind], (80, 128, 128, 104, 80), strict=False)):
        if i:
            sheet.arrow([x - 24, x], [middle] * 2)
        _box(sheet, x, mlp_row, width, box)
        x += width + 24
    _back(sheet, rail, bottom - 14, x - 12, middle, x - 24)

    # The way out.
    y = bottom + 12
    sheet.arrow([rail, rail, left], [bottom, y + HEIGHT / 2, y + HEIGHT / 2], line=RAIL)
    _box(sheet, left, y, 80, norm)
    sheet.arrow([left + 80, left + 104], [y + HEIGHT / 2] * 2)
    _box(sheet, left + 104, y, 120, head)
    tied = "uses the table of the embedding once more" if c.tie_word_embeddings else ""
    sheet.text(left + 236, y + HEIGHT / 2, tied, size=SMALL, colour=MUTED)
    sheet.y = y + HEIGHT + 14
    sheet.legend([(EARLIER, "K/V from earlier passes"), (NEW, "K/V computed in this pass")])

    in_attention, in_mlp = (sum(box.parameters or 0 for box in boxes) for boxes in ((*projections, output), mlp))
    head_norms = 2 * size if c.qk_norm else 0
    in_attention += head_norms
    layer = in_attention + in_mlp + in_layer * hidden
    total = embedding.parameters + hidden + (head.parameters or 0) + c.num_hidden_layers * layer  # type: ignore[operator]
    return sheet.picture(
        f"Embedding {embedding.parameters:,} parameters; {c.num_hidden_layers} layers of {layer:,}: attention "
        f"{in_attention:,}, MLP {in_mlp:,}, {in_layer} norms {in_layer * hidden:,}; last norm {hidden:,}; "
        f"head {head.parameters:,}: {total:,} together. In attention: norm → query, key, value; query and key are rotated; "
        "K and V go to the cache; query with every cached K, softmax, sum of every cached V → output."
    )


def _attention(
    sheet: Sheet,
    rail: float,
    left: float,
    middles: Sequence[float],
    norm: Box,
    projections: Sequence[Box],
    behind: Sequence[Box],
    output: Box,
) -> None:
    """norm → q, k, v → rotation → cache → attention → output, from left to right."""
    half = HEIGHT / 2
    fork, project, rotate = left + 92, left + 106, left + 244
    sheet.arrow([rail, left], [middles[1]] * 2)
    _box(sheet, left, middles[1] - half, 80, norm)
    sheet.line([left + 80, fork], [middles[1]] * 2, colour=INK, line=1.3)
    sheet.line([fork, fork], [middles[0], middles[2]], colour=INK, line=1.3)
    cache, attend = left + 352, left + (480 if behind else 530)
    for middle, box in zip(middles, projections, strict=True):
        sheet.arrow([fork, project], [middle] * 2)
        _box(sheet, project, middle - half, 116, box)
    for middle, end in ((middles[0], attend), (middles[1], cache)):
        sheet.arrow([project + 116, rotate], [middle] * 2)
        sheet.rect(rotate, middle - 17, 84, 34, PLAIN, edge=EDGE, name="box rotate")
        sheet.text(rotate + 42, middle - 7, "rotate", ha="center", weight="bold")
        sheet.text(rotate + 42, middle + 8, "by position", ha="center", size=TINY)
        sheet.arrow([rotate + 84, end], [middle] * 2)
    sheet.arrow([project + 116, cache], [middles[2]] * 2)
    sheet.text(rotate + 96, middles[0] - 8, "q", weight="bold")
    # The cache: what was there, and behind it what this pass has made.
    wide = attend - cache - 26
    sheet.rect(cache, middles[1] - half, wide, middles[2] - middles[1] + HEIGHT, PLAIN, edge=EDGE, name="box cache")
    sheet.text(cache + wide / 2, (middles[1] + middles[2]) / 2, "K/V cache", ha="center", weight="bold")
    for middle, letter in ((middles[1], "K"), (middles[2], "V")):
        part = (wide - 34) / 6
        sheet.text(cache + 8, middle, letter, weight="bold")
        for i in range(6):
            style = NEW if i == 5 else EARLIER
            sheet.rect(cache + 24 + i * part, middle - 9, part, 18, style, edge=PAPER, name=f"cached {letter} {i}")
        sheet.arrow([cache + wide, attend], [middle] * 2)
    # Attention itself: tall, so that all three come in.
    width = 116.0
    tall = middles[2] - middles[0] + HEIGHT
    sheet.rect(attend, middles[0] - half, width, tall, PLAIN, edge=EDGE, name="box attend")
    x = attend + width / 2
    sheet.text(x, middles[0] - 8, "q · every K", ha="center", weight="bold")
    sheet.text(x, middles[0] + 8, "one score per token", ha="center", size=TINY)
    sheet.text(x, middles[1] - 8, "÷ √D, softmax", ha="center", weight="bold")
    sheet.text(x, middles[1] + 8, "scores → weights", ha="center", size=TINY)
    sheet.text(x, middles[2] - 8, "weights · every V", ha="center", size=SMALL, weight="bold")
    sheet.text(x, middles[2] + 8, projections[0].shape, ha="center", size=TINY)
    for upper, lower in pairwise(middles):
        sheet.arrow([x, x], [upper + 18, lower - 18])
    x = attend + width
    for box, wide in zip((output, *behind), (92, 72), strict=False):
        sheet.arrow([x, x + 22], [middles[1]] * 2)
        _box(sheet, x + 22, middles[1] - half, wide, box)
        x += 22 + wide
    sheet.line([x, sheet.right - 8], [middles[1]] * 2, colour=INK, line=1.3)


def _heading(sheet: Sheet, x: float, y: float, name: str, what: str) -> None:
    sheet.text(x, y, name, weight="bold")
    sheet.text(x + text_width(name, weight="bold") + 12, y, what, size=SMALL, colour=MUTED)


def _back(sheet: Sheet, rail: float, y: float, turn: float, middle: float, start: float | None = None) -> None:
    """The way back to the rail, where the result is added."""
    if start is not None:
        sheet.line([start, turn], [middle] * 2, colour=INK, line=1.3)
    sheet.arrow([turn, turn, rail + 9], [middle, y, y])
    sheet.text(rail, y, "⊕", size=13, ha="center", weight="bold", behind=LAYER.face)
    sheet.text(rail + 34, y - 8, "added to the stream", size=TINY, colour=MUTED)


def _norms_per_layer(config: ModelConfig) -> int:
    """2, or as many as the family's layers have beside those of query and key heads."""
    layer = find_family(config.architecture).layer_class(config, 0, torch.float32, torch.device("meta"))
    return sum(isinstance(part, RMSNorm) for part in layer.children())


def _box(sheet: Sheet, x: float, y: float, width: float, box: Box) -> None:
    sheet.rect(x, y, width, HEIGHT, PLAIN, edge=EDGE, name=f"box {box.name}")
    letters = BODY if text_width(box.name, weight="bold") < width - 4 else SMALL
    middle = x + width / 2
    sheet.text(middle, y + 11, box.name, ha="center", size=letters, weight="bold", width=width - 4)
    small = SMALL if text_width(box.shape, SMALL) < width - 4 else TINY
    sheet.text(middle, y + 26, box.shape, ha="center", size=small, width=width - 2)
    amount = "no parameters" if box.parameters is None else "shared" if box.parameters == 0 else f"{box.parameters:,}"
    sheet.text(middle, y + 40, amount, ha="center", size=TINY, colour=MUTED, width=width - 4)
