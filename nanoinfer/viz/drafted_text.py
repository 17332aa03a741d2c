"""drafted_text: a text whose tokens show where they come from: accepted drafts, wrong drafts, or none."""

from collections.abc import Sequence

from nanoinfer.requests.token_text import token_text
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.viz.lettering import SMALL, drawable, text_width
from nanoinfer.viz.palette import BARS, GRID, PAPER, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import SPACE_NOTE, count, expect_type, visible

MOST_TOKENS = 400
HEIGHT, PITCH, GAP = 18.0, 25.0, 5.0  # of a token; from line to line; between two passes
KINDS: dict[str, tuple[Style, str]] = {
    "accepted": (BARS[1], "an accepted draft"),
    "last": (BARS[2], "behind drafts that are all right"),
    "instead": (BARS[0], "in place of a wrong draft"),
    "none": (Style(PAPER), "no draft"),
}
Passes = Sequence[tuple[Sequence[int], Sequence[int]]]


def drafted_text(
    passes: Passes, tokenizer: Tokenizer | None = None, *, title: str | None = None, caption: str | None = None
) -> Picture:
    """The tokens of one request, those of the same pass side by side and a gap between passes.

    `passes`: for each pass its drafts and the tokens that it gave, as token ids. The tokens are the accepted drafts, and
    then one of the pass's own (none where the request has ended before). Raises ValueError for no passes, for more than 400
    tokens, and where the tokens cannot have come from such a pass.
    """
    kinds = [_kinds(i, drafts, tokens) for i, (drafts, tokens) in enumerate(_checked(passes))]
    number = {kind: sum(each.count(kind) for each in kinds) for kind in KINDS}
    total = sum(number.values())
    if not 0 < total <= MOST_TOKENS:
        raise ValueError(f"passes: have {total} tokens; must be 1..{MOST_TOKENS}")
    sheet = Sheet(title, f"{count(total, 'token')} from {count(len(passes), 'pass')}", caption=caption)
    x = sheet.left
    for i, ((_, tokens), of_pass) in enumerate(zip(passes, kinds, strict=True)):
        texts = [str(token) if tokenizer is None else visible(token_text(tokenizer, [int(token)])) for token in tokens]
        widths = [text_width(drawable(text), SMALL) + 7 for text in texts]
        if x + sum(widths) > sheet.right and x > sheet.left:
            x, sheet.y = sheet.left, sheet.y + PITCH
        for j, (text, width, kind) in enumerate(zip(texts, widths, of_pass, strict=True)):
            style = KINDS[kind][0]
            sheet.rect(x, sheet.y, width, HEIGHT, style, edge=GRID, name=f"pass {i} token {j}")
            sheet.text(x + width / 2, sheet.y + HEIGHT / 2, text, size=SMALL, colour=style.text, ha="center")
            x += width
        x += GAP
    sheet.y += PITCH + 6
    sheet.legend([(style, f"{words}: {number[kind]}") for kind, (style, words) in KINDS.items()])
    if tokenizer is not None:
        sheet.caption(SPACE_NOTE, size=SMALL)
    said = ", ".join(f"{words}: {number[kind]}" for kind, (_, words) in KINDS.items())
    return sheet.picture(f"{count(total, 'token')} from {count(len(passes), 'pass')}. {said}.")


def _checked(passes: Passes) -> Passes:
    expect_type("passes", passes, Sequence)
    for i, each in enumerate(passes):
        if not isinstance(each, Sequence) or len(each) != 2:
            raise ValueError(f"passes[{i}]: must be the drafts and the tokens of a pass, two lists")
    return passes


def _kinds(i: int, drafts: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """The kind of each token of a pass."""
    accepted = 0
    while accepted < min(len(drafts), len(tokens)) and drafts[accepted] == tokens[accepted]:
        accepted += 1
    own = len(tokens) - accepted
    if own > 1:
        raise ValueError(f"passes[{i}]: {own} tokens are no accepted drafts; a pass gives at most one such token")
    if not own:
        return ["accepted"] * accepted
    return ["accepted"] * accepted + ["none" if not drafts else "last" if accepted == len(drafts) else "instead"]
