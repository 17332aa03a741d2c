"""hashed_blocks: prompts cut into blocks of equal size, each named by a hash that covers all before it."""

from collections.abc import Collection, Hashable, Mapping, Sequence

from nanoinfer.cache.block_events import block_hashes
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.viz.lettering import SMALL, TINY, drawable, text_width, wrapped
from nanoinfer.viz.palette import INK, MUTED, ROLES
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count, expect_type, visible_ends

HEIGHT, PITCH, ARROW = 56.0, 64.0, 16.0
LINES, LINE = 3, 10.5  # of a block's text
MOST_PROMPTS, MOST_BLOCKS = 12, 5
NOT_HELD = ROLES["free"]._replace(text=INK)


def hashed_blocks(
    prompts: Mapping[str, Sequence[int]],
    block_size: int,
    tokenizer: Tokenizer,
    *,
    held: Collection[int] = (),
    extra_keys: Mapping[str, Hashable] | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """A row per prompt (label → token ids), a box per complete block, with its text and the first digits of its hash. An
    arrow goes from each block to the one whose hash covers it.

    `held`: hashes of blocks that a tree holds, in green. Blocks that several prompts have are framed. `extra_keys`: those
    of the prompts that have one. ValueError for no prompts or more than 12, and for what has no hash.
    """
    expect_type("prompts", prompts, Mapping)
    if not 1 <= len(prompts) <= MOST_PROMPTS:
        raise ValueError(f"prompts: {len(prompts)}; must be 1..{MOST_PROMPTS}")
    for label in extra_keys or {}:
        if label not in prompts:
            raise ValueError(f"extra_keys: {label!r} is no prompt")
    keys = extra_keys or {}
    hashes = {label: block_hashes(tokens, block_size, keys.get(label)) for label, tokens in prompts.items()}
    seen = [block for of in hashes.values() for block in of]
    shared = {block for block in seen if seen.count(block) > 1}
    sheet = Sheet(title, f"Blocks of {block_size} tokens", caption=caption)
    gutter = min(max(text_width(drawable(label)) for label in prompts) + 14, 150)
    columns = min(max(len(of) for of in hashes.values()), MOST_BLOCKS) + 1
    width = min((sheet.right - sheet.left - gutter) / columns - ARROW, 190.0)
    for label, tokens in prompts.items():
        y, x = sheet.y, sheet.left + gutter
        sheet.text(x - 8, y + HEIGHT / 2, label, ha="right", width=gutter - 8)
        of = hashes[label]
        for i, block in enumerate(of[:MOST_BLOCKS]):
            text = visible_ends(tokenizer.decode(list(tokens[i * block_size : (i + 1) * block_size])))
            _block(sheet, x, y, width, text, block, block in held, block in shared, f"{label} block {i}")
            if i + 1 < len(of):
                sheet.arrow([x + width, x + width + ARROW], [y + HEIGHT / 2] * 2, colour=MUTED, line=1.0)
            x += width + ARROW
        _rest(sheet, x, y, width, len(of), len(tokens) % block_size)
        sheet.y += PITCH
    sheet.y += 2
    entries = [(ROLES["tree"], "in the radix tree")] if held else []
    marked = "marked: a block that several prompts have"
    if shared:
        entries.append((ROLES["highlight"], marked))
    sheet.legend(
        [*entries, (ROLES["leftover"], "not in use: too few tokens for a block, so without a hash")], outline=[marked]
    )
    said = [
        f"{label}: {count(len(of), 'block')} ({', '.join(map(_short, of[:MOST_BLOCKS]))}"
        f"{', …' if len(of) > MOST_BLOCKS else ''}), {count(sum(b in shared for b in of), 'block')} shared"
        + (f", {sum(b in held for b in of)} held" if held else "")
        for label, of in hashes.items()
    ]
    return sheet.picture("; ".join(said) + ".")


def _block(
    sheet: Sheet, x: float, y: float, width: float, text: str, block: int, is_held: bool, is_shared: bool, name: str
) -> None:
    sheet.rect(x, y, width, HEIGHT, ROLES["tree"] if is_held else NOT_HELD, edge="#8a8a8a", name=name)
    if is_shared:
        sheet.rect(x + 1.5, y + 1.5, width - 3, HEIGHT - 3, edge=ROLES["highlight"].face, line=2, name=f"shared {name}")
    lines = wrapped(text, width - 10, TINY)
    lines = [*lines[: LINES - 1], " ".join(lines[LINES - 1 :])]
    for i, line in enumerate(lines):
        sheet.text(x + width / 2, y + 10 + LINE * i, line, size=TINY, ha="center", width=width - 8)
    sheet.text(x + width / 2, y + HEIGHT - 11, _short(block), size=SMALL, ha="center", weight="bold")


def _rest(sheet: Sheet, x: float, y: float, width: float, blocks: int, rest: int) -> None:
    """What is not drawn, or makes no block."""
    if blocks > MOST_BLOCKS:
        sheet.text(x + 4, y + HEIGHT / 2, f"… {count(blocks - MOST_BLOCKS, 'more block')}", size=SMALL, colour=MUTED)
    elif rest:
        room = min(width, 70.0)
        sheet.rect(x, y, room, HEIGHT, ROLES["leftover"], edge="#b8b8b8", dashed=True, name="rest")
        sheet.text(x + room / 2, y + HEIGHT / 2, count(rest, "token"), size=TINY, ha="center", colour=MUTED)


def _short(block: int) -> str:
    """The first 16 of a hash's 64 bits."""
    return f"{block >> 48:04x}"
