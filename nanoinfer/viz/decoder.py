"""decoder: the parts of a decoder in their order, with shapes and parameters."""

import torch

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.families import find_family
from nanoinfer.model.layers.rms_norm import RMSNorm
from nanoinfer.viz.palette import INK, MUTED, REQUESTS, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import BODY, SMALL, TINY, Sheet, text_width
from nanoinfer.viz.words import expect_type

PLAIN = Style("#ffffff")
HEIGHT = 62.0

Box = tuple[Style, str, str, int | None]  # colours, name, shape, parameters


def decoder(config: ModelConfig, *, title: str | None = None) -> Picture:
    """How `T` tokens go through a dense decoder: each box says what comes out of it and how many parameters it has."""
    expect_type("config", config, ModelConfig)
    c, sheet = config, Sheet(title, "From token ids to logits")
    hidden, heads, kv_heads, size = c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim
    q, kv = (hidden + c.qkv_bias) * heads * size, (hidden + c.qkv_bias) * kv_heads * size
    head_norm, note = (size, "; heads of query and key are normed first") if c.qk_norm else (0, "")
    activation = c.activation.partition("_")[0]
    ends: list[Box] = [
        (REQUESTS[1], "embedding", f"[T, {hidden}]", c.vocab_size * hidden),
        (PLAIN, "norm", f"[T, {hidden}]", hidden),
        (REQUESTS[1], "head", f"logits [T, {c.vocab_size}]", 0 if c.tie_word_embeddings else c.vocab_size * hidden),
    ]
    attention: list[Box] = [
        (PLAIN, "norm", f"[T, {hidden}]", hidden),
        (REQUESTS[0], "query, rotated", f"[T, H={heads}, D={size}]", q + head_norm),
        (ROLES["tree"], "key, rotated", f"[T, Hk={kv_heads}, D={size}]", kv + head_norm),
        (ROLES["tree"], "value", f"[T, Hk={kv_heads}, D={size}]", kv),
        (REQUESTS[0], "attend", f"[T, H={heads}, D={size}]", None),
        (REQUESTS[0], "output", f"[T, {hidden}]", hidden * (heads * size + c.o_bias)),
    ]
    mlp: list[Box] = [
        (PLAIN, "norm", f"[T, {hidden}]", hidden),
        (REQUESTS[3], "gate, up", f"2 × [T, {c.intermediate_size}]", 2 * (hidden + c.mlp_bias) * c.intermediate_size),
        (REQUESTS[3], f"{activation}(gate) · up", f"[T, {c.intermediate_size}]", None),
        (REQUESTS[3], "down", f"[T, {hidden}]", hidden * (c.intermediate_size + c.mlp_bias)),
    ]
    norms = _norms_per_layer(c)
    if norms == 4:  # one before and one behind each
        attention.append(attention[0])
        mlp.append(mlp[0])
    step = (sheet.right - sheet.left - 30) / 7
    x, y = sheet.left + 15, sheet.y + 4

    sheet.text(x, y + HEIGHT / 2, "T token ids", weight="bold")
    _arrow(sheet, x + 75, x + step, y + HEIGHT / 2)
    _box(sheet, x + step, y, step - 22, ends[0])
    sheet.text(x + 2 * step + 4, y + 16, "a row for each token: the residual stream", size=SMALL, colour=MUTED)
    stream_x = x + 2 * step - 22 + 40
    sheet.line([x + 2 * step - 22, stream_x], [y + HEIGHT / 2] * 2, colour=INK, line=1.6)

    top = y + HEIGHT + 16
    bottom = top + 2 * (HEIGHT + 46) + 14
    sheet.rect(sheet.left, top, sheet.right - sheet.left, bottom - top, Style("#f7f7f7"), edge="#9a9a9a", dashed=True)
    sheet.text(sheet.right - 10, top + 12, f"one layer; L = {c.num_hidden_layers} of them", ha="right", weight="bold")
    rail = sheet.left + 22
    sheet.line([stream_x, stream_x, rail, rail], [y + HEIGHT / 2, top - 8, top - 8, bottom + 8], colour=INK, line=1.6)
    for boxes, row_y, name, what in (
        (attention, top + 26, "attention", f"tokens see those before them{note}"),
        (mlp, top + HEIGHT + 68, "MLP", "each token alone"),
    ):
        sheet.text(rail + 14, row_y - 11, name, weight="bold")
        sheet.text(rail + 14 + text_width(name, weight="bold") + 10, row_y - 11, what, size=SMALL, colour=MUTED)
        left = rail + 34
        width = (sheet.right - left - 24) / len(attention)
        middle = row_y + HEIGHT / 2
        sheet.line([rail, left], [row_y + 14] * 2, colour=INK)
        for i, box in enumerate(boxes):
            _box(sheet, left + i * width, row_y, width - 18, box)
            joined = box[1].startswith(("query", "key"))  # all three are made from the norm
            if i + 1 < len(boxes) and not joined:
                _arrow(sheet, left + (i + 1) * width - 18, left + (i + 1) * width, middle)
        end = left + len(boxes) * width - 18
        back = row_y + HEIGHT + 12
        sheet.line([end, end + 9, end + 9, rail + 8], [middle, middle, back, back], colour=INK)
        sheet.text(rail, back, "⊕", size=13, ha="center", weight="bold", behind="#f7f7f7")
        sheet.text(end - 6, back + 9, "added to the stream", size=TINY, colour=MUTED, ha="right")

    y = bottom + 14
    sheet.line([rail, rail, x + step], [bottom + 8, y + HEIGHT / 2, y + HEIGHT / 2], colour=INK, line=1.6)
    _box(sheet, x + step, y, step - 22, ends[1])
    _arrow(sheet, x + 2 * step - 22, x + 2 * step, y + HEIGHT / 2)
    _box(sheet, x + 2 * step, y, step + 10, ends[2])
    tied = "the embedding table once more" if c.tie_word_embeddings else ""
    sheet.text(x + 3 * step + 22, y + HEIGHT / 2, tied, size=SMALL, colour=MUTED)
    sheet.y = y + HEIGHT + 4
    in_attention, in_mlp = (sum(box[3] or 0 for box in boxes if box[1] != "norm") for boxes in (attention, mlp))
    layer = in_attention + in_mlp + norms * hidden
    total = sum(box[3] or 0 for box in ends) + c.num_hidden_layers * layer
    return sheet.picture(
        f"Embedding {ends[0][3]:,} parameters; {c.num_hidden_layers} layers of {layer:,}: attention {in_attention:,}, MLP "
        f"{in_mlp:,}, {norms} norms {norms * hidden:,}; last norm {hidden:,}; head {ends[2][3]:,}: {total:,} together."
    )


