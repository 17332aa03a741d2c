"""drafted_text, adapter_rows: the text that drafts became, and a pass with adapters."""

from collections.abc import Sequence
from typing import Any, Unpack

from nanoinfer.engine.engine import Engine
from nanoinfer.model.lora.projections import projections
from nanoinfer.requests.tokenizer import Tokenizer, token_text
from nanoinfer.viz.facts import last_input_metadata, last_labels
from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import BARS, GRID, INK, MUTED, PAPER, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Sheet
from nanoinfer.viz.words import SPACE_NOTE, count, plural_list, visible


def _text(tokenizer: Tokenizer | None, token: int) -> str:
    return str(token) if tokenizer is None else visible(token_text(tokenizer, [token]))


TOKEN, LINE, GAP = 18.0, 25.0, 5.0  # of a token; from line to line; between two passes
KINDS: dict[str, tuple[Style, str]] = {
    "accepted": (BARS[1], "an accepted draft"),
    "last": (BARS[2], "behind drafts that are all right"),
    "instead": (BARS[0], "in place of a wrong draft"),
    "none": (Style(PAPER), "no draft"),
}
Passes = Sequence[tuple[Sequence[int], Sequence[int]]]


def drafted_text(passes: Passes, tokenizer: Tokenizer | None = None, **heading: Unpack[Heading]) -> Picture:
    """The tokens of one request, those of the same pass side by side and a gap between passes.

    `passes`: for each pass its drafts and the tokens that it gave, as token ids. The tokens are the accepted drafts, and
    then one of the pass's own (none where the request has ended before). Raises ValueError where
    the tokens cannot have come from such a pass.
    """
    kinds = [_kinds(i, drafts, tokens) for i, (drafts, tokens) in enumerate(passes)]
    number = {kind: sum(each.count(kind) for each in kinds) for kind in KINDS}
    total = sum(number.values())
    sheet = Sheet(default_title=f"{count(total, 'token')} from {count(len(passes), 'pass')}", **heading)
    x = sheet.left
    for i, ((_, tokens), of_pass) in enumerate(zip(passes, kinds, strict=True)):
        texts = [_text(tokenizer, int(token)) for token in tokens]
        widths = [text_width(text, SMALL) + 7 for text in texts]
        if x + sum(widths) > sheet.right and x > sheet.left:
            x, sheet.y = sheet.left, sheet.y + LINE
        for j, (text, width, kind) in enumerate(zip(texts, widths, of_pass, strict=True)):
            style = KINDS[kind][0]
            sheet.rect(x, sheet.y, width, TOKEN, style, edge=GRID, name=f"pass {i} token {j}")
            sheet.text(x + width / 2, sheet.y + TOKEN / 2, text, size=SMALL, colour=style.text, ha="center")
            x += width
        x += GAP
    sheet.y += LINE + 6
    sheet.legend([(style, f"{words}: {number[kind]}") for kind, (style, words) in KINDS.items()])
    if tokenizer is not None:
        sheet.caption(SPACE_NOTE, size=SMALL)
    said = ", ".join(f"{words}: {number[kind]}" for kind, (_, words) in KINDS.items())
    return sheet.picture(f"{count(total, 'token')} from {count(len(passes), 'pass')}. {said}.")


