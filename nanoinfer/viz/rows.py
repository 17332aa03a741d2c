"""request_rows: rows of req_to_token, position → slot."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import FETCHED, INK, MUTED, ROLES, Style, owner_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Look, Sheet
from nanoinfer.viz.words import (
    NO_SLOT,
    checked_lens,
    count,
    runs,
    slots,
    slots_of_several,
    span,
)

MOST_CELLS = 30  # positions drawn one by one; longer rows are drawn as runs
MOST_RUNS = 12
EMPTY = ROLES["padding"]
WHERE = {"host": "host memory", "disk": "files"}


def request_rows(
    req_to_token_pool: ReqToTokenPool,
    seq_lens: Mapping[int, int],
    *,
    prefix_lens: Mapping[int, int] | None = None,
    allocated_lens: Mapping[int, int] | None = None,
    fetched: Mapping[int, Mapping[str, tuple[int, int]]] | None = None,
    labels: Mapping[int, str] | Sequence[str] | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """The rows in `seq_lens` ({row: length}), a slot in each cell.

    A slot that several rows name has the colours of all of them, in each of these rows. `prefix_lens` {row: length}: what
    belongs to the radix tree, locked by the request; such a slot has the tree's colour in every row. `allocated_lens`
    {row: length}: how far a row has slots, with the empty ones of its last page. Entries beyond are not in use and are
    shown as a dash, whatever number they hold. `fetched` {row: {storey: (first position, the one behind the last)}}: which
    of the first `prefix_lens` positions came back from `host` memory or from files (`disk`), as in `Req.fetched`; they are
    hatched. `labels`: one text per row. Raises ValueError when a row or a length is outside the pool.
    """
    sheet = Sheet(title, "ReqToTokenPool: position → slot", caption=caption)
    return sheet.picture(
        draw_request_rows(sheet, req_to_token_pool, seq_lens, prefix_lens, labels, allocated_lens, fetched)
    )


def draw_request_rows(
    sheet: Sheet,
    pool: ReqToTokenPool,
    seq_lens: Mapping[int, int],
    prefix_lens: Mapping[int, int] | None,
    labels: Mapping[int, str] | Sequence[str] | None,
    allocated_lens: Mapping[int, int] | None = None,
    fetched: Mapping[int, Mapping[str, tuple[int, int]]] | None = None,
) -> str:
    """`request_rows` on a sheet; returns its alt text."""
    lens = checked_lens("seq_lens", seq_lens, pool.size, pool.max_context_len)
    prefixes = checked_lens("prefix_lens", prefix_lens or {}, pool.size, pool.max_context_len)
    for row, prefix in prefixes.items():
        if prefix > lens.get(row, 0):
            raise ValueError(f"prefix_lens[{row}]={prefix}: must be at most seq_lens[{row}]={lens.get(row, 0)}")
    allocated = checked_lens("allocated_lens", allocated_lens or {}, pool.size, pool.max_context_len)
    for row, length in allocated.items():
        if length < lens.get(row, 0):
            raise ValueError(f"allocated_lens[{row}]={length}: must be at least seq_lens[{row}]={lens.get(row, 0)}")
    names, came = _names(lens, labels), dict[int, dict[int, str]]()
    for row, parts in (fetched or {}).items():
        for storey, (start, end) in parts.items():
            came.setdefault(row, {}).update(dict.fromkeys(range(start, end), storey))
    rows = _Rows(pool.req_to_token.cpu().numpy(), lens, prefixes, allocated, names, came)
    if not lens:
        sheet.caption("No row is in use.")
    elif max(lens.values()) <= MOST_CELLS:
        _cells(sheet, rows)
    else:
        _run_boxes(sheet, rows)
    if lens:
        _legend(sheet, rows)
    used = count(len(lens), "row")
    alt = f"{used} of {pool.size}"
    for row, length in lens.items():
        prefix = prefixes.get(row, 0)
        of_tree = f" ({prefix} of them the tree's)" if prefix else ""
        for storey, where in WHERE.items():
            if came_from := sum(each == storey for each in came.get(row, {}).values()):
                of_tree += f" ({came_from} came back from {where})"
        alt += f"; {names[row]}: {count(length, 'token')}{of_tree} in slots {runs(rows.table[row, :length], 6)}"
        if allocated.get(row, length) > length:
            alt += f", {runs(rows.table[row, length : allocated[row]], 6)} empty"
    if rows.sharers:
        alt += f"; named by several rows: {slots(np.array(sorted(rows.sharers)), 6)}"
    return alt + "."


class _Rows:
    """What is in the rows, and how each of their slots looks."""

    def __init__(
        self,
        table: np.ndarray,
        lens: dict[int, int],
        prefixes: dict[int, int],
        allocated: dict[int, int],
        names: dict[int, str],
        came: dict[int, dict[int, str]],
    ):
        self.table, self.lens, self.prefixes, self.names, self.came = table, lens, prefixes, names, came
        self.ends = {row: max(length, allocated.get(row, 0)) for row, length in lens.items()}
        self.styles = {row: owner_style(name, i) for i, (row, name) in enumerate(names.items())}
        self.of_tree = {slot for row, n in prefixes.items() for slot in table[row, :n].tolist()}
        of_rows = {str(row): table[row, :length] for row, length in lens.items()}
        several = slots_of_several(of_rows)
        self.sharers = {slot: list(map(int, of)) for slot, of in several.items() if slot not in self.of_tree}
        widest = max([text_width(name) for name in names.values()] + [text_width("position", SMALL)], default=0)
        self.gutter = min(16 + widest, 220)

    def look(self, row: int, position: int) -> Look:
        """Of the slot at a position before `ends[row]`."""
        slot = int(self.table[row, position])
        if position >= self.lens[row]:
            return EMPTY
        if (storey := self.came.get(row, {}).get(position)) is not None:
            return FETCHED[storey]
        if slot in self.of_tree:
            return ROLES["tree_locked"]
        return [self.styles[other] for other in self.sharers[slot]] if slot in self.sharers else self.styles[row]

    def styles_of_first_sharers(self) -> list[Style]:
        return [self.styles[row] for row in next(iter(self.sharers.values()))]


def _names(lens: Mapping[int, int], labels: Mapping[int, str] | Sequence[str] | None) -> dict[int, str]:
    if labels is None:
        return {row: f"row {row}" for row in lens}
    if isinstance(labels, Mapping):
        return {row: f"row {row}: {labels[row]}" if row in labels else f"row {row}" for row in lens}
    return {row: f"row {row}: {label}" for row, label in zip(lens, labels, strict=True)}


def _legend(sheet: Sheet, rows: _Rows) -> None:
    entries: list[tuple[Look, str]] = [(ROLES["tree_locked"], "slots of the tree, locked")] if rows.of_tree else []
    for storey, where in WHERE.items():
        if any(storey in positions.values() for positions in rows.came.values()):
            entries.append((FETCHED[storey], f"of the tree, locked: came back from {where} for this request"))
    several = ", each row's in its colour" if len(rows.names) > 1 else ""
    style = next(iter(rows.styles.values()))
    entries.append((style, f"slots of {'the request' if rows.of_tree else 'its tokens'}{several}"))
    if rows.sharers:
        entries.append((rows.styles_of_first_sharers(), "slots of several rows: the colours of all of them"))
    if any(end > rows.lens[row] for row, end in rows.ends.items()) and max(rows.lens.values()) <= MOST_CELLS:
        entries.append((EMPTY, "given to the row, still empty"))
    if any(end < rows.table.shape[1] for row, end in rows.ends.items()):
        entries.append((ROLES["leftover"], f"{NO_SLOT} not in use"))
    sheet.legend(entries)


def _cells(sheet: Sheet, rows: _Rows) -> None:
    x0, table = sheet.left + rows.gutter, rows.table
    columns = min(table.shape[1], max(max(rows.ends.values()) + 2, 16), MOST_CELLS + 2)
    width, height = min((sheet.right - x0 - 16) / columns, 40), 26.0
    size = SMALL if text_width(str(int(table.max())), SMALL) <= width - 4 else TINY
    for i in range(columns):
        sheet.text(x0 + (i + 0.5) * width, sheet.y + 6, str(i), size=TINY, colour=MUTED, ha="center")
    sheet.text(x0 - 8, sheet.y + 6, "position", size=SMALL, colour=MUTED, ha="right")
    sheet.y += 15
    for row, name in rows.names.items():
        sheet.text(x0 - 8, sheet.y + height / 2, name, ha="right", width=rows.gutter - 8)
        for i in range(columns):
            used = i < rows.ends[row]
            look, label = (rows.look(row, i), str(int(table[row, i]))) if used else (ROLES["leftover"], NO_SLOT)
            draw: Callable[..., object] = sheet.cell if isinstance(look, Style) else sheet.shared_cell
            place = x0 + i * width, sheet.y, width, height
            draw(*place, look, label, size=size, edge="#b8b8b8", name=f"row {row} {i}")
        end = x0 + rows.lens[row] * width
        sheet.line([end, end], [sheet.y - 2, sheet.y + height + 2], colour=INK, line=2)
        if columns < table.shape[1]:
            sheet.text(x0 + columns * width + 4, sheet.y + height / 2, "…", colour=MUTED)
        sheet.y += height + 6
    sheet.y += 4


def _run_boxes(sheet: Sheet, rows: _Rows) -> None:
    """Each row as boxes, one per run of neighbouring slots that look alike: positions above, slots inside; not to scale."""
    x0, height = sheet.left + rows.gutter, 26.0
    for row, name in rows.names.items():
        boxes: list[tuple[Look, int, int, int]] = []  # look, first position, first slot, last slot
        for position in range(rows.lens[row]):
            slot, look = int(rows.table[row, position]), rows.look(row, position)
            if boxes and boxes[-1][0] == look and boxes[-1][3] == slot - 1:
                boxes[-1] = (*boxes[-1][:3], slot)
            else:
                boxes.append((look, position, slot, slot))
        y = sheet.y + 12
        sheet.text(x0 - 8, y - 6, "position", size=TINY, colour=MUTED, ha="right")
        sheet.text(x0 - 8, y + height / 2, name, ha="right", width=rows.gutter - 8)
        x, left_out = x0, len(boxes) - MOST_RUNS
        if left_out > 0:
            boxes = [*boxes[: MOST_RUNS - 2], (ROLES["leftover"], -1, left_out + 1, 0), boxes[-1]]
        room = (sheet.right - x0 - 70) / max(len(boxes), 1)
        for look, position, first, last in boxes:
            skipped = position < 0
            inside = f"{first} runs" if skipped else span(first, last)
            above = "…" if skipped else span(position, position + last - first)
            width = min(room, max(text_width(inside, SMALL) + 12, text_width(above, TINY) + 6, 40))
            draw: Callable[..., object] = sheet.cell if isinstance(look, Style) else sheet.shared_cell
            draw(x, y, width, height, look, inside, edge="#767676", name=f"row {row} run")
            sheet.text(x + width / 2, y - 6, above, size=TINY, colour=MUTED, ha="center")
            x += width
        sheet.line([x, x], [y - 2, y + height + 2], colour=INK, line=2)
        if rows.ends[row] < rows.table.shape[1]:
            sheet.cell(x, y, 40, height, ROLES["leftover"], NO_SLOT, edge="#d0d0d0")
        sheet.y += height + 20
    sheet.caption("Above each box: positions. In it: slots, one box per run of neighbours (not to scale).", size=SMALL)
