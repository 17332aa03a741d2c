"""request_rows: rows of req_to_token, position → slot."""

from collections.abc import Mapping, Sequence

import numpy as np

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.viz.palette import INK, MUTED, ROLES, Style, owner_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import SMALL, TINY, Sheet, text_width
from nanoinfer.viz.words import checked_lens, checked_texts, count, expect_type, run_list, runs, span

MOST_CELLS = 30  # positions drawn one by one; longer rows are drawn as runs
MOST_RUNS = 12
EMPTY = ROLES["padding"]


def request_rows(
    req_to_token_pool: ReqToTokenPool,
    seq_lens: Mapping[int, int],
    *,
    prefix_lens: Mapping[int, int] | None = None,
    allocated_lens: Mapping[int, int] | None = None,
    labels: Mapping[int, str] | Sequence[str] | None = None,
    title: str | None = None,
) -> Picture:
    """The rows in `seq_lens` ({row: length}), a slot in each cell.

    `prefix_lens` {row: length}: what belongs to the radix tree. `allocated_lens` {row: length}: how far a row has slots,
    with the empty ones of its last page. What lies right of that is left over from earlier requests and greyed. `labels`:
    a text a row. Raises ValueError when a row or a length is outside the pool.
    """
    sheet = Sheet(title, "ReqToTokenPool: position → slot")
    return sheet.picture(
        draw_request_rows(sheet, req_to_token_pool, seq_lens, prefix_lens, labels, allocated_lens=allocated_lens)
    )


def draw_request_rows(
    sheet: Sheet,
    pool: ReqToTokenPool,
    seq_lens: Mapping[int, int],
    prefix_lens: Mapping[int, int] | None,
    labels: Mapping[int, str] | Sequence[str] | None,
    prefix_role: str = "tree",
    allocated_lens: Mapping[int, int] | None = None,
) -> str:
    """`request_rows` on a sheet; returns its alt text. `prefix_role`: what a prefix looks like."""
    expect_type("req_to_token_pool", pool, ReqToTokenPool)
    lens = checked_lens("seq_lens", seq_lens, pool.size, pool.max_context_len)
    prefixes = checked_lens("prefix_lens", prefix_lens or {}, pool.size, pool.max_context_len)
    for row, prefix in prefixes.items():
        if prefix > lens.get(row, 0):
            raise ValueError(f"prefix_lens[{row}]={prefix}: must be at most seq_lens[{row}]={lens.get(row, 0)}")
    allocated = checked_lens("allocated_lens", allocated_lens or {}, pool.size, pool.max_context_len)
    for row, length in allocated.items():
        if length < lens.get(row, 0):
            raise ValueError(f"allocated_lens[{row}]={length}: must be at least seq_lens[{row}]={lens.get(row, 0)}")
    names = _names(lens, labels)
    table = pool.req_to_token.cpu().numpy()
    if not lens:
        sheet.caption("No row is in use.")
    widest = max(lens.values(), default=0)
    gutter = 16 + max([text_width(name) for name in names.values()] + [text_width("position", SMALL)], default=0)
    gutter = min(gutter, 220)
    if lens and widest <= MOST_CELLS:
        _cells(sheet, table, lens, prefixes, allocated, names, gutter, ROLES[prefix_role])
    elif lens:
        _run_boxes(sheet, table, lens, prefixes, names, gutter, ROLES[prefix_role])
    if lens:
        empty = any(length > lens.get(row, 0) for row, length in allocated.items()) and widest <= MOST_CELLS
        _legend(sheet, prefixes, names, ROLES[prefix_role], empty)
    used = count(len(lens), "row")
    alt = f"{used} of {pool.size}"
    for row, length in lens.items():
        prefix = prefixes.get(row, 0)
        shared = f" ({prefix} of them the tree's)" if prefix else ""
        alt += f"; {names[row]}: {count(length, 'token')}{shared} in slots {runs(table[row, :length], 6)}"
        if allocated.get(row, length) > length:
            alt += f", {runs(table[row, length : allocated[row]], 6)} empty"
    return alt + "."


def _names(lens: Mapping[int, int], labels: Mapping[int, str] | Sequence[str] | None) -> dict[int, str]:
    if labels is None:
        return {row: f"row {row}" for row in lens}
    if isinstance(labels, Mapping):
        return {row: f"row {row}: {labels[row]}" if row in labels else f"row {row}" for row in lens}
    texts = checked_texts("labels", labels, len(lens), "rows") or []
    return {row: f"row {row}: {label}" for row, label in zip(lens, texts, strict=True)}


def _styles(names: Mapping[int, str]) -> dict[int, Style]:
    return {row: owner_style(name, i) for i, (row, name) in enumerate(names.items())}


