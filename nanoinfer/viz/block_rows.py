"""block_rows: one request three ways: its row of slots, its block table with offsets, and the buffer in blocks."""

import numpy as np

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.viz.lettering import SMALL, TINY
from nanoinfer.viz.palette import GRID, INK, MUTED, ROLES, Style, owner_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Look, Sheet
from nanoinfer.viz.words import checked_lens, count, expect_type, runs

MOST_TOKENS, MOST_SLOTS = 32, 256
GUTTER, TALL = 92.0, 22.0
FREE, OTHERS, EMPTY = ROLES["free"], ROLES["in_use"], ROLES["padding"]


def block_rows(
    req_to_token_pool: ReqToTokenPool,
    token_to_kv_pool: TokenToKVPool,
    row: int,
    length: int,
    *,
    new: int = 0,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """The request in `row`, with `length` tokens, the last `new` of them computed in this pass.

    Above, its row: a slot per token. Below it, its block table: a block per `page_size` tokens, with the offsets. Last, all
    slots of the pool, block by block. Raises ValueError when `row` or `length` is out of range, there are more than 32
    tokens or 256 slots, `new` is no number of its tokens, or a token is not at the offset where a block table has it.
    """
    expect_type("req_to_token_pool", req_to_token_pool, ReqToTokenPool)
    expect_type("token_to_kv_pool", token_to_kv_pool, TokenToKVPool)
    rows, pool = req_to_token_pool.req_to_token, token_to_kv_pool
    checked_lens("row", {row: length}, len(rows), min(rows.shape[1], MOST_TOKENS))
    if not length:
        raise ValueError(f"length={length}: must be at least 1")
    if isinstance(new, bool) or not isinstance(new, int) or not 0 <= new <= length:
        raise ValueError(f"new={new!r}: must be an integer in 0..{length}, the tokens of the request")
    if pool.size > MOST_SLOTS:
        raise ValueError(f"token_to_kv_pool: {pool.size} slots; at most {MOST_SLOTS} can be drawn")
    size = pool.page_size
    slots = rows[row, :length].numpy().astype(np.int64)
    table = _block_table(slots, size, pool.size)
    label = f"request {row}"
    style = owner_style(label, row)
    sheet = Sheet(title, f"{label}: its row, its block table, and the buffer in blocks of {size}", caption=caption)
    looks = [ROLES["new"] if n >= length - new else style for n in range(length)]
    _row_and_table(sheet, slots, table, looks, style, size)
    _buffer(sheet, pool, slots, table, looks)
    entries: list[tuple[Look, str]] = [(style, f"{label}: its tokens")]
    if new:
        entries.append((ROLES["new"], "computed in this pass"))
    if len(table) * size > length:
        entries.append((EMPTY, "the request's, still empty"))
    others = pool.size - pool.available_size() - len({*table}) * size
    entries += [(OTHERS, "in use by others")] * (others > 0) + [(FREE, "free")] * (pool.available_size() > 0)
    sheet.legend(entries)
    blocks = ", ".join(map(str, table))
    last = f", the last {count(new, 'token')} computed in this pass" if new else ""
    return sheet.picture(
        f"{label} has {count(length, 'token')} in slots {runs(slots, 8)}{last}; its block table is [{blocks}] with blocks "
        f"of {size} slots; the buffer has {count(pool.size // size, 'block')}."
    )


def _block_table(slots: np.ndarray, size: int, num_slots: int) -> list[int]:
    """The blocks of a row of slots. ValueError where a token's slot is not at its offset of its block."""
    blocks = slots[::size] // size
    for n in np.flatnonzero((slots < 0) | (slots >= num_slots))[:1]:
        raise ValueError(f"req_to_token_pool: token {n} is in slot {slots[n]}, must be in 0..{num_slots - 1}")
    wanted = blocks.repeat(size)[: len(slots)] * size + np.arange(len(slots)) % size
    for n in np.flatnonzero(wanted != slots)[:1]:
        raise ValueError(
            f"req_to_token_pool: token {n} is in slot {slots[n]}, must be in {wanted[n]}: a block table lists whole "
            f"blocks of page_size={size}"
        )
    return [int(block) for block in blocks]


def _row_and_table(
    sheet: Sheet, slots: np.ndarray, table: list[int], looks: list[Style], style: Style, size: int
) -> None:
    width = min((sheet.right - sheet.left - GUTTER) / (len(table) * size), 34.0)
    x0, y = sheet.left + GUTTER, sheet.y
    for text, middle in (("index n", 7.0), ("its row", 27.0), ("block table", 61.0), ("offset n % P", 82.0)):
        bold = "bold" if text in ("its row", "block table") else "normal"
        sheet.text(sheet.left, y + middle, text, size=SMALL, weight=bold, colour=INK if bold == "bold" else MUTED)
    for n in range(len(table) * size):
        x, used = x0 + n * width, n < len(slots)
        middle = x + width / 2
        if used:
            sheet.text(middle, y + 7, str(n), size=TINY, colour=MUTED, ha="center")
            sheet.cell(x, y + 16, width, TALL, looks[n], str(slots[n]), edge=GRID, name=f"row {n}")
            sheet.text(middle, y + 82, str(n % size), size=TINY, colour=MUTED, ha="center")
    for i, block in enumerate(table):
        x, text = x0 + i * size * width, f"block {block}" if size * width > 44 else str(block)
        sheet.cell(x, y + 50, size * width, TALL, style, text, edge=INK, name=f"table {i}")
    sheet.y = y + 98


def _buffer(sheet: Sheet, pool: TokenToKVPool, slots: np.ndarray, table: list[int], looks: list[Style]) -> None:
    size, x0 = pool.page_size, sheet.left + GUTTER
    number_of = {int(slot): n for n, slot in enumerate(slots)}
    empty = {block * size + offset for block in table for offset in range(size)} - number_of.keys()
    free = set(pool.free_slots().tolist())
    gap, cell = 8.0, 22.0
    per_line = max(1, int((sheet.right - x0 + gap) // (size * cell + gap)))
    if size * cell > sheet.right - x0:
        per_line, cell = 1, (sheet.right - x0) / size
    sheet.text(sheet.left, sheet.y + 7, "the buffer", size=SMALL, weight="bold")
    sheet.text(sheet.left, sheet.y + 22, f"[{pool.size // size}, {size}, ...]", size=SMALL, colour=MUTED)
    for block in range(pool.size // size):
        x = x0 + block % per_line * (size * cell + gap)
        if block and block % per_line == 0:
            sheet.y += 42
        bold = "bold" if block in table else "normal"
        sheet.text(x, sheet.y + 7, f"{'block ' if size * cell > 44 else ''}{block}", size=TINY, weight=bold)
        for offset in range(size):
            slot = block * size + offset
            look = EMPTY if slot in empty else FREE if slot in free else OTHERS
            if slot in number_of:
                look = looks[number_of[slot]]
            place = x + offset * cell, sheet.y + 14
            sheet.cell(*place, cell, TALL, look, str(slot), size=TINY, edge=GRID, name=f"slot {slot}")
        if block in table:
            sheet.rect(x, sheet.y + 14, size * cell, TALL, edge=INK, line=1.4, over=True)
    sheet.y += 50
