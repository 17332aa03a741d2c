"""padded_batch: the rectangle that sessions of different lengths are padded to, and what of it is waste."""

from collections.abc import Iterable, Sequence
from typing import Any

from nanoinfer.sessions.inference import InferenceSession
from nanoinfer.viz.lettering import SMALL, text_width
from nanoinfer.viz.palette import INK, MUTED, ROLES, owner_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import checked_texts, count, expect_type, is_a, num_bytes, percent

MOST_CELLS = 40
MOST_ROWS = 24


def padded_batch(
    sessions_or_lens: Sequence[InferenceSession] | Sequence[int],
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """Rows of K/V, each as long as the longest: used tokens and padding, with shares, and bytes where sessions are given.

    `sessions_or_lens`: InferenceSessions (their `kv_len` as it is now) or lengths. `labels`: a text per row. Raises
    ValueError for anything else, for negative lengths and for none.
    """
    if isinstance(sessions_or_lens, str) or not isinstance(sessions_or_lens, Iterable):
        expect_type("sessions_or_lens", sessions_or_lens, list)
    given = list(sessions_or_lens)
    if not given:
        raise ValueError("sessions_or_lens: must have at least one row")
    lens, bytes_per_token = _lens(given)
    names = checked_texts("labels", labels, len(lens), "rows") or [f"session {i}" for i in range(len(lens))]
    longest, used = max(lens), sum(lens)
    cells = longest * len(lens)
    sheet = Sheet(
        title, f"A padded batch: {count(len(lens), 'row')} × {count(longest, 'token')} of K/V", caption=caption
    )
    gutter = min(max(text_width(name) for name in names) + 12, 200)
    room = sheet.right - sheet.left - gutter - 150
    x0, width = sheet.left + gutter, min(room / max(longest, 1), 30)
    for i, (name, length) in enumerate(list(zip(names, lens, strict=True))[:MOST_ROWS]):
        sheet.text(x0 - 8, sheet.y + 10, name, ha="right", width=gutter - 8)
        if longest <= MOST_CELLS:
            for k in range(longest):
                look = owner_style(name, i) if k < length else ROLES["padding"]
                sheet.rect(x0 + k * width, sheet.y, width, 20, look, edge="#ffffff", name=f"row {i} token {k}")
        else:
            sheet.rect(x0, sheet.y, length * width, 20, owner_style(name, i), name=f"row {i} used")
            sheet.rect(
                x0 + length * width, sheet.y, (longest - length) * width, 20, ROLES["padding"], name=f"row {i} padding"
            )
        padding = longest - length
        use = f"{length:,} used" + (f", {padding:,} padding" if padding else "")
        sheet.text(x0 + longest * width + 8, sheet.y + 10, use, size=SMALL)
        sheet.y += 24
    end = x0 + longest * width
    sheet.line([x0, x0, end, end], [sheet.y + 2, sheet.y + 6, sheet.y + 6, sheet.y + 2], colour=INK)
    sheet.text((x0 + end) / 2, sheet.y + 15, f"longest: {longest:,}", size=SMALL, ha="center", colour=MUTED)
    sheet.y += 30
    if len(lens) > MOST_ROWS:
        sheet.caption(f"… and {count(len(lens) - MOST_ROWS, 'more row')}.")
    in_bytes = [f" = {num_bytes(n * bytes_per_token)}" if bytes_per_token else "" for n in (used, cells - used)]
    sheet.legend(
        [
            (
                owner_style(names[0], 0),
                f"used, each row in its colour: {used:,} of {cells:,} ({percent(used, cells)}){in_bytes[0]}",
            ),
            (ROLES["padding"], f"padding: {cells - used:,} ({percent(cells - used, cells)}){in_bytes[1]}"),
        ]
    )
    alt = (
        f"{count(len(lens), 'row')} padded to {longest:,} tokens: {used:,} of {cells:,} used{in_bytes[0]}, "
        f"{cells - used:,} padding ({percent(cells - used, cells)}){in_bytes[1]}."
    )
    return sheet.picture(alt)


def _lens(given: Sequence[Any]) -> tuple[list[int], int]:
    """Tokens per row, and bytes of K/V per token (0: unknown)."""
    sessions = [item for item in given if is_a(item, InferenceSession)]
    if len(sessions) == len(given):
        return [session.kv_len for session in sessions], sessions[0].engine.kv_bytes_per_token
    lens = []
    for i, item in enumerate(given):
        if is_a(item, InferenceSession) or isinstance(item, bool) or not hasattr(item, "__index__"):
            raise ValueError(f"sessions_or_lens[{i}]: must be all InferenceSessions or all integers, got {item!r}")
        if int(item) < 0:
            raise ValueError(f"sessions_or_lens[{i}]={int(item)}: must not be negative")
        lens.append(int(item))
    return lens, 0
