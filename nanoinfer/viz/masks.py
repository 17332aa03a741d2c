"""extend_mask, attention_mask: which new token sees which token of its sequence; and a mask that was computed elsewhere."""

from collections.abc import Callable, Sequence
from typing import Unpack

import torch

from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.viz.facts import Facts
from nanoinfer.viz.lettering import TINY, text_width
from nanoinfer.viz.palette import INK, MUTED, ROLES, Style, request_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Sheet
from nanoinfer.viz.words import SPACE_NOTE, abridged, count

MOST_CELLS = 32  # keys drawn one by one
MOST_NEW = 26  # of them new ones, and so many queries
GUTTER = 56.0  # left of a mask, for the positions of its queries
TEXT_ROOM = 44.0  # more, for their texts
Positions = Sequence[int | None]  # None: those between the two beside it


def extend_mask(
    metadata: InputMetadata,
    *,
    tokens: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    sliding_window: int | None = None,
    **heading: Unpack[Heading],
) -> Picture:
    """For each request a rectangle: its new tokens (queries) down, all its tokens (keys) across; filled where it sees.

    A query at position p sees the keys 0..p, with `sliding_window=W` the last W of them. `tokens`: texts of all tokens,
    request after request; `labels`: names of the requests. Of more than 8 requests the first 8 are drawn. Raises ValueError
    when `tokens` or `labels` are not as many or the window is below 1.
    """
    m = Facts(metadata, tokens, labels)
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window={sliding_window}: must be at least 1")
    mode, window = metadata.forward_mode.name, sliding_window or max(m.seq_lens)
    default = f"What each new token sees in one {mode} pass: new tokens (down) × all tokens (across)"
    sheet = Sheet(default_title=default, **heading)
    before = [i for i in range(m.shown) if m.prefixes[i]]
    entries = [(m.style(i), f"sees, in {m.labels[i]}: K/V from earlier passes") for i in before]
    if len(before) > 2:
        entries = [(m.style(before[-1]), "sees; K/V from earlier passes, each request's in its colour")]
    entries.append((ROLES["new"], "sees; K/V computed in this pass"))
    if sliding_window is not None or max(m.new_lens[: m.shown]) > 1:
        entries.append((ROLES["hidden"], "hidden"))
    sheet.legend(entries)
    x, bottom, said = sheet.left, sheet.y, list[str]()
    for i in range(m.shown):
        queries, keys = _shown(m.prefixes[i], m.new_lens[i])
        title_of = f"{m.labels[i]}: {m.new_lens[i]:,} new, {m.prefixes[i]:,} in the prefix"
        gutter = GUTTER + (TEXT_ROOM if m.tokens is not None else 0)
        room = (sheet.right - sheet.left - gutter) / len(keys)
        cell = min(24.0, room, 320 / len(queries))
        texts = [] if m.tokens is None else ["" if k is None else m.token(i, k)[:7] for k in keys]
        width = max(gutter + cell * len(keys), text_width(title_of, weight="bold") + 6)
        if x > sheet.left and x + width > sheet.right:
            x, sheet.y = sheet.left, bottom
        y, x0 = sheet.y + 22, x + gutter
        sheet.text(x, sheet.y + 8, title_of, weight="bold")
        if texts:
            y += 38
            sheet.text(x0 - 6, y - 8, "keys →", size=TINY, colour=MUTED, ha="right")
            for c, text in enumerate(texts):
                sheet.text(x0 + (c + 0.6) * cell, y - 1, text, size=TINY, rotation=55, va="bottom")
            for row, q in enumerate(queries):
                text = "" if q is None else m.token(i, q)
                sheet.text(x0 - 34, y + 13 + (row + 0.5) * cell, text, size=TINY, ha="right", width=TEXT_ROOM + 6)

        def style(q: int, k: int, i: int = i) -> tuple[Style, str]:
            sees = q - window < k <= q
            known = m.style(i) if k < m.prefixes[i] else ROLES["new"]
            return known if sees else ROLES["hidden"], f"mask {i} {q} {k} {'sees' if sees else 'hidden'}"

        bottom = max(bottom, _grid(sheet, x0, y, cell, queries, keys, m.prefixes[i], style) + 18)
        x += width + 30
        seen = sum(min(p + 1, window) for p in range(m.prefixes[i], m.seq_lens[i]))
        said.append(
            f"{m.labels[i]}: {count(m.new_lens[i], 'query')} × {count(m.seq_lens[i], 'key')} "
            f"({m.prefixes[i]:,} in the prefix), {seen:,} of {m.new_lens[i] * m.seq_lens[i]:,} pairs seen"
        )
    sheet.y = bottom
    if m.shown < m.batch_size:
        sheet.caption(f"… and {count(m.batch_size - m.shown, 'more request')}.")
    note = "Down: the new tokens, as queries. Across: all tokens of the sequence, as keys. Numbers: positions."
    sheet.caption(f"{note} {SPACE_NOTE if any('·' in text for text in m.tokens or ()) else ''}", size=TINY + 1)
    window_said = f", sliding window {sliding_window}" if sliding_window else ""
    return sheet.picture(f"{mode} mask{window_said}; {'; '.join(said)}.")


