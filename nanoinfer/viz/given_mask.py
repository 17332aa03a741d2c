"""attention_mask: a mask that was computed elsewhere, and where it differs from the one it should be."""

import torch

from nanoinfer.viz.lettering import TINY
from nanoinfer.viz.palette import INK, MUTED, ROLES, request_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import check_window, count, expect_type

MOST_CELLS = 32


def attention_mask(
    mask: torch.Tensor,
    *,
    prefix_len: int,
    sliding_window: int | None = None,
    wanted: torch.Tensor | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """`mask` bool [new, S], True = sees: the mask of a request's last `new` tokens, the first `prefix_len` of S cached.

    Cells that a causal mask (with `sliding_window=W`: of the last W tokens) would have otherwise are marked as wrong. So
    are those that `wanted` would have otherwise, if given: the mask that it should be, such as that of a tree of drafts.
    ValueError when `mask` is no such tensor or more than 32 wide, or `wanted` is not like it.
    """
    expect_type("mask", mask, torch.Tensor)
    if mask.dtype is not torch.bool or mask.ndim != 2:
        raise ValueError(f"mask: must be bool [new, S], got {mask.dtype} {list(mask.shape)}")
    check_window(sliding_window)
    expect_type("prefix_len", prefix_len, int)
    new, total = mask.shape
    if total != prefix_len + new or not new > 0 or total > MOST_CELLS:
        raise ValueError(
            f"mask: shape {list(mask.shape)} with prefix_len={prefix_len}: must be [new, {prefix_len} + new], "
            f"from 1 row up to {MOST_CELLS} columns"
        )
    if wanted is None:
        distance = torch.arange(prefix_len, total)[:, None] - torch.arange(total)
        wanted = (distance >= 0) & (distance < (sliding_window or total))
    elif not isinstance(wanted, torch.Tensor) or wanted.dtype is not torch.bool or wanted.shape != mask.shape:
        raise ValueError(f"wanted: must be bool {list(mask.shape)}, as mask is")
    elif sliding_window is not None:
        raise ValueError(f"sliding_window={sliding_window}: is part of wanted, so it must not be given as well")
    sheet = Sheet(title, "An attention mask: new tokens (down) × all tokens (across)", caption=caption)
    styles = {
        "prefix": (request_style(0), "sees; K/V of the request from earlier passes"),
        "new": (ROLES["new"], "sees; K/V computed in this pass"),
        "hidden": (ROLES["hidden"], "hidden"),
        "too much": (ROLES["conflict"], "wrong: sees what it must not"),
        "too little": (ROLES["leaked"], "wrong: doesn't see what it must"),
    }
    kinds = []
    cell, x0, y = min(24.0, (sheet.right - sheet.left - 40) / total), sheet.left + 40, sheet.y
    for key in range(total):
        sheet.text(x0 + (key + 0.5) * cell, y + 5, str(key), size=TINY, colour=MUTED, ha="center")
    y += 13
    for row in range(new):
        top = y + row * cell
        sheet.text(x0 - 6, top + cell / 2, str(prefix_len + row), size=TINY, colour=MUTED, ha="right")
        for key in range(total):
            sees = bool(mask[row, key])
            kind = "hidden" if not sees else "prefix" if key < prefix_len else "new"
            if sees != bool(wanted[row, key]):
                kind = "too much" if sees else "too little"
            kinds.append(kind)
            name = f"{prefix_len + row} {key} {kind}"
            sheet.rect(x0 + key * cell, top, cell, cell, styles[kind][0], edge="#ffffff", name=name)
    if prefix_len:
        sheet.line([x0 + prefix_len * cell] * 2, [y - 4, y + new * cell + 3], colour=INK, line=2)
    sheet.y = y + new * cell + 12
    sheet.legend([entry for kind, entry in styles.items() if kind in kinds])
    wrong = ", ".join(f"{kinds.count(kind)} seen {kind}" for kind in ("too much", "too little") if kind in kinds)
    return sheet.picture(
        f"{count(new, 'query')} × {count(total, 'key')} ({prefix_len} in the prefix): {int(mask.sum())} of {mask.numel()} "
        f"pairs seen; {wrong or 'as it should be'}."
    )
