"""block_rows, hashed_blocks, tiers: a request in blocks, prompts as hashed blocks, and which tier has which block."""

from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np

from nanoinfer.cache.block_events import block_hashes
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.viz.lettering import SMALL, TINY, text_width, wrapped
from nanoinfer.viz.palette import BARS, GRID, INK, MUTED, PLAIN, ROLES, Style, owner_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Look, Sheet
from nanoinfer.viz.words import count, run_list, runs, visible_ends

GUTTER, TALL = 92.0, 22.0
FREE, OTHERS, EMPTY = ROLES["free"], ROLES["in_use"], ROLES["padding"]


def block_rows(
    req_to_token_pool: ReqToTokenPool,
    token_to_kv_pool: TokenToKVPool,
    row: int,
    length: int,
    *,
    new: int = 0,
    **heading: Unpack[Heading],
) -> Picture:
    """The request in `row`, with `length` tokens, the last `new` of them computed in this pass.

    Above, its row: a slot per token. Below it, its block table: a block per `page_size` tokens, with the offsets. Last, all
    slots of the pool, block by block.
    """
    rows, pool = req_to_token_pool.req_to_token, token_to_kv_pool
    size = pool.page_size
    slots = rows[row, :length].numpy().astype(np.int64)
    table = [int(block) for block in slots[::size] // size]
    label = f"request {row}"
    style = owner_style(label, row)
    sheet = Sheet(default_title=f"{label}: its row, its block table, and the buffer in blocks of {size}", **heading)
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
    own, free = dict(zip(slots.tolist(), looks, strict=True)), set(pool.free_slots().tolist())
    cell = min(22.0, (sheet.right - x0) / size)
    per_line = max(1, int((sheet.right - x0 + 8) // (size * cell + 8)))
    sheet.text(sheet.left, sheet.y + 7, "the buffer", size=SMALL, weight="bold")
    sheet.text(sheet.left, sheet.y + 22, f"[{pool.size // size}, {size}, ...]", size=SMALL, colour=MUTED)
    for block in range(pool.size // size):
        x, ours = x0 + block % per_line * (size * cell + 8), block in table
        sheet.y += 42 if block and block % per_line == 0 else 0
        name = f"{'block ' if size * cell > 44 else ''}{block}"
        sheet.text(x, sheet.y + 7, name, size=TINY, weight="bold" if ours else "normal")
        for offset in range(size):
            slot = block * size + offset
            look = own.get(slot, EMPTY if ours else FREE if slot in free else OTHERS)
            place = x + offset * cell, sheet.y + 14, cell, TALL
            sheet.cell(*place, look, str(slot), size=TINY, edge=GRID, name=f"slot {slot}")
        if ours:
            sheet.rect(x, sheet.y + 14, size * cell, TALL, edge=INK, line=1.4)
    sheet.y += 50


BOX, BOX_PITCH, ARROW = 56.0, 64.0, 16.0
LINES, LINE = 3, 10.5  # of a block's text


def hashed_blocks(
    prompts: Mapping[str, Sequence[int]], block_size: int, tokenizer: Tokenizer, **heading: Unpack[Heading]
) -> Picture:
    """A row per prompt (label → token ids), a box per complete block, with its text and the first digits of its hash. An
    arrow goes from each block to the one whose hash covers it.

    Blocks that several prompts have are framed.
    """
    hashes = {label: block_hashes(tokens, block_size) for label, tokens in prompts.items()}
    seen = [block for of in hashes.values() for block in of]
    shared = {block for block in seen if seen.count(block) > 1}
    sheet = Sheet(default_title=f"Blocks of {block_size} tokens", **heading)
    gutter = min(max(map(text_width, prompts)) + 14, 150)
    columns = max(len(of) for of in hashes.values()) + 1
    width = min((sheet.right - sheet.left - gutter) / columns - ARROW, 190.0)
    for label, tokens in prompts.items():
        y, x = sheet.y, sheet.left + gutter
        sheet.text(x - 8, y + BOX / 2, label, ha="right", width=gutter - 8)
        of = hashes[label]
        for i, block in enumerate(of):
            text = visible_ends(tokenizer.decode(list(tokens[i * block_size : (i + 1) * block_size])))
            _block(sheet, x, y, width, text, block, block in shared, f"{label} block {i}")
            if i + 1 < len(of):
                sheet.arrow([x + width, x + width + ARROW], [y + BOX / 2] * 2, colour=MUTED, line=1.0)
            x += width + ARROW
        if rest := len(tokens) % block_size:
            sheet.cell(x, y, 70, BOX, ROLES["leftover"], count(rest, "token"), size=TINY, edge="#b8b8b8", name="rest")
        sheet.y += BOX_PITCH
    sheet.y += 2
    too_few = "not in use: too few tokens for a block, so without a hash"
    sheet.legend([(ROLES["leftover"], too_few)], marked="marked: a block that several prompts have" if shared else "")
    said = [
        f"{label}: {count(len(of), 'block')} ({', '.join(map(_short, of))}), "
        f"{count(sum(b in shared for b in of), 'block')} shared"
        for label, of in hashes.items()
    ]
    return sheet.picture("; ".join(said) + ".")


def _block(sheet: Sheet, x: float, y: float, width: float, text: str, block: int, is_shared: bool, name: str) -> None:
    sheet.rect(x, y, width, BOX, PLAIN, edge="#8a8a8a", name=name)
    if is_shared:
        sheet.rect(x + 1.5, y + 1.5, width - 3, BOX - 3, edge=ROLES["highlight"].face, line=2, name=f"shared {name}")
    lines = wrapped(text, width - 10, TINY)
    lines = [*lines[: LINES - 1], " ".join(lines[LINES - 1 :])]
    for i, line in enumerate(lines):
        sheet.text(x + width / 2, y + 10 + LINE * i, line, size=TINY, ha="center", width=width - 8)
    sheet.text(x + width / 2, y + BOX - 11, _short(block), size=SMALL, ha="center", weight="bold")


def _short(block: int) -> str:
    """The first 16 of a hash's 64 bits."""
    return f"{block >> 48:04x}"


TIERS = {
    "pool": (ROLES["tree"], "in the radix tree"),
    "host memory": (BARS[1], "in host memory"),
    "files": (BARS[0], "in files"),
}
LINE_HEIGHT, LINE_PITCH, GAP, NAMES = 17.0, 20.0, 12.0, 78.0


def tiers(cache: CacheManager, prompts: Mapping[str, Sequence[int]], **heading: Unpack[Heading]) -> Picture:
    """Per prompt (label → token ids), a line for each tier that `cache` has, with what it holds of these tokens: the pool
    any number of the first ones, host memory and files blocks. Looking counts as no use.
    """
    assert cache.next_tier is not None
    held = {label: _held(cache, np.asarray(tokens, np.int64)) for label, tokens in prompts.items()}
    sheet = Sheet(default_title="Where K/V is", **heading)
    gutter = min(max(map(text_width, prompts)) + 14, 150)
    x0, size = sheet.left + gutter + NAMES, cache.next_tier.block_size
    token = (sheet.right - x0 - 50) / max(len(tokens) for tokens in prompts.values())
    for label, tokens in prompts.items():
        lines = held[label]
        sheet.text(sheet.left, sheet.y + LINE_PITCH * len(lines) / 2, label, width=gutter - 8)
        for name, parts in lines.items():
            sheet.text(x0 - 8, sheet.y + LINE_HEIGHT / 2, name, size=SMALL, ha="right", colour=MUTED)
            sheet.rect(x0, sheet.y, token * len(tokens), LINE_HEIGHT, edge=GRID, dashed=True)
            for begin, end in parts:
                place = x0 + token * begin, sheet.y, token * (end - begin), LINE_HEIGHT
                sheet.rect(*place, TIERS[name][0], edge=GRID, name=f"{label} {name}")
            total = sum(end - begin for begin, end in parts)
            sheet.text(x0 + token * len(tokens) + 7, sheet.y + LINE_HEIGHT / 2, str(total), size=SMALL)
            sheet.y += LINE_PITCH
        taken = list[int]()
        for at in [len(tokens), *(end for _, end in lines["pool"]), *range(0, len(tokens), size)]:
            if any(2 * token * abs(at - other) <= text_width(f"{at}{other}", TINY) + 8 for other in taken):
                continue  # would touch one that is there
            taken.append(at)
            sheet.text(x0 + token * at, sheet.y + 4, str(at), size=TINY, colour=MUTED, ha="center")
        sheet.y += GAP + 4
    sheet.legend([TIERS[name] for name in next(iter(held.values()))])
    said = [
        f"{label}, {count(len(prompts[label]), 'token')}: "
        + ", ".join(f"{name} {_in_words(parts)}" for name, parts in lines.items())
        for label, lines in held.items()
    ]
    return sheet.picture("; ".join(said) + ".")


Parts = list[tuple[int, int]]  # first token, and the one behind the last


def _held(cache: CacheManager, tokens: np.ndarray) -> dict[str, Parts]:
    """What each tier holds of the tokens. Neighbouring blocks are parts of their own."""
    in_pool, _ = cache.radix_cache.peek_prefix(tokens, None)
    host = cache.next_tier
    starts = range(0, len(tokens) - len(tokens) % host.block_size, host.block_size)
    lines: dict[str, Parts] = {"pool": [(0, in_pool)] if in_pool else []}
    for name, tier in (("host memory", host.index), ("files", host.next_tier)):
        if tier is not None:
            at = [start for start in starts if tier.reach(tokens[: start + host.block_size], None, start) > start]
            lines[name] = [(start, start + host.block_size) for start in at]
    return lines


def _in_words(parts: Parts) -> str:
    tokens = [at for begin, end in parts for at in range(begin, end)]
    return " and ".join(f"{first}..{last}" for first, last in run_list(tokens)) or "nothing"
