"""adapter_rows: a pass whose tokens have different adapters, at one linear layer: tiles, thin matrices, what is added."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nanoinfer.adapters.adapter import Adapter
from nanoinfer.adapters.projections import LowRank, projections
from nanoinfer.engine.engine import Engine
from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.requests.tokenizer import token_text
from nanoinfer.viz.facts import last_input_metadata, last_labels
from nanoinfer.viz.lettering import SMALL, TINY, text_width
from nanoinfer.viz.palette import BARS, GRID, INK, MUTED, PAPER, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count, plural_list, visible

MOST_ROWS = 24
PITCH, HEIGHT = 24.0, 20.0  # from one row to the next; of a row
PART, GAP = 30.0, 18.0  # of a part with its A and B; between two tiles
X_ROWS, W_ROWS, X_LABELS = 14.0, 176.0, 52.0
X_TILES, W_TILES = 262.0, 58.0
X_PARTS, LONG, THIN = 376.0, 62.0, 6.0  # where A and B are; their long side, their short one
X_OUTPUTS, W_OUTPUTS = 640.0, 246.0
RIBBON = 4.0  # how much lower than its rows a ribbon is, at either side
NONE = Style(PAPER, MUTED)
ADAPTERS = (BARS[0], BARS[1], BARS[2], BARS[3]._replace(hatch="//", mark="#e0a79f"))


class _Part(NamedTuple):
    """What the adapters may add to some outputs of the layer: a projection's name, its first output, and how many."""

    path: str
    first: int
    columns: int

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2].removesuffix("_proj")


def adapter_rows(
    engine: Engine,
    layer: str = "model.layers.0.self_attn.qkv_proj",
    *,
    title: str | None = None,
    caption: str | None = None,
) -> Picture:
    """The engine's last pass at one linear layer: a row for each token, coloured by adapter; the tiles in which they are
    read; for each tile the thin matrices A and B; and to which of the layer's outputs something is added.

    `layer`: the layer's path in the model. Raises ValueError when there was no pass, when no token of it has an adapter,
    when it has more than 24 tokens, and for a layer that no adapter may add to.
    """
    rows = last_input_metadata(engine).adapters
    if rows is None:
        raise ValueError("engine: no request of its last pass has an adapter")
    if (total := len(rows.of_rows)) > MOST_ROWS:
        raise ValueError(f"engine: its last pass has {total} rows; at most {MOST_ROWS} can be drawn")
    network: Any = engine.model_runner.model
    found, modules = projections(network), dict(network.named_modules())
    parts = [_Part(path, p.first, p.columns) for path, p in found.items() if p.linear is modules.get(layer)]
    if not parts:
        raise ValueError(f"layer={layer!r}: must be a linear layer that adapters may add to")
    on_device = {each.place: each for each in engine.adapters.pool.on_device if each.place is not None}
    adapters = {place: on_device[place] for place, _ in rows.groups()}
    styles = {place: ADAPTERS[i % len(ADAPTERS)] for i, place in enumerate(adapters)}
    default = f"One pass at {layer.removeprefix('model.')}: {count(total, 'row')}, {count(len(adapters), 'adapter')}"
    sheet = Sheet(title, default, caption=caption)
    _headings(sheet, parts)
    begin = sheet.y
    where = _tiles(sheet, rows, adapters, styles, parts)
    names = {place: adapter.name for place, adapter in adapters.items()}
    _rows(sheet, begin, where, _labels(engine), rows, names, styles)
    return sheet.picture(_alt(rows, adapters, parts))


def _labels(engine: Engine) -> list[str]:
    """For each token of the last pass: its request and its text."""
    batch, tokenizer = engine.last_batch, engine.builder.tokenizer
    assert batch is not None
    lens = (
        batch.seq_lens - batch.prefix_lens
        if batch.prefix_lens is not None
        else batch.seq_lens.new_ones(len(batch.reqs))
    )
    of_rows = [label for label, n in zip(last_labels(engine), lens.tolist(), strict=True) for _ in range(n)]
    ids = batch.input_ids.tolist()
    texts = [str(i) if tokenizer is None else visible(token_text(tokenizer, [i])) for i in ids]
    return [f"{label}: {text}" for label, text in zip(of_rows, texts, strict=True)]


