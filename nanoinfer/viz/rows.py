"""request_rows: rows of req_to_token, position → slot."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Unpack

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import FETCHED, INK, MUTED, ROLES, owner_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Look, Sheet
from nanoinfer.viz.words import NO_SLOT, checked_lens, count, runs, slots, slots_of_several, span

MOST_CELLS = 30  # positions drawn one by one; longer rows are drawn as runs
MOST_RUNS = 12
HEIGHT = 26.0
EMPTY, UNUSED = ROLES["padding"], ROLES["leftover"]
WHERE = {"host": "host memory", "disk": "files"}


def request_rows(
    req_to_token_pool: ReqToTokenPool,
    seq_lens: Mapping[int, int],
    *,
    prefix_lens: Mapping[int, int] | None = None,
    allocated_lens: Mapping[int, int] | None = None,
    labels: Mapping[int, str] | Sequence[str] | None = None,
    **heading: Unpack[Heading],
) -> Picture:
    """The rows in `seq_lens` ({row: length}), a slot in each cell.

    A slot that several rows name has the colours of all of them, in each of these rows. `prefix_lens` {row: length}: what
    belongs to the radix tree, locked by the request; such a slot has the tree's colour in every row. `allocated_lens`
    {row: length}: how far a row has slots, with the empty ones of its last page. Entries beyond are not in use and are
    shown as a dash, whatever number they hold. `labels`: one text per row. Raises ValueError when a row or a length is
    outside the pool.
    """
    sheet = Sheet(default_title="ReqToTokenPool: position → slot", **heading)
    return sheet.picture(draw_request_rows(sheet, req_to_token_pool, seq_lens, prefix_lens, labels, allocated_lens))


class _Row(NamedTuple):
    """A row with its `slots` up to where it has some, how each looks, and how many of them have a token."""

    name: str
    slots: list[int]
    looks: list[Look]
    length: int


def draw_request_rows(
    sheet: Sheet,
    pool: ReqToTokenPool,
    seq_lens: Mapping[int, int],
    prefix_lens: Mapping[int, int] | None,
    labels: Mapping[int, str] | Sequence[str] | None,
    allocated_lens: Mapping[int, int] | None = None,
    fetched: Mapping[int, Mapping[str, tuple[int, int]]] | None = None,
) -> str:
    """`request_rows` on a sheet; returns its alt text.

    `fetched` {row: {tier: (first position, the one behind the last)}}: which of the first `prefix_lens` positions came
    back from `host` memory or from files (`disk`); they are hatched.
    """
    lens = checked_lens("seq_lens", seq_lens, pool.size, pool.max_context_len)
    prefixes = checked_lens("prefix_lens", prefix_lens or {}, pool.size, pool.max_context_len)
    ends = lens | checked_lens("allocated_lens", allocated_lens or {}, pool.size, pool.max_context_len)
    for row, prefix in prefixes.items():
        if prefix > lens.get(row, 0):
            raise ValueError(f"prefix_lens[{row}]={prefix}: must be at most seq_lens[{row}]={lens.get(row, 0)}")
    for row, end in ends.items():
        if end < lens.get(row, 0):
            raise ValueError(f"allocated_lens[{row}]={end}: must be at least seq_lens[{row}]={lens.get(row, 0)}")
    given = labels if isinstance(labels, Mapping) else dict(zip(lens, labels or [], strict=labels is not None))
    names = {row: f"row {row}: {given[row]}" if row in given else f"row {row}" for row in lens}
    if not lens:
        sheet.caption("No row is in use.")
        return f"0 rows of {pool.size}."
    table = pool.req_to_token.cpu().numpy()
    styles = {row: owner_style(name, i) for i, (row, name) in enumerate(names.items())}
    of_tree = {slot for row, n in prefixes.items() for slot in table[row, :n].tolist()}
    several = slots_of_several({str(row): table[row, :length] for row, length in lens.items()})
    sharers = {slot: [styles[int(row)] for row in of] for slot, of in several.items() if slot not in of_tree}
    tiers = {
        (row, position): tier
        for row, parts in (fetched or {}).items()
        for tier, (start, end) in parts.items()
        for position in range(start, end)
    }

    def look(row: int, position: int, slot: int) -> Look:
        if position >= lens[row]:
            return EMPTY
        if (row, position) in tiers:
            return FETCHED[tiers[row, position]]
        return ROLES["tree_locked"] if slot in of_tree else sharers.get(slot, styles[row])

    rows, said = dict[int, _Row](), f"{count(len(lens), 'row')} of {pool.size}"
    for row, length in lens.items():
        of_row = table[row, : ends[row]].tolist()
        rows[row] = _Row(names[row], of_row, [look(row, i, slot) for i, slot in enumerate(of_row)], length)
        from_tree = f" ({prefixes[row]} of them the tree's)" if prefixes.get(row) else ""
        for tier, where in WHERE.items():
            if came := sum(each == tier and of == row for (of, _), each in tiers.items()):
                from_tree += f" ({came} came back from {where})"
        said += f"; {names[row]}: {count(length, 'token')}{from_tree} in slots {runs(of_row[:length], 6)}"
        said += f", {runs(of_row[length:], 6)} empty" if ends[row] > length else ""
    in_cells = max(lens.values()) <= MOST_CELLS
    gutter = min(16 + max(*map(text_width, names.values()), text_width("position", SMALL)), 220)
    (_cells if in_cells else _run_boxes)(sheet, rows, sheet.left + gutter, table.shape[1])
    entries: list[tuple[Look, str]] = [(ROLES["tree_locked"], "slots of the tree, locked")] if of_tree else []
    for tier, where in WHERE.items():
        if tier in tiers.values():
            entries.append((FETCHED[tier], f"of the tree, locked: came back from {where} for this request"))
    colours = ", each row's in its colour" if len(lens) > 1 else ""
    entries.append((next(iter(styles.values())), f"slots of {'the request' if of_tree else 'its tokens'}{colours}"))
    if sharers:
        entries.append((next(iter(sharers.values())), "slots of several rows: the colours of all of them"))
        said += f"; named by several rows: {slots(sorted(sharers), 6)}"
    if in_cells and ends != lens:
        entries.append((EMPTY, "given to the row, still empty"))
    if any(end < table.shape[1] for end in ends.values()):
        entries.append((UNUSED, f"{NO_SLOT} not in use"))
    sheet.legend(entries)
    return said + "."


def _cells(sheet: Sheet, rows: Mapping[int, _Row], x0: float, row_size: int) -> None:
    columns = min(row_size, max(16, *(len(row.slots) + 2 for row in rows.values())), MOST_CELLS + 2)
    width = min((sheet.right - x0 - 16) / columns, 40)
    for i in range(columns):
        sheet.text(x0 + (i + 0.5) * width, sheet.y + 6, str(i), size=TINY, colour=MUTED, ha="center")
    sheet.text(x0 - 8, sheet.y + 6, "position", size=SMALL, colour=MUTED, ha="right")
    sheet.y += 15
    for number, row in rows.items():
        sheet.text(x0 - 8, sheet.y + HEIGHT / 2, row.name, ha="right", width=x0 - sheet.left - 8)
        for i in range(columns):
            look, label = (row.looks[i], str(row.slots[i])) if i < len(row.slots) else (UNUSED, NO_SLOT)
            place = x0 + i * width, sheet.y, width, HEIGHT
            sheet.cell(*place, look, label, edge="#b8b8b8", name=f"row {number} {i}")
        end = x0 + row.length * width
        sheet.line([end, end], [sheet.y - 2, sheet.y + HEIGHT + 2], colour=INK, line=2)
        if columns < row_size:
            sheet.text(x0 + columns * width + 4, sheet.y + HEIGHT / 2, "…", colour=MUTED)
        sheet.y += HEIGHT + 6
    sheet.y += 4


def _run_boxes(sheet: Sheet, rows: Mapping[int, _Row], x0: float, row_size: int) -> None:
    """Each row as boxes, one per run of neighbouring slots that look alike: positions above, slots inside; not to scale."""
    for number, row in rows.items():
        boxes: list[tuple[Look, int, int, int]] = []  # look, first position, first slot, last slot
        for position, (slot, look) in enumerate(zip(row.slots[: row.length], row.looks, strict=False)):
            if boxes and boxes[-1][0] == look and boxes[-1][3] == slot - 1:
                boxes[-1] = (*boxes[-1][:3], slot)
            else:
                boxes.append((look, position, slot, slot))
        y, x = sheet.y + 12, x0
        sheet.text(x0 - 8, y - 6, "position", size=TINY, colour=MUTED, ha="right")
        sheet.text(x0 - 8, y + HEIGHT / 2, row.name, ha="right", width=x0 - sheet.left - 8)
        texts = [(look, span(at, at + last - first), span(first, last)) for look, at, first, last in boxes]
        if len(texts) > MOST_RUNS:
            texts = [*texts[: MOST_RUNS - 2], (UNUSED, "…", f"{len(texts) - MOST_RUNS + 1} runs"), texts[-1]]
        room = (sheet.right - x0 - 70) / max(len(texts), 1)
        for look, above, inside in texts:
            width = min(room, max(text_width(inside, SMALL) + 12, text_width(above, TINY) + 6, 40))
            sheet.cell(x, y, width, HEIGHT, look, inside, edge="#767676", name=f"row {number} run")
            sheet.text(x + width / 2, y - 6, above, size=TINY, colour=MUTED, ha="center")
            x += width
        sheet.line([x, x], [y - 2, y + HEIGHT + 2], colour=INK, line=2)
        if len(row.slots) < row_size:
            sheet.cell(x, y, 40, HEIGHT, UNUSED, NO_SLOT, edge="#d0d0d0")
        sheet.y += HEIGHT + 20
    sheet.caption("Above each box: positions. In it: slots, one box per run of neighbours (not to scale).", size=SMALL)