def _shown(prefix: int, new: int) -> tuple[Positions, Positions]:
    """The positions of the queries and of the keys; a long prefix, and many new tokens, are drawn from both ends."""
    queries = [None if q is None else prefix + q for q in abridged(new, MOST_NEW)]
    return queries, [
        *abridged(prefix, max(MOST_CELLS - len(queries), 0) if prefix + new > MOST_CELLS else prefix),
        *queries,
    ]


def _grid(
    sheet: Sheet,
    x0: float,
    y: float,
    cell: float,
    queries: Positions,
    keys: Positions,
    prefix: int,
    style: Callable[[int, int], tuple[Style, str]],
) -> float:
    """Queries down, keys across, with their positions; returns where it ends. What is left out: an empty row or column."""
    for c, k in enumerate(keys):
        text = "…" if k is None else str(k)
        sheet.text(x0 + (c + 0.5) * cell, y + 6, text, size=TINY, colour=MUTED, ha="center", width=cell + 2)
    sheet.text(x0 - 6, y + 6, "queries ↓", size=TINY, colour=MUTED, ha="right")
    y += 13
    for row, q in enumerate(queries):
        text = "…" if q is None else str(q)
        sheet.text(x0 - 6, y + (row + 0.5) * cell, text, size=TINY, colour=MUTED, ha="right")
        for c, k in enumerate(keys):
            if q is not None and k is not None:
                look, name = style(q, k)
                sheet.rect(x0 + c * cell, y + row * cell, cell, cell, look, edge="#ffffff", name=name)
    bottom = y + len(queries) * cell
    if prefix:
        border = x0 + cell * (len(keys) - len(queries))
        sheet.line([border, border], [y - 4, bottom + 3], colour=INK, line=2)
    return bottom


def attention_mask(
    mask: torch.Tensor,
    *,
    prefix_len: int,
    sliding_window: int | None = None,
    wanted: torch.Tensor | None = None,
    **heading: Unpack[Heading],
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
    sheet = Sheet(default_title="An attention mask: new tokens (down) × all tokens (across)", **heading)
    styles = {
        "prefix": (request_style(0), "sees; K/V of the request from earlier passes"),
        "new": (ROLES["new"], "sees; K/V computed in this pass"),
        "hidden": (ROLES["hidden"], "hidden"),
        "too much": (ROLES["conflict"], "wrong: sees what it must not"),
        "too little": (ROLES["leaked"], "wrong: doesn't see what it must"),
    }
    kinds = {}
    for q, k in ((q, k) for q in range(prefix_len, total) for k in range(total)):
        sees = bool(mask[q - prefix_len, k])
        kinds[q, k] = "hidden" if not sees else "prefix" if k < prefix_len else "new"
        if sees != bool(wanted[q - prefix_len, k]):
            kinds[q, k] = "too much" if sees else "too little"
    found, cell = list(kinds.values()), min(24.0, (sheet.right - sheet.left - GUTTER) / total)

    def style(q: int, k: int) -> tuple[Style, str]:
        return styles[kinds[q, k]][0], f"{q} {k} {kinds[q, k]}"

    x0, queries = sheet.left + GUTTER, range(prefix_len, total)
    sheet.y = 12 + _grid(sheet, x0, sheet.y, cell, queries, range(total), prefix_len, style)
    sheet.legend([entry for kind, entry in styles.items() if kind in found])
    wrong = ", ".join(f"{found.count(kind)} seen {kind}" for kind in ("too much", "too little") if kind in found)
    return sheet.picture(
        f"{count(new, 'query')} × {count(total, 'key')} ({prefix_len} in the prefix): {int(mask.sum())} of {mask.numel()} "
        f"pairs seen; {wrong or 'as it should be'}."
    )
