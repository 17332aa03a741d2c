"""The explorables of a product's roof and of adapters in tiles: what tensors weigh, and what the package plans."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nanoinfer.adapters.adapter import random_adapter
from nanoinfer.model.adapter_rows import TILE_ROWS
from nanoinfer.model.loader import LoadedModel
from notebooks.course.explore import Bars, Cells, Explorable, Lines, Numbers
from notebooks.course.explore.adapter_tiles import adapter_tiles, plan_of, sizes_of
from notebooks.course.explore.product_roof import (
    CPU,
    INPUTS,
    OUTPUTS,
    WIDTHS,
    Product,
    busy_from,
    product_roof,
)
from notebooks.course.explore.roofline import ACCELERATORS, Machine

# --- product_roof -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "weights", "others"),
    [(4.0, torch.float32, torch.float32), (2.0, torch.bfloat16, torch.bfloat16), (1.0, torch.int8, torch.bfloat16)],
)
def test_operations_and_bytes_are_those_of_the_tensors(width: float, weights: torch.dtype, others: torch.dtype) -> None:
    x, w = torch.ones(3, INPUTS, dtype=others), torch.ones(OUTPUTS, INPUTS, dtype=weights)
    with FlopCounterMode(display=False) as counter:
        y = torch.nn.functional.linear(x, w.to(others))
    product = Product(3, width)
    assert product.operations == counter.get_total_flops()
    assert product.bytes == x.nbytes + w.nbytes + y.nbytes


@pytest.mark.parametrize(
    "machine", [CPU, ACCELERATORS[-1], Machine("slow memory", 1e9, 175e9, 4)], ids=lambda m: m.name
)
@pytest.mark.parametrize("width", WIDTHS)
def test_arithmetic_is_the_limit_from_the_number_of_tokens_that_is_said(machine: Machine, width: float) -> None:
    def is_busy(tokens: int) -> bool:
        reading, multiplying = Product(tokens, width).seconds(machine)
        return multiplying >= reading

    found = next((tokens for tokens in range(1, 3000) if is_busy(tokens)), None)
    assert busy_from(width, machine) == found


def test_each_frame_says_the_limit_and_its_point_is_on_the_roof(explorables: dict[str, Explorable]) -> None:
    explorable, machines = explorables["product_roof"], (CPU, ACCELERATORS[-1])
    tokens, widths, _ = (control.values for control in explorable.controls)
    limits = set()
    for (i, j, k), frame in explorable.frames.items():
        product, machine = Product(tokens[i], widths[j]), machines[k]
        reading, multiplying = product.seconds(machine)
        limit = "memory" if reading > multiplying else "arithmetic"
        limits.add((k, limit))
        assert f"{limit} is the limit" in frame.sentence
        chart, bars, numbers = frame.panels
        assert isinstance(chart, Lines)
        assert isinstance(bars, Bars)
        assert isinstance(numbers, Numbers)
        (mark,) = chart.marks
        assert mark.y == pytest.approx(product.operations / max(reading, multiplying) / 1e9, rel=1e-3)
        assert (mark.x, mark.y) == chart.series[-1].points[i]
        assert max(bar.value for bar in bars.bars) == 1
        assert [bar.value for bar in bars.bars].index(1) == (limit == "arithmetic")
    assert len(limits) == 4


def test_a_page_is_of_the_machine_that_is_given() -> None:
    mine = product_roof(Machine("this machine", 20e9, 100e9, 4), (1, 64))
    assert mine.controls[2].labels == ["this machine", ACCELERATORS[-1].name]
    assert "this machine can do 5. " in mine.frames[0, 0, 0].sentence
    with pytest.raises(ValueError, match="at least two numbers of at least 1"):
        product_roof(tokens=(0, 1))


# --- adapter_tiles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "adapters"), [(r, n) for r in (1, 5, 16, 32) for n in (1, 3, 16)])
def test_every_row_is_in_one_tile_of_its_adapter(rows: int, adapters: int) -> None:
    plan = plan_of(rows, adapters)
    distinct = min(rows, adapters)
    assert Counter(row for _, members in plan.tiles for row in members) == Counter(range(rows))
    assert all(row % distinct == adapter for adapter, members in plan.tiles for row in members)
    of_each = Counter(row % distinct for row in range(rows))
    assert Counter(adapter for adapter, _ in plan.tiles) == {a: -(-n // TILE_ROWS) for a, n in of_each.items()}


def test_multiplications_are_those_that_torch_counts(tiny: LoadedModel) -> None:
    parts, sizes = random_adapter(tiny, 4).parts, sizes_of(tiny, 4)
    with FlopCounterMode(display=False) as counter:
        for part in parts.values():
            (torch.ones(1, part.a.shape[1]) @ part.a.T) @ part.b.T
    assert sizes.added == counter.get_total_flops() // 2
    assert sizes.base == sum(part.a.shape[1] * len(part.b) for part in parts.values())
    assert sizes.adapter == sum(part.a.nbytes + part.b.nbytes for part in parts.values())
    assert sizes.weights == 4 * tiny.model.num_parameters


def test_each_frame_compares_one_pass_with_merged_models(explorables: dict[str, Explorable], tiny: LoadedModel) -> None:
    explorable = explorables["adapter_tiles"]
    values = [control.values for control in explorable.controls]
    for chosen, frame in explorable.frames.items():
        rows, adapters, rank = (of[i] for of, i in zip(values, chosen, strict=True))
        plan, sizes = plan_of(rows, adapters), sizes_of(tiny, rank)
        tiles, model, read, numbers = frame.panels
        assert isinstance(tiles, Cells)
        assert isinstance(model, Bars)
        assert isinstance(read, Bars)
        assert isinstance(numbers, Numbers)
        assert [[cell.text for cell in row.cells] for row in tiles.rows] == [[str(r) for r in m] for _, m in plan.tiles]
        n, w, a = plan.adapters, sizes.weights, sizes.adapter
        assert [bar.value for bar in model.bars] == [w, w + n * a, n * w]
        assert [bar.value for bar in read.bars] == [n * a, len(plan.tiles) * a, rows * a]
        assert np.isclose(float(frame.sentence.split(" × ")[0].rpartition(" ")[2]), (w + n * a) / w, atol=0.01)
        assert numbers.numbers[-1].value == str(n)
        assert ("So few rows" in frame.sentence) == (adapters > rows)


def test_numbers_below_1_are_refused(tiny: LoadedModel) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        adapter_tiles(tiny, ranks=(0, 4))
