"""slot_map: every slot of the TokenToKVPool by its owner."""

from collections.abc import Mapping
from typing import Unpack

import numpy as np

from nanoinfer.cache.indices import Indices
from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.engine.engine import Engine
from nanoinfer.viz.facts import request_labels
from nanoinfer.viz.lettering import SMALL
from nanoinfer.viz.palette import MUTED, ROLES, Style, owner_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Sheet
from nanoinfer.viz.words import checked_slots, count, runs, span

MOST_NUMBERED = 512  # slots; more are drawn as finer cells without numbers
MOST_CELLS = 128 * 64  # beyond, one cell stands for several slots
FREE, TREE, LOCKED, UNOWNED, SEVERAL, FIRST_OWNER = range(6)


def owners(engine: Engine) -> dict[str, np.ndarray]:
    """`{label: slots}` of the running requests of an Engine: the slots that each one owns, without those of the tree."""
    rows, running = engine.cache.rows, engine.scheduler.running
    return {
        label: rows[req.req_pool_idx, req.tree_len : req.allocated_len].astype(np.int64)
        for label, req in zip(request_labels(engine, running), running, strict=True)
    }


def slot_map(
    token_to_kv_pool: TokenToKVPool,
    owners: Mapping[str, Indices] | None = None,
    *,
    radix_cache: RadixCache | None = None,
    highlight: Indices | None = None,
    **heading: Unpack[Heading],
) -> Picture:
    """Slots 0..N-1 row after row; pages framed; a legend that counts each owner's slots.

    `owners`: `{"request 1": slots, ...}`, slots that each owns alone. `radix_cache`: the tree, with evictable and
    locked slots. A slot that is neither free nor owned by any of these is marked as leaked, one with several owners (the
    free list and the tree count, too; so does an owner that lists it twice) as such.
    With neither `owners` nor `radix_cache`, what is not free is "in use". `highlight`: slots to frame.
    Raises ValueError for slots outside the pool.
    """
    sheet = Sheet(
        default_title=f"TokenToKVPool: what owns each slot (page_size={getattr(token_to_kv_pool, 'page_size', 1)})",
        **heading,
    )
    return sheet.picture(draw_slot_map(sheet, token_to_kv_pool, owners, radix_cache, highlight))


def draw_slot_map(
    sheet: Sheet,
    pool: TokenToKVPool,
    owners: Mapping[str, Indices] | None,
    radix_cache: RadixCache | None,
    highlight: Indices | None,
) -> str:
    """`slot_map` on a sheet; returns its alt text."""
    owned = {str(label): checked_slots(f"owners[{label!r}]", s, pool.size) for label, s in (owners or {}).items()}
    marked = checked_slots("highlight", highlight, pool.size) if highlight is not None else np.empty(0, np.int64)
    owner = _owner_of_each_slot(pool, owned, radix_cache)
    owners_known = owners is not None or radix_cache is not None
    kinds = [
        *((ROLES["free"], "free"), (ROLES["tree"], "tree"), (ROLES["tree_locked"], "tree, locked")),
        (ROLES["leaked"], "no owner (leaked?)") if owners_known else (ROLES["in_use"], "in use"),
        (ROLES["conflict"], "several owners"),
        *((owner_style(label, i), label) for i, label in enumerate(owned)),
    ]
    _grid(sheet, pool, owner, [style for style, _ in kinds], marked)
    counts = np.bincount(owner, minlength=len(kinds)).tolist()
    always = {FREE} if radix_cache is None else {FREE, TREE}
    shown = [i for i in range(len(kinds)) if counts[i] or i in always]
    names = {i: "tree, unlocked" if i == TREE and counts[LOCKED] else kinds[i][1] for i in shown}
    entries = [(kinds[i][0], f"{name}: {counts[i]:,}") for i, name in names.items()]
    sheet.legend(entries, marked=f"marked: {runs(np.sort(marked))}" if marked.size else "")
    alt = f"{count(pool.size, 'slot')}: " + ", ".join(f"{counts[i]:,} {kinds[i][1]}" for i in shown)
    for kind in (UNOWNED, SEVERAL):
        if counts[kind] and owners_known:
            alt += f"; {kinds[kind][1]}: {runs(np.flatnonzero(owner == kind), 8)}"
    return alt + (f"; marked {runs(np.sort(marked), 8)}" if marked.size else "") + "."