def _headings(sheet: Sheet, parts: Sequence[_Part]) -> None:
    y = sheet.y + 4
    sheet.text(X_ROWS, y, "rows of x", weight="bold")
    sheet.text(X_TILES, y, "in tiles", weight="bold")
    sheet.text(X_PARTS, y, "what a tile reads: A, then B", weight="bold")
    sheet.text(X_OUTPUTS, y, "what is added to the outputs", weight="bold")
    sheet.text(X_PARTS, y + 18, "not to scale", size=SMALL, colour=MUTED)
    for part, x, width in _spans(parts):
        sheet.text(x + width / 2, y + 18, part.name, size=SMALL, ha="center", colour=MUTED, width=width)
    sheet.y += 32


def _spans(parts: Sequence[_Part]) -> list[tuple[_Part, float, float]]:
    """Each part with where its outputs are drawn, and how wide."""
    outputs = sum(part.columns for part in parts)
    scale = W_OUTPUTS / outputs
    return [(part, X_OUTPUTS + part.first * scale, part.columns * scale) for part in parts]


def _tiles(
    sheet: Sheet,
    rows: AdapterRows,
    adapters: Mapping[int, Adapter],
    styles: Mapping[int, Style],
    parts: Sequence[_Part],
) -> dict[int, float]:
    """Draws each tile with what it reads and adds, then the tokens without one. Returns where each one's row is."""
    where: dict[int, float] = {}
    order, plan = rows.rows.tolist(), rows.plan.tolist()
    for tile in range(plan[0]):
        place, first, length = plan[1 + 3 * tile : 4 + 3 * tile]
        adapter, style = adapters[place], styles[place]
        own = {part.path: adapter.parts[part.path] for part in parts if part.path in adapter.parts}
        tall = max(PITCH * length, PART * len(own), PITCH)
        top = sheet.y + (tall - PITCH * length) / 2
        sheet.rect(X_TILES - 5, top - 3, W_TILES + 10, PITCH * length + 2, edge=INK, line=1.0, name=f"tile {tile}")
        for i, row in enumerate(order[first : first + length]):
            where[row] = y = top + PITCH * i
            sheet.cell(X_TILES, y, W_TILES, HEIGHT, style, f"row {row}", name=f"tile {tile} row {row}")
            _outputs(sheet, y, row, style, own, parts)
        _matrices(sheet, sheet.y + (tall - PART * len(own)) / 2, style, adapter.name, own, parts)
        middle = sheet.y + tall / 2 - 1
        sheet.arrow([X_TILES + W_TILES + 10, X_PARTS - 8], [middle, middle], colour=MUTED, line=1.0)
        if own:
            sheet.arrow([X_OUTPUTS - 38, X_OUTPUTS - 8], [middle, middle], colour=MUTED, line=1.0)
        sheet.y += tall + GAP
    for row, place in enumerate(rows.of_rows.tolist()):
        if place < 0:
            where[row] = sheet.y
            words = f"row {row} has no adapter: it is in no tile"
            sheet.text(X_PARTS, sheet.y + HEIGHT / 2, words, size=SMALL, colour=MUTED)
            _outputs(sheet, sheet.y, row, NONE, {}, parts)
            _, x, width = _spans(parts)[0]
            sheet.text(x + width / 2, sheet.y + HEIGHT / 2, f"row {row}: nothing", size=TINY, colour=MUTED, ha="center")
            sheet.y += PITCH
    sheet.y += 8
    return where


def _matrices(
    sheet: Sheet, y: float, style: Style, name: str, own: Mapping[str, LowRank], parts: Sequence[_Part]
) -> None:
    """A is wide and low, B narrow and high; their sizes beside them."""
    if not own:
        sheet.text(X_PARTS, y, f"{name} adds nothing to this layer", size=SMALL, colour=MUTED)
    for part in parts:
        if (pair := own.get(part.path)) is None:
            continue
        sheet.rect(X_PARTS, y + 11, LONG, THIN, style, edge=GRID, name=f"A {name} {part.name}")
        sheet.rect(X_PARTS + LONG + 12, y + 2, THIN, PART - 6, style, edge=GRID, name=f"B {name} {part.name}")
        sizes = [" × ".join(f"{size:,}" for size in each.shape) for each in (pair.a, pair.b)]
        sheet.text(X_PARTS + LONG + 28, y + PART / 2 - 1, f"{part.name}: {sizes[0]}, {sizes[1]}", size=TINY, width=126)
        y += PART


