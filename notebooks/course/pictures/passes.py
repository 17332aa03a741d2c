"""What is in the rows of a pass: session_steps, padded_batch, adapter_rows; and drafted_text, what drafts became."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from nanoinfer.engine.engine import Engine
from nanoinfer.model.lora.projections import projections
from nanoinfer.requests.tokenizer import Tokenizer, token_text
from nanoinfer.viz.facts import last_input_metadata, last_labels
from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import BARS, GRID, INK, MUTED, PAPER, ROLES, Style, request_style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Heading, Sheet
from nanoinfer.viz.words import SPACE_NOTE, count, percent, plural_list, visible


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


def session_steps(
    steps: Sequence[Mapping[int, int]], *, max_rows: int | None = None, **heading: Unpack[Heading]
) -> Picture:
    """Requests (down) × decode passes (across), filled where the request was computed; below, the rows of each pass.

    `steps`: what `OfflineScheduler.step` returned, {request id: token id}, in order; {} is a step without a pass.
    `max_rows`: rows that a pass may have; what is not used of them is drawn, too.
    """
    ids = sorted({request_id for step in steps for request_id in step})
    rows = [len(step) for step in steps]
    names = {request_id: f"request {request_id}" for request_id in ids}

    sheet = Sheet(default_title="Which request is computed in which DECODE pass", **heading)
    x0 = sheet.left + max(text_width(text) for text in [*names.values(), "rows in the pass"]) + 12
    width = min((sheet.right - x0 - 8) / len(steps), 34.0)
    sheet.text(x0 - 8, sheet.y + 6, "decode pass", ha="right", size=SMALL, colour=MUTED)
    for i in range(0, len(steps), next(n for n in (1, 2, 5, 10, 20, 50, 100) if n * width >= 22)):
        sheet.text(x0 + (i + 0.5) * width, sheet.y + 6, str(i + 1), ha="center", size=TINY, colour=MUTED)
    sheet.y += 16
    for request_id in ids:
        sheet.text(x0 - 8, sheet.y + HEIGHT / 2, names[request_id], ha="right")
        for i, step in enumerate(steps):
            if request_id in step:
                cell = x0 + i * width, sheet.y, width, HEIGHT
                edge = "#ffffff" if width > 10 else None
                sheet.rect(*cell, request_style(request_id), edge=edge, name=f"request {request_id} pass {i + 1}")
        sheet.line([x0, x0 + len(steps) * width], [sheet.y + HEIGHT + 1.5] * 2, colour=GRID, line=0.3)
        sheet.y += HEIGHT + 3
    # The number of rows of each pass as bars; above them what could have been.
    top, most = sheet.y + 10, max_rows or max(rows)
    unit = min(56 / most, 14.0)
    base = top + most * unit
    sheet.text(x0 - 8, (top + base) / 2, "rows in the pass", ha="right", size=SMALL, colour=MUTED)
    for i, number in enumerate(rows):
        x, height = x0 + i * width, number * unit
        if max_rows is not None:
            sheet.rect(x, top, width, base - height - top, ROLES["padding"], name=f"unused pass {i + 1}")
        place, name = (x, base - height, width, height), f"rows pass {i + 1}"
        sheet.cell(*place, ROLES["in_use"], str(number), size=TINY, edge=None, name=name)
    sheet.line([x0, x0 + len(rows) * width], [base, base], colour=MUTED)
    sheet.y = base + 10
    if max_rows is not None:
        sheet.legend([(ROLES["in_use"], "rows used"), (ROLES["padding"], f"rows not used, of {max_rows}")])
    passes = sum(1 for number in rows if number)
    used = f", {sum(rows)} of {passes * max_rows} possible rows used" if max_rows is not None else ""
    first = {request_id: next(i for i, step in enumerate(steps, 1) if request_id in step) for request_id in ids}
    last = {request_id: max(i for i, step in enumerate(steps, 1) if request_id in step) for request_id in ids}
    spans = ", ".join(f"{names[r]} in passes {first[r]}-{last[r]}" for r in ids)
    return sheet.picture(
        f"{count(len(ids), 'request')}, {passes} decode passes with {min(rows)} to {max(rows)} rows, "
        f"{sum(rows) / max(passes, 1):.1f} on average{used}: {spans}."
    )


MOST_CELLS = 40


def padded_batch(lens: Sequence[int], *, labels: Sequence[str], **heading: Unpack[Heading]) -> Picture:
    """Rows of K/V of `lens` tokens, each as long as the longest: used tokens and padding, with their shares."""
    longest, used = max(lens), sum(lens)
    cells = longest * len(lens)
    sheet = Sheet(
        default_title=f"A padded batch: {count(len(lens), 'row')} × {count(longest, 'token')} of K/V", **heading
    )
    gutter = min(max(text_width(name) for name in labels) + 12, 200)
    room = sheet.right - sheet.left - gutter - 150
    x0, width = sheet.left + gutter, min(room / max(longest, 1), 30)
    for i, (name, length) in enumerate(zip(labels, lens, strict=True)):
        sheet.text(x0 - 8, sheet.y + 10, name, ha="right", width=gutter - 8)
        if longest <= MOST_CELLS:
            for k in range(longest):
                look = ROLES["in_use"] if k < length else ROLES["padding"]
                sheet.rect(x0 + k * width, sheet.y, width, 20, look, edge="#ffffff", name=f"row {i} token {k}")
        else:
            sheet.rect(x0, sheet.y, longest * width, 20, ROLES["padding"], name=f"row {i} padding")
            sheet.rect(x0, sheet.y, length * width, 20, ROLES["in_use"], name=f"row {i} used")
        padding = longest - length
        use = f"{length:,} used" + (f", {padding:,} padding" if padding else "")
        sheet.text(x0 + longest * width + 8, sheet.y + 10, use, size=SMALL)
        sheet.y += 24
    end = x0 + longest * width
    sheet.line([x0, x0, end, end], [sheet.y + 2, sheet.y + 6, sheet.y + 6, sheet.y + 2], colour=INK)
    sheet.text((x0 + end) / 2, sheet.y + 15, f"longest: {longest:,}", size=SMALL, ha="center", colour=MUTED)
    sheet.y += 30
    of_used = f"used: {used:,} of {cells:,} ({percent(used, cells)})"
    of_padding = f"{cells - used:,} ({percent(cells - used, cells)})"
    sheet.legend([(ROLES["in_use"], of_used), (ROLES["padding"], f"padding: {of_padding}")])
    return sheet.picture(
        f"{count(len(lens), 'row')} padded to {longest:,} tokens: {used:,} of {cells:,} used, "
        f"{of_padding.replace(' (', ' padding (')}."
    )
