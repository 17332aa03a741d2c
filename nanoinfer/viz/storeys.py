"""storeys: where the K/V of some prompts is: in the pool, in host memory and in files, block by block."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.viz.lettering import SMALL, TINY, drawable, text_width
from nanoinfer.viz.palette import BARS, GRID, MUTED, ROLES, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count, expect_type

POOL, HOST, FILES = ROLES["tree"], BARS[1], BARS[0]
MOST_PROMPTS, MOST_TOKENS = 8, 1024
HEIGHT, PITCH, GAP, NAMES = 17.0, 20.0, 12.0, 78.0


def storeys(
    cache: CacheManager,
    prompts: Mapping[str, Sequence[int]],
    *,
    extra_key: Hashable = None,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """Per prompt (label → token ids), a line for each storey that `cache` has, with what it holds of these tokens: the pool
    any number of the first ones, host memory and files blocks. Looking counts as no use.

    ValueError for a cache without storeys below its pool, no prompts, more than 8, and prompts of more than 1024 tokens.
    """
    expect_type("cache", cache, CacheManager)
    if cache.storey is None:
        raise ValueError("cache: has no storey below its pool (see host_cache_tokens and cache_dir)")
    if not 1 <= len(prompts) <= MOST_PROMPTS:
        raise ValueError(f"prompts: {len(prompts)}; must be 1..{MOST_PROMPTS}")
    for label, tokens in prompts.items():
        if not 1 <= len(tokens) <= MOST_TOKENS:
            raise ValueError(f"prompts: {label!r} has {len(tokens)} tokens; must be 1..{MOST_TOKENS}")
    held = {label: _held(cache, np.asarray(tokens, np.int64), extra_key) for label, tokens in prompts.items()}
    sheet = Sheet(title, "Where K/V is", caption=caption)
    gutter = min(max(text_width(drawable(label)) for label in prompts) + 14, 150)
    x0, size = sheet.left + gutter + NAMES, cache.storey.block_size
    token = (sheet.right - x0 - 50) / max(len(tokens) for tokens in prompts.values())
    for label, tokens in prompts.items():
        lines = held[label]
        sheet.text(sheet.left, sheet.y + PITCH * len(lines) / 2, label, width=gutter - 8)
        for name, (parts, style) in lines.items():
            sheet.text(x0 - 8, sheet.y + HEIGHT / 2, name, size=SMALL, ha="right", colour=MUTED)
            sheet.rect(x0, sheet.y, token * len(tokens), HEIGHT, edge=GRID, dashed=True)
            for begin, end in parts:
                sheet.rect(
                    x0 + token * begin, sheet.y, token * (end - begin), HEIGHT, style, edge=GRID, name=f"{label} {name}"
                )
            total = sum(end - begin for begin, end in parts)
            sheet.text(x0 + token * len(tokens) + 7, sheet.y + HEIGHT / 2, str(total), size=SMALL)
            sheet.y += PITCH
        ends = [len(tokens), *(end for _, end in lines["pool"][0])]
        for at in _apart([*ends, *range(0, len(tokens), size)], token):
            sheet.text(x0 + token * at, sheet.y + 4, str(at), size=TINY, colour=MUTED, ha="center")
        sheet.y += GAP + 4
    words = {"pool": "in the radix tree", "host memory": "in host memory", "files": "in files"}
    kinds = {name: style for lines in held.values() for name, (_, style) in lines.items()}
    sheet.legend([(style, words[name]) for name, style in kinds.items()])
    said = [
        f"{label}, {count(len(prompts[label]), 'token')}: "
        + ", ".join(f"{name} {_spans(parts)}" for name, (parts, _) in lines.items())
        for label, lines in held.items()
    ]
    return sheet.picture("; ".join(said) + ".")


Parts = list[tuple[int, int]]  # first token, and the one behind the last


def _held(cache: CacheManager, tokens: np.ndarray, extra_key: Hashable) -> dict[str, tuple[Parts, Style]]:
    """What each storey holds of the tokens. Neighbouring blocks are parts of their own."""
    in_pool, _ = cache.radix_cache.peek_prefix(tokens, extra_key)
    host = cache.storey
    starts = range(0, len(tokens) - len(tokens) % host.block_size, host.block_size)
    lines: dict[str, tuple[Parts, Style]] = {"pool": ([(0, in_pool)] if in_pool else [], POOL)}
    for name, storey, style in (("host memory", host.index, HOST), ("files", host.below, FILES)):
        if storey is not None:
            at = [
                start for start in starts if storey.reach(tokens[: start + host.block_size], extra_key, start) > start
            ]
            lines[name] = [(start, start + host.block_size) for start in at], style
    return lines


def _apart(positions: Sequence[int], token: float) -> list[int]:
    """Those positions whose numbers don't touch one that comes before them in the list; `token`: pixels per token."""
    apart = list[int]()
    for at in positions:
        if all(2 * token * abs(at - other) > text_width(f"{at}{other}", TINY) + 8 for other in apart):
            apart.append(at)
    return apart


def _spans(parts: Parts) -> str:
    """Neighbouring parts as one: "0..31 and 48..63"."""
    spans = Parts()
    for begin, end in parts:
        if spans and spans[-1][1] == begin:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((begin, end))
    return " and ".join(f"{begin}..{end - 1}" for begin, end in spans) or "nothing"