def _outputs(
    sheet: Sheet, y: float, row: int, style: Style, own: Mapping[str, LowRank], parts: Sequence[_Part]
) -> None:
    for part, x, width in _spans(parts):
        added = part.path in own
        if added:
            name = f"output {row} {part.name}"
            sheet.cell(x, y, width, HEIGHT, style, f"+ {part.name}", size=TINY, edge=GRID, name=name)
        else:
            sheet.rect(x, y, width, HEIGHT, edge=GRID)


def _rows(
    sheet: Sheet,
    begin: float,
    where: Mapping[int, float],
    labels: Sequence[str],
    rows: AdapterRows,
    names: Mapping[int, str],
    styles: Mapping[int, Style],
) -> None:
    """The tokens in the order of the pass, a row for each; a ribbon from neighbours to their places in a tile."""
    spread = max(0.0, (max(where.values()) + PITCH - begin) - PITCH * len(where)) / max(1, len(where))
    pitch = PITCH + min(spread, PITCH)
    below = [names.get(place, "no adapter") for place in rows.of_rows.tolist()]
    widths = [text_width(label, SMALL) for label in labels] + [text_width(name, TINY) for name in below]
    start = X_LABELS + min(max(widths), W_ROWS - X_LABELS + X_ROWS) + 8
    for row, (label, place) in enumerate(zip(labels, rows.of_rows.tolist(), strict=True)):
        y, style = begin + pitch * row, styles.get(place, NONE)
        sheet.cell(X_ROWS, y, 30, HEIGHT, style, str(row), edge=GRID, name=f"row {row}")
        sheet.text(X_LABELS, y + 6, label, size=SMALL, width=W_ROWS - 38)
        sheet.text(X_LABELS, y + 17, below[row], size=TINY, colour=MUTED, width=W_ROWS - 38)
    for first, last in _runs(rows, where):
        left = begin + pitch * first + RIBBON, begin + pitch * last + HEIGHT - RIBBON
        right = where[first] + RIBBON, where[last] + HEIGHT - RIBBON
        sheet.ribbon([start, X_TILES - 6], left, right, styles[int(rows.of_rows[first])].face)
    sheet.y = max(sheet.y, begin + pitch * len(labels) + 8)


def _runs(rows: AdapterRows, where: Mapping[int, float]) -> list[tuple[int, int]]:
    """Tokens side by side in the pass that are side by side in a tile, too: the first one and the last one of each run."""
    runs: list[tuple[int, int]] = []
    for row, place in enumerate(rows.of_rows.tolist()):
        if place < 0:
            continue
        if runs and runs[-1][1] == row - 1 and abs(where[row] - where[row - 1] - PITCH) < 1e-6:
            runs[-1] = runs[-1][0], row
        else:
            runs.append((row, row))
    return runs


def _alt(rows: AdapterRows, adapters: Mapping[int, Adapter], parts: Sequence[_Part]) -> str:
    tiles, order, plan = [], rows.rows.tolist(), rows.plan.tolist()
    for tile in range(plan[0]):
        place, first, length = plan[1 + 3 * tile : 4 + 3 * tile]
        adapter = adapters[place]
        ranks = {part.name: adapter.parts[part.path].rank for part in parts if part.path in adapter.parts}
        added = ", ".join(f"{name} (rank {rank})" for name, rank in ranks.items()) or "nothing"
        members = plural_list([str(row) for row in order[first : first + length]])
        tiles.append(f"{adapter.name} for {'row' if length == 1 else 'rows'} {members}, added to {added}")
    none = [str(row) for row, place in enumerate(rows.of_rows.tolist()) if place < 0]
    without = f" Without an adapter: {'row' if len(none) == 1 else 'rows'} {plural_list(none)}." if none else ""
    return f"{count(len(rows.of_rows), 'row')} in {count(plan[0], 'tile')}: {'; '.join(tiles)}.{without}"