def _kinds(i: int, drafts: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """The kind of each token of a pass."""
    accepted = _right(drafts, tokens)
    own = len(tokens) - accepted
    if own > 1:
        raise ValueError(f"passes[{i}]: {own} tokens are no accepted drafts; a pass gives at most one such token")
    kind = "none" if not drafts else "last" if accepted == len(drafts) else "instead"
    return ["accepted"] * accepted + [kind] * own


def _right(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    """How many of the drafts the tokens begin with."""
    pairs = zip(drafts, tokens, strict=False)
    return next((i for i, (draft, token) in enumerate(pairs) if draft != token), min(len(drafts), len(tokens)))


MOST_ADAPTER_ROWS, HEIGHT = 24, 20.0
X_TEXTS, X_READS, X_OUTPUTS, W_OUTPUTS = 76.0, 300.0, 640.0, 246.0
NONE = Style(PAPER, MUTED)
ADAPTERS = (BARS[0], BARS[1], BARS[2], BARS[3]._replace(hatch="//", mark="#e0a79f"))


def adapter_rows(
    engine: Engine, layer: str = "model.layers.0.self_attn.qkv_proj", **heading: Unpack[Heading]
) -> Picture:
    """The engine's last pass at one linear layer: a row for each token, coloured by adapter; below, the tiles in which they
    are read, the sizes of the matrices A and B of each, and to which of the layer's outputs something is added.

    `layer`: the layer's path in the model. Raises ValueError when there was no pass, when no token of it has an adapter,
    when it has more than 24 tokens, and for a layer that no adapter may add to.
    """
    rows, batch = last_input_metadata(engine).adapters, engine.last_batch
    if rows is None or batch is None:
        raise ValueError("engine: no request of its last pass has an adapter")
    if (total := len(rows.of_rows)) > MOST_ADAPTER_ROWS:
        raise ValueError(f"engine: its last pass has {total} rows; at most {MOST_ADAPTER_ROWS} can be drawn")
    network: Any = engine.model_runner.model
    found, modules = projections(network), dict(network.named_modules())
    parts = {path: each for path, each in found.items() if each.linear is modules.get(layer)}
    if not parts:
        raise ValueError(f"layer={layer!r}: must be a linear layer that adapters may add to")
    names = {path: path.rpartition(".")[2].removesuffix("_proj") for path in parts}
    on_device = {each.slot: each for each in engine.adapters.pool.on_device if each.slot is not None}
    adapters = {slot: on_device[slot] for slot, _ in rows.groups()}
    styles = {slot: ADAPTERS[i % len(ADAPTERS)] for i, slot in enumerate(adapters)}
    lens = [1] * len(batch.reqs) if batch.prefix_lens is None else (batch.seq_lens - batch.prefix_lens).tolist()
    of_rows = [label for label, n in zip(last_labels(engine), lens, strict=True) for _ in range(n)]
    tokenizer, slots = engine.builder.tokenizer, rows.of_rows.tolist()
    texts = [f"{label}: {_text(tokenizer, i)}" for label, i in zip(of_rows, batch.input_ids.tolist(), strict=True)]

    default = f"One pass at {layer.removeprefix('model.')}: {count(total, 'row')}, {count(len(adapters), 'adapter')}"
    sheet = Sheet(default_title=default, **heading)
    sheet.text(sheet.left, sheet.y + 6, "the rows of x, in the order of the pass", weight="bold")
    sheet.y += 18
    for row, slot in enumerate(slots):
        x = sheet.left + 36 * row
        sheet.cell(x, sheet.y, 36, HEIGHT, styles.get(slot, NONE), str(row), edge=GRID, name=f"row {row}")
    sheet.y += 42
    for x, words in (
        (sheet.left, "in tiles"),
        (X_READS, "what a tile reads"),
        (X_OUTPUTS, "what is added to the outputs"),
    ):
        sheet.text(x, sheet.y - 8, words, weight="bold")
    order, plan = rows.rows.tolist(), rows.plan.tolist()
    tiles = [plan[1 + 3 * tile : 4 + 3 * tile] for tile in range(plan[0])]
    of_slots = [(slot, order[first : first + length]) for slot, first, length in tiles]
    without = [row for row, slot in enumerate(slots) if slot < 0]
    scale, said = W_OUTPUTS / sum(part.columns for part in parts.values()), list[str]()
    for tile, (slot, of) in enumerate([*of_slots, *([(-1, without)] if without else [])]):
        adapter, style, top = adapters.get(slot), styles.get(slot, NONE), sheet.y
        own = {path: adapter.parts[path] for path in parts if path in adapter.parts} if adapter else {}
        for row in of:
            sheet.cell(
                sheet.left + 4, sheet.y, 52, HEIGHT, style, f"row {row}", edge=GRID, name=f"tile {tile} row {row}"
            )
            sheet.text(X_TEXTS, sheet.y + HEIGHT / 2, texts[row], size=SMALL, width=X_READS - X_TEXTS - 10)
            for path, part in parts.items():
                place_of = X_OUTPUTS + part.first * scale, sheet.y, part.columns * scale, HEIGHT
                if path in own:
                    name = f"output {row} {names[path]}"
                    sheet.cell(*place_of, style, f"+ {names[path]}", size=TINY, edge=GRID, name=name)
                else:
                    sheet.rect(*place_of, edge=GRID)
            sheet.y += HEIGHT + 3
        sizes = {
            names[path]: [" × ".join(map(str, each.shape)) for each in (pair.a, pair.b)] for path, pair in own.items()
        }
        lines = [f"{name}: A {a}, B {b}" for name, (a, b) in sizes.items()] or ["adds nothing to this layer"]
        for i, line in enumerate([adapter.name, *lines] if adapter else ["no adapter: in no tile"]):
            sheet.text(X_READS, top + 8 + 14 * i, line, size=SMALL, weight="normal" if i else "bold")
        sheet.y = max(sheet.y, top + 14 * (len(lines) + 1))
        if adapter:
            sheet.rect(sheet.left, top - 4, X_READS - 24, sheet.y - top + 3, edge=INK, line=1.0, name=f"tile {tile}")
            ranks = ", ".join(f"{names[path]} (rank {pair.rank})" for path, pair in own.items()) or "nothing"
            listed = f"{'row' if len(of) == 1 else 'rows'} {plural_list(list(map(str, of)))}"
            said.append(f"{adapter.name} for {listed}, added to {ranks}")
        sheet.y += 14
    none = f" Without an adapter: {'row' if len(without) == 1 else 'rows'} {plural_list(list(map(str, without)))}."
    return sheet.picture(
        f"{count(total, 'row')} in {count(len(tiles), 'tile')}: {'; '.join(said)}.{none if without else ''}"
    )
