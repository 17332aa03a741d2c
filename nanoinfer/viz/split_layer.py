"""split_layer: a decoder layer over several processes: what each has of every matrix, and where they add up."""

from collections.abc import Mapping, Sequence

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.split import Cut
from nanoinfer.parallel.shard import Shard, cuts_of
from nanoinfer.viz.lettering import SMALL
from nanoinfer.viz.palette import BARS, MUTED, Style
from nanoinfer.viz.picture import Picture
from nanoinfer.viz.sheet import Sheet
from nanoinfer.viz.words import count, expect_type

MOST_PARTS = 4
GUTTER, GAP, HEADS, BAND = 84.0, 24.0, 74.0, 22.0  # widths: of names, between things, of all heads, of what all have
MOST_HEIGHT = 112.0  # of a matrix
EDGE, FRAME = "#767676", "#c8c8c8"
COMMON = Style("#f7f7f7")


def split_layer(config: ModelConfig, parts: int, *, title: str | None = None, caption: str | None = None) -> Picture:
    """A layer of a model with `config` over `parts` processes, by the engine's own rules (nanoinfer/parallel/cuts.py).

    From left to right, matrices as [inputs, outputs], to scale. A process has columns of q, k, v, gate and up, and the rows
    of the output projection and of down that belong to them. ValueError if `parts` is not in 1..4, or cannot split it.
    """
    expect_type("config", config, ModelConfig)
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= MOST_PARTS:
        raise ValueError(f"parts={parts!r}: must be an integer, 1..{MOST_PARTS}")
    shards = [Shard(part, parts) for part in range(parts)]
    for shard in shards:
        shard.own_config(config)
    cuts = [cuts_of(shard, config) for shard in shards]
    hidden, q, kv = config.hidden_size, cuts[0]["q_proj"].total, cuts[0]["k_proj"].total
    mlp = cuts[0]["gate_proj"].total
    sheet = Sheet(title, f"A layer over {count(parts, 'process')}", caption=caption)
    room = sheet.right - sheet.left - GUTTER - 7 * GAP - HEADS - 3 * BAND
    scale = min(room / (q + 2 * kv + 2 * hidden + 2 * mlp + 20), MOST_HEIGHT / max(hidden, q, mlp))
    lane = max(hidden, q, mlp) * scale + 18
    top, middles = sheet.y + 34, [sheet.y + 34 + lane * (part + 0.5) for part in range(parts)]
    for part, middle in enumerate(middles):
        sheet.text(sheet.left, middle, f"process {part}", weight="bold", width=GUTTER - 8)
    draw = _Lanes(sheet, middles, scale, top, lane * parts, cuts, sheet.left + GUTTER)
    draw.band("x")
    draw.matrices("q, k, v", hidden, {"q_proj": q, "k_proj": kv, "v_proj": kv})
    draw.heads(config, shards)
    draw.matrices("output", q, {"o_proj": hidden})
    draw.band("sum")
    draw.matrices("gate, up", hidden, {"gate_proj": mlp, "up_proj": mlp})
    draw.matrices("down", mlp, {"down_proj": hidden})
    draw.band("sum")
    sheet.y = top + lane * parts + 10
    sheet.legend([(BARS[part], f"process {part}: what it has and computes") for part in range(parts)])
    return sheet.picture(_words(config, shards, cuts))


def _words(config: ModelConfig, shards: Sequence[Shard], cuts: Sequence[Mapping[str, Cut]]) -> str:
    each = []
    for part, shard in enumerate(shards):
        own = shard.own_config(config)
        heads = f"{count(own.num_attention_heads, 'query head')} and {count(own.num_key_value_heads, 'K/V head')}"
        each.append(
            f"process {part} has {heads}, and {own.intermediate_size} of {config.intermediate_size} MLP columns"
        )
    of_qkv = [cuts[0][name] for name in ("q_proj", "k_proj", "v_proj")]
    columns = f"{sum(cut.size for cut in of_qkv)} of {sum(cut.total for cut in of_qkv)} columns"
    return f"A layer from left to right: {'; '.join(each)}. Of q, k and v, process 0 has {columns}. There are two sums."


class _Lanes:
    """Draws the same thing in every process's lane, one thing after another."""

    def __init__(
        self,
        sheet: Sheet,
        middles: Sequence[float],
        scale: float,
        top: float,
        height: float,
        cuts: Sequence[Mapping[str, Cut]],
        x: float,
    ):
        self._sheet, self._middles, self._scale, self._top, self._height = sheet, middles, scale, top, height
        self._cuts, self._x = cuts, x

    def band(self, name: str) -> None:
        """What all processes have: the same numbers in each."""
        self._arrive()
        self._sheet.rect(self._x, self._top, BAND, self._height, COMMON, edge=EDGE, name=f"{name} {self._x:.0f}")
        self._head(BAND, name)
        self._leave(BAND)

    def matrices(self, head: str, rows: int, columns: Mapping[str, int]) -> None:
        """Matrices side by side, with `rows` inputs and so many columns each; a process's part is filled."""
        self._arrive()
        x, height = self._x, rows * self._scale
        for name, size in columns.items():
            width = size * self._scale
            for part, (cuts, middle) in enumerate(zip(self._cuts, self._middles, strict=True)):
                y, cut = middle - height / 2, cuts[name]
                for start, end in cut.ranges:
                    where = (start * self._scale, (end - start) * self._scale)
                    place = (x + where[0], y, where[1], height) if cut.dim == 0 else (x, y + where[0], width, where[1])
                    self._sheet.rect(*place, BARS[part], name=f"{name} {part}")
                self._sheet.rect(x, y, width, height, edge=EDGE, line=0.9)
            x += width + 4
        self._head(x - 4 - self._x, head)
        self._leave(x - 4 - self._x)

    def heads(self, config: ModelConfig, shards: Sequence[Shard]) -> None:
        """Query heads in one row and K/V heads in another; a process has some of each."""
        self._arrive()
        for part, (shard, middle) in enumerate(zip(shards, self._middles, strict=True)):
            of_queries, of_kv = config.num_attention_heads, config.num_key_value_heads
            rows = (("q", of_queries, shard.part(of_queries), -16), ("K/V", of_kv, shard.kv_heads(of_kv), 4))
            for name, number, (start, end), below in rows:
                width = HEADS / number
                for i in range(number):
                    style, place = BARS[part] if start <= i < end else None, (self._x + i * width, middle + below)
                    self._sheet.rect(
                        *place, width, 12, style, edge=FRAME, name=f"{name} head {part} {i}" if style else ""
                    )
                self._sheet.rect(self._x, middle + below, HEADS, 12, edge=EDGE)
        self._head(HEADS, "heads: q, K/V")
        self._leave(HEADS)

    def _head(self, width: float, words: str) -> None:
        self._sheet.text(self._x + width / 2, self._top - 12, words, size=SMALL, colour=MUTED, ha="center")

    def _arrive(self) -> None:
        """Arrows from what came before."""
        if self._x > self._sheet.left + GUTTER:
            for middle in self._middles:
                self._sheet.arrow([self._x + 4, self._x + GAP - 3], [middle, middle], line=1.0)
            self._x += GAP

    def _leave(self, width: float) -> None:
        self._x += width