def _norms_per_layer(config: ModelConfig) -> int:
    """2, or as many as the family's layers have beside those of query and key heads."""
    layer = find_family(config.architecture).layer_class(config, 0, torch.float32, torch.device("meta"))
    return sum(isinstance(part, RMSNorm) for part in layer.children())


def _box(sheet: Sheet, x: float, y: float, width: float, box: Box) -> None:
    style, name, shape, parameters = box
    sheet.rect(x, y, width, HEIGHT, Style(style.face, style.text), edge="#767676", name=f"box {name}")
    letters = BODY if text_width(name, weight="bold") < width - 4 else SMALL
    sheet.text(
        x + width / 2, y + 15, name, ha="center", size=letters, weight="bold", colour=style.text, width=width - 4
    )
    sheet.text(x + width / 2, y + 32, shape, ha="center", size=SMALL, colour=style.text, width=width - 4)
    amount = "no parameters" if parameters is None else "shared" if parameters == 0 else f"{parameters:,}"
    sheet.text(x + width / 2, y + 49, amount, ha="center", size=TINY, colour=style.text, width=width - 4)


def _arrow(sheet: Sheet, start: float, end: float, y: float) -> None:
    sheet.line([start, end - 6], [y, y], colour=INK)
    sheet.text(end - 1, y, "▶", size=BODY - 2.5, ha="right")
