"""hashed_blocks, tiers: prompts as hashed blocks, and which tier has which block."""

from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np

from nanoinfer.cache.block_events import block_hashes
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.viz.lettering import SMALL, TINY, text_width, wrapped
from nanoinfer.viz.palette import BARS, GRID, MUTED, PLAIN, ROLES
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Sheet
from nanoinfer.viz.words import count, run_list, visible_ends

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
