"""extend_mask, attention_mask: which new token sees which token of its sequence; and a mask that was computed elsewhere."""

from collections.abc import Sequence

import torch

from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.viz.facts import Facts
from nanoinfer.viz.lettering import SMALL, TINY, drawable, text_width
from nanoinfer.viz.palette import INK, MUTED, ROLES, request_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import SPACE_NOTE, abridged, count

MOST_CELLS = 32  # keys drawn one by one
MOST_NEW = 26  # of them new ones, and so many queries
GUTTER = 56.0  # left of a mask, for the positions of its queries
WIDEST = 56.0  # column, where there is room to write the keys' texts above their columns
TEXT_ROOM = 44.0  # more, for their texts


def extend_mask(
    metadata: InputMetadata,
    *,
    tokens: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    sliding_window: int | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """For each request a rectangle: its new tokens (queries) down, all its tokens (keys) across; filled where it sees.

    A query at position p sees the keys 0..p, with `sliding_window=W` the last W of them. `tokens`: texts of all tokens,
    request after request; `labels`: names of the requests. Of more than 8 requests the first 8 are drawn. Raises ValueError
    when `tokens` or `labels` are not as many or the window is below 1.
    """
    m = Facts(metadata, tokens, labels)
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window={sliding_window}: must be at least 1")
    sheet = Sheet(
        title,
        f"What each new token sees in one {metadata.forward_mode.name} pass: new tokens (down) × all tokens (across)",
        caption=caption,
    )
    before = [i for i in range(m.shown) if m.prefixes[i]]
    entries = [
        *((m.style(i), f"sees, in {m.labels[i]}: K/V from earlier passes", len(before) < 3) for i in before),
        (
            m.style(max(before, default=0)),
            "sees; K/V from earlier passes, each request's in its colour",
            len(before) > 2,
        ),
        (ROLES["new"], "sees; K/V computed in this pass", True),
        (ROLES["hidden"], "hidden", sliding_window is not None or max(m.new_lens[: m.shown]) > 1),
    ]
    sheet.legend([(style, label) for style, label, occurs in entries if occurs])
    x, bottom = sheet.left, sheet.y
    masks = [_Mask(sheet, m, i, sliding_window) for i in range(m.shown)]
    for mask in masks:
        if x > sheet.left and x + mask.width > sheet.right:
            x, sheet.y = sheet.left, bottom
        bottom = max(bottom, mask.draw(x, sheet.y))
        x += mask.width + 30
    sheet.y = bottom
    if m.shown < m.batch_size:
        sheet.caption(f"… and {count(m.batch_size - m.shown, 'more request')}.")
    note = "Down: the new tokens, as queries. Across: all tokens of the sequence, as keys. Numbers: positions."
    if m.tokens is not None and any("·" in text for text in m.tokens):
        note += f" {SPACE_NOTE}"
    sheet.caption(note, size=SMALL)
    return sheet.picture(_alt(m, sliding_window))


def _alt(m: Facts, window: int | None) -> str:
    parts = [f"{m.of.forward_mode.name} mask" + (f", sliding window {window}" if window else "")]
    for i in range(m.shown):
        seen = sum(min(p + 1, window or p + 1) for p in range(m.prefixes[i], m.seq_lens[i]))
        parts.append(
            f"{m.labels[i]}: {count(m.new_lens[i], 'query')} × {count(m.seq_lens[i], 'key')} "
            f"({m.prefixes[i]:,} in the prefix), {seen:,} of {m.new_lens[i] * m.seq_lens[i]:,} pairs seen"
        )
    return "; ".join(parts) + "."


class _Mask:
    """One request's rectangle. A long prefix, and many new tokens, are drawn from both ends."""

    def __init__(self, sheet: Sheet, m: Facts, i: int, window: int | None):
        self.sheet, self.m, self.i, self.window = sheet, m, i, window
        self.earlier = m.style(i)  # of K/V that was there before the pass
        self.prefix, self.new, self.seq = m.prefixes[i], m.new_lens[i], m.seq_lens[i]
        self.gutter = GUTTER + (TEXT_ROOM if m.tokens is not None else 0)
        self.title = f"{m.labels[i]}: {self.new:,} new, {self.prefix:,} in the prefix"
        room = sheet.right - sheet.left - self.gutter
        self.queries = abridged(self.new, MOST_NEW)
        share = MOST_CELLS - len(self.queries) if self.seq > MOST_CELLS else self.prefix
        new = [None if q is None else self.prefix + q for q in self.queries]
        self.columns = [*abridged(self.prefix, share), *new]
        self.cell = self.wide = min(24.0, room / len(self.columns), 320 / len(new))
        texts = [] if m.tokens is None or m.shown > 1 else [self._text(k) for k in self.columns]
        if texts and max(text_width(drawable(text), TINY) for text in texts) + 6 <= room / len(self.columns):
            self.wide = min(WIDEST, room / len(self.columns))
        self.width = max(self.gutter + self.wide * len(self.columns), text_width(self.title, weight="bold") + 6)

    def _text(self, key: int | None) -> str:
        return "" if key is None else self.m.token(self.i, key)[:7]

    def _seen(self, position: int) -> tuple[int, int]:
        """The keys that the query at `position` sees: from, to (exclusive)."""
        return max(0, position + 1 - self.window) if self.window else 0, position + 1

    def draw(self, x: float, y: float) -> float:
        """Returns where it ends."""
        sheet, m, cell, wide = self.sheet, self.m, self.cell, self.wide
        sheet.text(x, y + 8, self.title, weight="bold")
        x0, y = x + self.gutter, y + 22
        if m.tokens is not None:
            above = wide > cell  # texts have room above their columns
            y += 14 if above else 38
            sheet.text(x0 - 6, y - 8, "keys →", size=TINY, colour=MUTED, ha="right")
            for c, k in enumerate(self.columns):
                if above:
                    sheet.text(x0 + (c + 0.5) * wide, y - 8, self._text(k), size=TINY, ha="center")
                else:
                    sheet.text(x0 + (c + 0.6) * wide, y - 1, self._text(k), size=TINY, rotation=55, va="bottom")
        for c, k in enumerate(self.columns):
            label = "…" if k is None else str(k)
            sheet.text(x0 + (c + 0.5) * wide, y + 6, label, size=TINY, colour=MUTED, ha="center", width=wide + 2)
        sheet.text(x0 - 6, y + 6, "queries ↓", size=TINY, colour=MUTED, ha="right")
        y += 13
        for row, q in enumerate(self.queries):
            top = y + row * cell
            if q is None:
                sheet.text(x0 - 6, top + cell / 2, "…", size=TINY, colour=MUTED, ha="right")
                continue
            position = self.prefix + q
            sheet.text(x0 - 6, top + cell / 2, str(position), size=TINY, colour=MUTED, ha="right")
            if m.tokens is not None:
                sheet.text(
                    x0 - 34, top + cell / 2, m.token(self.i, position), size=TINY, ha="right", width=TEXT_ROOM + 6
                )
            for c, k in enumerate(self.columns):
                left, right = (k, k + 1) if k is not None else self._left_out(c)
                self._cell(x0 + c * wide, top, left, right, position)
        if self.prefix:
            border = x0 + wide * (len(self.columns) - len(self.queries))
            sheet.line([border, border], [y - 4, y + len(self.queries) * cell + 3], colour=INK, line=2)
        return y + len(self.queries) * cell + 18

    def _left_out(self, column: int) -> tuple[int, int]:
        """The keys that the column `…` stands for."""
        before, after = self.columns[column - 1], self.columns[column + 1]
        assert before is not None
        assert after is not None
        return before + 1, after

    def _cell(self, x: float, y: float, left: int, right: int, position: int) -> None:
        """Keys left..right-1 as one cell, in part hidden where they are several."""
        low, high = self._seen(position)
        hidden = min(max(low - left, 0), right - left) / (right - left) if left < high else 1.0
        name = f"mask {self.i} {position} {left} {'sees' if hidden < 1 else 'hidden'}"
        style = ROLES["hidden"] if hidden == 1 else self.earlier if left < self.prefix else ROLES["new"]
        self.sheet.rect(x, y, self.wide, self.cell, style, edge="#ffffff", name=name)
        if 0 < hidden < 1:
            self.sheet.rect(x, y, self.wide * hidden, self.cell, ROLES["hidden"], edge="#ffffff")


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
    new, total = mask.shape
    if mask.dtype is not torch.bool or total != prefix_len + new or not 0 < total <= MOST_CELLS:
        raise ValueError(
            f"mask: {mask.dtype} {list(mask.shape)} with prefix_len={prefix_len}: must be bool [new, {prefix_len} + new], "
            f"at most {MOST_CELLS} wide"
        )
    if wanted is None:
        distance = torch.arange(prefix_len, total)[:, None] - torch.arange(total)
        wanted = (distance >= 0) & (distance < (sliding_window or total))
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