def _owner_of_each_slot(
    pool: TokenToKVPool, owned: Mapping[str, np.ndarray], radix_cache: RadixCache | None
) -> np.ndarray:
    """int64 [N]: FREE, TREE, LOCKED, UNOWNED, SEVERAL, or FIRST_OWNER + the owner's place."""
    owner, claims = np.full(pool.size, UNOWNED), np.zeros(pool.size, dtype=np.int64)

    def claim(slots: np.ndarray, owner_or_kind: int) -> None:
        owner[slots] = owner_or_kind
        np.add.at(claims, slots, 1)

    claim(pool.free_slots().numpy(), FREE)
    if radix_cache is not None:
        for _, node in radix_cache.nodes():
            claim(checked_slots("radix_cache", node.value, pool.size), LOCKED if node.lock_ref else TREE)
    for i, slots in enumerate(owned.values()):
        claim(slots, FIRST_OWNER + i)  # twice where it is listed twice
    owner[claims > 1] = SEVERAL
    return owner


def _grid(sheet: Sheet, pool: TokenToKVPool, owner: np.ndarray, styles: list[Style], marked: np.ndarray) -> None:
    size, page = pool.size, pool.page_size
    numbered = size <= MOST_NUMBERED
    group = 1 if size <= MOST_CELLS else 1 << (-(-size // MOST_CELLS) - 1).bit_length()
    cells = np.array([np.bincount(owner[i : i + group]).argmax() for i in range(0, size, group)])
    for wrong in (UNOWNED, SEVERAL) if styles[UNOWNED] is ROLES["leaked"] else (SEVERAL,):
        cells[np.flatnonzero(owner == wrong) // group] = wrong  # a mistake decides alone
    per_row = 32 if numbered else 64 if len(cells) <= 2048 else 128
    if page > 1 and group == 1 and page < per_row:
        per_row -= per_row % page
    gutter = 0 if numbered else 8 + 7 * len(str(size))
    x0 = sheet.left + gutter
    width = min((sheet.right - x0) / min(per_row, max(len(cells), 20)), 40)
    height = (20.0 if len(cells) > 64 else 26.0) if numbered else max(min(width, 9.0), 6)
    framed = set((marked // group).tolist())
    y = sheet.y
    for row_start in range(0, len(cells), per_row):
        row = cells[row_start : row_start + per_row]
        if not numbered and row_start // per_row % 4 == 0:
            sheet.text(x0 - 6, y + height / 2, str(row_start * group), size=SMALL, colour=MUTED, ha="right")
        if numbered:
            for i, kind in enumerate(row.tolist()):
                slot = str(row_start + i)
                sheet.cell(x0 + i * width, y, width, height, styles[kind], slot, edge="#b8b8b8", name=f"slot {slot}")
        else:
            edges = np.flatnonzero(np.diff(row)) + 1
            for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(row)], strict=True):
                first, last = (row_start + start) * group, min((row_start + end) * group, size) - 1
                place = x0 + start * width, y, (end - start) * width, height
                sheet.rect(*place, styles[row[start]], name=f"slots {span(first, last)}")
            sheet.rect(x0, y, len(row) * width, height, edge="#c4c4c4", line=0.4)
        if page > 1 and group == 1 and page * width > 6:
            for i in range(0, len(row), page):
                sheet.rect(x0 + i * width, y, min(page, len(row) - i) * width, height, edge="#1a1a1a", line=1.1)
        for i in range(len(row)):
            if row_start + i in framed:
                frame = x0 + i * width + 1, y + 1, width - 2, height - 2
                sheet.rect(*frame, edge=ROLES["highlight"].face, line=2)
        y += height + (2 if numbered else 0)
    sheet.y = y + 8
    if group > 1:
        most = "the colour of most of them; a mistake in any one of them always shows"
        sheet.caption(f"One cell stands for {group} slots and has {most}.")
