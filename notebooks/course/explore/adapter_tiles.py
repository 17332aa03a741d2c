"""adapter_tiles: a pass whose rows have adapters: its tiles, what it reads and multiplies, and merged models instead."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanoinfer.adapters.adapter import random_adapter
from nanoinfer.adapters.projections import projections
from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.loader import LoadedModel
from nanoinfer.viz.words import count, num_bytes
from notebooks.course.explore.control import Control
from notebooks.course.explore.explorable import Explorable, Frame
from notebooks.course.explore.panels.bars import Bar, Bars
from notebooks.course.explore.panels.cells import Cell, CellRow, Cells
from notebooks.course.explore.panels.numbers import Number, Numbers

ROWS, ADAPTERS, RANKS = (1, 4, 8, 16, 32), (1, 2, 4, 8, 16), (4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Plan:
    """A pass of `rows` rows, which have the adapters 0, 1, 2, ... in turn. `tiles`: (adapter, its rows)."""

    rows: int
    adapters: int
    tiles: Sequence[tuple[int, Sequence[int]]]


@dataclass(frozen=True)
class Sizes:
    """Of a model: `weights` and `adapter`, in bytes. Per row, in the layers that adapters change: `base`, the
    multiplications with W, and `added`, those with A and B."""

    weights: int
    adapter: int
    base: int
    added: int


def plan_of(rows: int, adapters: int) -> Plan:
    """As the package plans the pass. Rows may be too few for so many adapters; then each row has its own."""
    distinct = min(rows, adapters)
    planned = AdapterRows(np.arange(rows, dtype=np.int32) % distinct, {})
    order, plan = planned.rows.tolist(), planned.plan.tolist()
    tiles = [plan[1 + 3 * i : 4 + 3 * i] for i in range(plan[0])]
    return Plan(rows, distinct, [(adapter, order[first : first + length]) for adapter, first, length in tiles])


def sizes_of(model: LoadedModel, rank: int) -> Sizes:
    """With adapters of `rank` for all projections, in the model's dtype."""
    item = model.dtype.itemsize
    parts = random_adapter(model, rank).parts
    numbers = sum(part.a.numel() + part.b.numel() for part in parts.values())
    base = sum(each.in_features * each.columns for each in projections(model.model).values())
    return Sizes(item * model.model.num_parameters, item * numbers, base, numbers)


def adapter_tiles(
    model: LoadedModel,
    rows: Sequence[int] = ROWS,
    adapters: Sequence[int] = ADAPTERS,
    ranks: Sequence[int] = RANKS,
) -> Explorable:
    """A DECODE pass of `model` for each number of rows and of adapters, and each rank. ValueError for numbers below 1."""
    if min(*rows, *adapters, *ranks) < 1:
        raise ValueError("rows, adapters, ranks: must be at least 1")
    sizes = {rank: sizes_of(model, rank) for rank in ranks}
    plans = {(r, n): plan_of(r, n) for r, n in itertools.product(rows, adapters)}
    distinct = max(plan.adapters for plan in plans.values())
    most = max(max(distinct * each.weights, each.weights + distinct * each.adapter) for each in sizes.values())
    most_read = max(rows) * max(each.adapter for each in sizes.values())
    frames = {
        (i, j, k): _frame(plans[r, n], n, rank, sizes[rank], most, most_read)
        for (i, r), (j, n), (k, rank) in itertools.product(enumerate(rows), enumerate(adapters), enumerate(ranks))
    }
    controls = [
        Control("rows", "rows of the pass", list(rows), start=len(rows) - 2),
        Control("adapters", "different adapters", list(adapters), start=len(adapters) // 2),
        Control("rank", "rank of each adapter", list(ranks), start=1),
    ]
    return Explorable(
        "What does it cost when rows have different adapters?",
        "Rows with the same adapter share tiles of up to six rows, and a tile reads A and B once. "
        "Give the rows more adapters, and compare with a merged model for each of them.",
        controls,
        frames,
        height=1570,
        source=f"Planned by the package's AdapterRows; bytes and multiplications counted for a model with "
        f"{model.model.num_parameters:,} weights in {str(model.dtype).removeprefix('torch.')}.",
    )


def _frame(plan: Plan, chosen: int, rank: int, sizes: Sizes, most: int, most_read: int) -> Frame:
    weights, adapter = sizes.weights, sizes.adapter
    beside, merged = weights + plan.adapters * adapter, plan.adapters * weights
    by_tile, gathered = len(plan.tiles) * adapter, plan.rows * adapter
    numbers = [
        Number("multiplications of a row with W, the head left out", f"{sizes.base:,}"),
        Number("of a row with A and B", f"{sizes.added:,}, {100 * sizes.added / sizes.base:.1f} % of that"),
        Number("passes with adapters beside W", "1"),
        Number("passes with merged models", f"{plan.adapters}", strong=plan.adapters > 1),
    ]
    panels = [
        Cells("The rows of the pass, in tiles", [_tile(i, *each) for i, each in enumerate(plan.tiles)]),
        Bars(
            "Bytes to read for one token of each row",
            [
                Bar("W alone", weights, num_bytes(weights)),
                Bar("W, and every A and B", beside, num_bytes(beside), look="new"),
                Bar("merged models", merged, num_bytes(merged), look="highlight"),
            ],
            most,
            "A merged model costs nothing more per row, but each one has to be read in a pass of its own.",
        ),
        Bars(
            "Bytes of A and B that the kernel reads",
            [
                Bar("once per adapter", plan.adapters * adapter, num_bytes(plan.adapters * adapter), look="new"),
                Bar("once per tile", by_tile, num_bytes(by_tile)),
                Bar("once per row", gathered, num_bytes(gathered), look="highlight"),
            ],
            most_read,
            "The package reads them once per tile; for the second tile of an adapter, they are in the processor's cache. "
            "Copied for each row, they would be read once per row.",
        ),
        Numbers(f"Rank {rank}: multiplications and passes", numbers),
    ]
    tiles = count(len(plan.tiles), "tile")
    said = f"{count(plan.rows, 'row')}, {count(plan.adapters, 'adapter')} of rank {rank}: {tiles}. "
    if chosen > plan.adapters:
        said += f"(So few rows can't have {chosen} adapters.) "
    said += f"The pass reads {beside / weights:.2f} × the bytes that the base model alone reads. "
    if plan.adapters == 1:
        said += "One adapter could as well be merged: that is one pass, too, and it reads no A and B."
    else:
        said += f"Merged models take {plan.adapters} passes, which read {plan.adapters} × the base model's bytes."
    return Frame(panels, said)


def _tile(i: int, adapter: int, rows: Sequence[int]) -> CellRow:
    return CellRow(f"tile {i}: adapter {adapter}", [Cell(f"r{adapter % 8}", str(row)) for row in rows])
