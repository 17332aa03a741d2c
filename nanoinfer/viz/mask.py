"""extend_mask: which new token sees which token of its sequence."""

from collections.abc import Sequence

from nanoinfer.input_metadata import InputMetadata
from nanoinfer.viz.metadata import Facts
from nanoinfer.viz.palette import INK, MUTED, ROLES
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import BODY, SMALL, TINY, Sheet
from nanoinfer.viz.words import count, expect_type

MOST_CELLS = 40  # keys, and queries, drawn one by one
MOST_LINES = 240  # queries drawn as lines; of more, every k-th


def extend_mask(
    metadata: InputMetadata,
    *,
    tokens: Sequence[str] | None = None,
    sliding_window: int | None = None,
    title: str | None = None,
) -> Picture:
    """For each request a rectangle: its new tokens (queries) down, all its tokens (keys) across; filled where it sees.

    A query at position p sees the keys 0..p, with `sliding_window=W` the last W of them. `tokens`: texts of all tokens,
    request after request. Of more than 8 requests the first 8 are drawn. Raises ValueError when `tokens` are not as many or
    the window is below 1.
    """
    expect_type("metadata", metadata, InputMetadata)
    if sliding_window is not None and (not isinstance(sliding_window, int) or sliding_window < 1):
        raise ValueError(f"sliding_window={sliding_window!r}: must be at least 1, or None")
    m = Facts(metadata, tokens)
    sheet = Sheet(
        title, f"Who sees whom in one {metadata.forward_mode.name} pass: new tokens (down) × all tokens (across)"
    )
    sheet.legend(
        [
            (ROLES["tree"], "sees, key from the prefix"),
            (ROLES["new"], "sees, key computed in this pass"),
            (ROLES["hidden"], "hidden"),
        ]
    )
    x, bottom = sheet.left, sheet.y
    cell = 22.0
    seen_of = []
    for i in range(m.shown):
        seq, new = m.seq_lens[i], m.new_lens[i]
        seen_of.append(sum(min(p + 1, sliding_window or p + 1) for p in range(seq - new, seq)))
        small = seq <= MOST_CELLS and new <= MOST_CELLS
        label = 74 if m.tokens is not None else 44
        width = label + (max(seq * min(cell, (sheet.right - sheet.left - label) / seq), 150) if small else 700)
        if x > sheet.left and x + width > sheet.right:
            x, sheet.y = sheet.left, bottom
        y = _one(sheet, m, i, x, sheet.y, width, label, small, sliding_window)
        bottom = max(bottom, y)
        x += width + 30
    sheet.y = bottom
    if m.shown < m.batch_size:
        sheet.caption(f"… and {count(m.batch_size - m.shown, 'more request')}.")
    window = f", sliding window {sliding_window}" if sliding_window else ""
    alt = f"{metadata.forward_mode.name} mask{window}"
    for i, seen in enumerate(seen_of):
        pairs = m.new_lens[i] * m.seq_lens[i]
        alt += (
            f"; request {i}: {count(m.new_lens[i], 'query')} × {count(m.seq_lens[i], 'key')} "
            f"({m.prefixes[i]} in the prefix), {seen:,} of {pairs:,} pairs seen"
        )
    return sheet.picture(alt + ".")


def _one(
    sheet: Sheet, m: Facts, i: int, x: float, y: float, width: float, label: float, small: bool, window: int | None
) -> float:
    """One request's rectangle; returns where it ends."""
    prefix, new, seq = m.prefixes[i], m.new_lens[i], m.seq_lens[i]
    sheet.text(x, y + 8, f"request {i}: {new} new, {prefix} in the prefix", weight="bold", size=BODY, width=width + 26)
    y += 22
    x0 = x + label
    if small:
        cell = min(22.0, (width - label) / seq)
        if m.tokens is not None:
            y += 40
            for k in range(seq):
                sheet.text(x0 + (k + 0.65) * cell, y - 3, m.token(i, k)[:8], size=TINY, rotation=55, va="bottom")
        else:
            for k in range(seq):
                sheet.text(x0 + (k + 0.5) * cell, y + 4, str(k), size=TINY, colour=MUTED, ha="center")
            y += 12
        for q in range(new):
            p, top = prefix + q, y + q * cell
            name = f"{p} {m.token(i, p)[:8]}" if m.tokens is not None else str(p)
            sheet.text(x0 - 5, top + cell / 2, name, size=TINY, ha="right", width=label - 6)
            for k in range(seq):
                sees = k <= p and (window is None or k > p - window)
                style = ROLES["hidden"] if not sees else ROLES["tree"] if k < prefix else ROLES["new"]
                sheet.rect(x0 + k * cell, top, cell, cell, style, edge="#ffffff", name=f"mask {i} {p} {k} {int(sees)}")
        height, scale = new * cell, cell
    else:
        scale, height = (width - label) / seq, float(min(max(new * 3, 40), 240))
        step = max(1, -(-new // MOST_LINES))
        sheet.rect(x0, y, seq * scale, height, ROLES["hidden"])
        for q in range(0, new, step):
            lines = min(step, new - q)
            p, top, thick = prefix + q, y + height * q / new, height * lines / new
            low = 0 if window is None else max(0, p + 1 - window)
            if low < prefix:
                sheet.rect(x0 + low * scale, top, (prefix - low) * scale, thick, ROLES["tree"], name=f"prefix {i} {p}")
            start = max(low, prefix)
            sheet.rect(x0 + start * scale, top, (p + 1 - start) * scale, thick, ROLES["new"], name=f"new {i} {p}")
        sheet.text(x0 - 5, y + 6, str(prefix), size=TINY, ha="right")
        if new > 1:
            sheet.text(x0 - 5, y + height - 5, str(seq - 1), size=TINY, ha="right")
        ticks = [k for k in dict.fromkeys((0, prefix, seq)) if k in (0, seq) or 30 < k * scale < (seq * scale - 30)]
        for k in ticks:
            sheet.text(x0 + k * scale, y + height + 8, str(k), size=TINY, colour=MUTED, ha="center")
        sheet.y += 0
        height += 14
    if prefix:
        sheet.line([x0 + prefix * scale] * 2, [y - 4, y + height + 2 if small else y + height - 12], colour=INK, line=2)
    sheet.text(x, y + 5, "", size=SMALL)
    return y + height + 16