def _legend(sheet: Sheet, prefixes: Mapping[int, int], names: Mapping[int, str], shared: Style, empty: bool) -> None:
    style, shares = next(iter(_styles(names).values())), any(prefixes.values())
    entries = [(shared, "slots of the tree")] if shares else []
    several = ", each row's in its colour" if len(names) > 1 else ""
    entries.append((style, f"slots of {'the request' if shares else 'its tokens'}{several}"))
    if empty:
        entries.append((EMPTY, "given to the row, still empty"))
    sheet.legend([*entries, (ROLES["leftover"], "beyond its length: never read")])


def _cells(
    sheet: Sheet,
    table: np.ndarray,
    lens: Mapping[int, int],
    prefixes: Mapping[int, int],
    allocated: Mapping[int, int],
    names: Mapping[int, str],
    gutter: float,
    shared: Style,
) -> None:
    x0 = sheet.left + gutter
    columns = min(table.shape[1], max(max(lens.values()) + 4, 16), MOST_CELLS + 2)
    width, height = min((sheet.right - x0 - 16) / columns, 40), 24.0
    size = SMALL if text_width(str(int(table.max())), SMALL) <= width - 4 else TINY
    for i in range(columns):
        sheet.text(x0 + (i + 0.5) * width, sheet.y + 6, str(i), size=TINY, colour=MUTED, ha="center")
    sheet.text(x0 - 8, sheet.y + 6, "position", size=SMALL, colour=MUTED, ha="right")
    sheet.y += 15
    for row, style in _styles(names).items():
        sheet.text(x0 - 8, sheet.y + height / 2, names[row], ha="right", width=gutter - 8)
        for i in range(columns):
            look = shared if i < prefixes.get(row, 0) else style if i < lens[row] else ROLES["leftover"]
            look = EMPTY if lens[row] <= i < allocated.get(row, 0) else look
            label = str(int(table[row, i]))
            sheet.cell(
                x0 + i * width, sheet.y, width, height, look, label, size=size, edge="#b8b8b8", name=f"row {row} {i}"
            )
        end = x0 + lens[row] * width
        sheet.line([end, end], [sheet.y - 2, sheet.y + height + 2], colour=INK, line=2)
        if columns < table.shape[1]:
            sheet.text(x0 + columns * width + 4, sheet.y + height / 2, "…", colour=MUTED)
        sheet.y += height + 6
    sheet.y += 4


def _run_boxes(
    sheet: Sheet,
    table: np.ndarray,
    lens: Mapping[int, int],
    prefixes: Mapping[int, int],
    names: Mapping[int, str],
    gutter: float,
    shared: Style,
) -> None:
    """Each row as boxes, one per run of neighbouring slots: positions above, slots inside; not to scale."""
    x0, height = sheet.left + gutter, 26.0
    for row, style in _styles(names).items():
        prefix, length = prefixes.get(row, 0), lens[row]
        boxes = [
            (look, start + first, slots)
            for look, start, end in ((shared, 0, prefix), (style, prefix, length))
            for first, slots in _with_positions(table[row, start:end])
        ]
        y = sheet.y + 12
        sheet.text(x0 - 8, y + height / 2, names[row], ha="right", width=gutter - 8)
        x, left_out = x0, len(boxes) - MOST_RUNS
        if left_out > 0:
            boxes = [*boxes[: MOST_RUNS - 2], (ROLES["leftover"], -1, (left_out + 1, 0)), boxes[-1]]
        room = (sheet.right - x0 - 70) / max(len(boxes), 1)
        for look, position, (first, last) in boxes:
            skipped = position < 0
            inside = f"{first} runs" if skipped else span(first, last)
            above = "…" if skipped else span(position, position + last - first)
            width = min(room, max(text_width(inside, SMALL) + 12, text_width(above, TINY) + 6, 40))
            sheet.cell(x, y, width, height, look, inside, edge="#767676", name=f"row {row} run")
            sheet.text(x + width / 2, y - 6, above, size=TINY, colour=MUTED, ha="center")
            x += width
        sheet.line([x, x], [y - 2, y + height + 2], colour=INK, line=2)
        if length < table.shape[1]:
            sheet.cell(x, y, 54, height, ROLES["leftover"], "left over", size=TINY, edge="#d0d0d0")
        sheet.y += height + 20
    sheet.caption("Above each box: positions. In it: slots, one box a run of neighbours (not to scale).", size=SMALL)


def _with_positions(slots: np.ndarray) -> list[tuple[int, tuple[int, int]]]:
    position, boxes = 0, []
    for first, last in run_list(slots):
        boxes.append((position, (first, last)))
        position += last - first + 1
    return boxes
