"""allocator_marks: how a SlotAllocator finds its lowest free slots: the mark of a block first, then a mark within it."""

from typing import Any, cast

import numpy as np

from nanoinfer.cache import slot_allocator
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.slot_allocator import SlotAllocator
from nanoinfer.viz.lettering import SMALL, TINY
from nanoinfer.viz.palette import INK, MUTED, ROLES
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count, span

MOST_BLOCKS = 16
MOST_MARKS = 26  # of the block that is looked into
BEFORE = 4  # marks drawn in front of the first free one
FREE, TAKEN = ROLES["free"]._replace(text=INK), ROLES["in_use"]
FOUND = ROLES["highlight"]
GUTTER = 118.0


def allocator_marks(
    allocator: SlotAllocator | TokenToKVPool | ReqToTokenPool,
    *,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """The marks of an allocator, 1 for free and 0 for taken: one per block above, one per page of the block below.

    The first 1 above is where a search begins, and the first 1 below it is the lowest free page. `allocator`: a
    SlotAllocator, or a pool, which has one.
    """
    found = _allocator(allocator)
    unit = "slot" if found.page_size == 1 else f"page of {found.page_size} slots"
    sheet = Sheet(title, f"One mark per block, one mark per {unit}", caption=caption)
    entries = [(FREE, "1: free"), (TAKEN, "0: in use"), (FOUND, "marked: what the search finds")]
    free = np.flatnonzero(found._is_free)
    said = _draw(sheet, found, int(free[0]) if free.size else None)
    sheet.legend(entries, outline=["marked: what the search finds"])
    return sheet.picture(f"{count(found.size, found.name)}, {found.available_size():,} free; {said}.")


def _allocator(given: object) -> SlotAllocator:
    """The allocator itself, or that of a pool."""
    found: Any = (
        given if hasattr(given, "_is_free") else getattr(given, "_slots", None) or getattr(given, "_rows", None)
    )
    return cast(SlotAllocator, found)


def _block_size(allocator: SlotAllocator) -> int:
    """Pages in a block, as the class's own module or notebook has it."""
    namespace = getattr(type(allocator).alloc, "__globals__", vars(slot_allocator))
    return int(namespace.get("BLOCK", slot_allocator.BLOCK))


def _draw(sheet: Sheet, allocator: SlotAllocator, first: int | None) -> str:
    """The marks of blocks and those of the pages of the one with the lowest free page; returns them in words."""
    block_size, marks = _block_size(allocator), allocator._is_free
    blocks = allocator._block_is_free
    shown = min(len(blocks), MOST_BLOCKS)
    x0, width, y = sheet.left + GUTTER, 44.0, sheet.y
    found = None if first is None else first // block_size
    sheet.text(sheet.left, y + 12, "mark per block", size=SMALL)
    for i in range(shown):
        style = FREE if blocks[i] else TAKEN
        sheet.cell(x0 + i * width, y, width, 24, style, "1" if blocks[i] else "0", edge="#8a8a8a", name=f"block {i}")
    if found is not None and found < shown:
        sheet.rect(
            x0 + found * width + 1, y + 1, width - 2, 22, edge=FOUND.face, line=2.4, over=True, name="found block"
        )
    for i in range(0, shown, 1 if block_size < 10 else 2):
        name = span(i * block_size, min((i + 1) * block_size, len(marks)) - 1)
        sheet.text(x0 + (i + 0.5) * width, y + 32, name, size=TINY, colour=MUTED, ha="center")
    if shown < len(blocks):
        sheet.text(x0 + shown * width + 6, y + 12, f"… {len(blocks) - shown:,} more", size=TINY, colour=MUTED)
    if first is None:
        sheet.y = y + 48
        return f"no page is free, and {_blocks(blocks)}"
    block = first // block_size
    start = max(block * block_size, first - BEFORE)
    end = min((block + 1) * block_size, len(marks), start + MOST_MARKS)
    cell = min(28.0, (sheet.right - x0 - 80) / (end - start))
    low = y + 72
    # From the block that is looked into, a line to each end of its marks.
    if block < shown:
        for left, to in ((x0 + block * width, x0), (x0 + (block + 1) * width, x0 + (end - start) * cell)):
            sheet.line([left, to], [y + 40, low - 16], colour=MUTED, line=0.8, style=":")
    sheet.text(sheet.left, low + 12, f"block {block}: its marks", size=SMALL)
    for i in range(start, end):
        style = FREE if marks[i] else TAKEN
        x = x0 + (i - start) * cell
        sheet.cell(x, low, cell, 24, style, "1" if marks[i] else "0", edge="#8a8a8a", name=f"mark {i}")
        if (i - start) % 2 == 0 or cell > 26:
            sheet.text(x + cell / 2, low - 7, str(i), size=TINY, colour=MUTED, ha="center", width=cell * 2)
    x = x0 + (first - start) * cell
    sheet.rect(x + 1, low + 1, cell - 2, 22, edge=FOUND.face, line=2.4, over=True, name="found mark")
    if end < min((block + 1) * block_size, len(marks)):
        sheet.text(x0 + (end - start) * cell + 6, low + 12, "…", colour=MUTED)
    sheet.y = low + 40
    return f"{_blocks(blocks)}; first free mark {first} in block {found}"


def _blocks(blocks: np.ndarray) -> str:
    return f"{count(int(np.count_nonzero(blocks)), 'block')} of {len(blocks)} marked as having a free page"
