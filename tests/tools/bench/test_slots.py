"""The measurement of the slot allocator on tiny pools: what is measured, and that both allocators do the same work."""

import json
from pathlib import Path

import numpy as np
import pytest

from nanoinfer.bench.slots import CALLS, PAGE_SIZES, STATES, MaskAllocator, format_results, main, measure
from nanoinfer.cache.slot_allocator import SlotAllocator


def test_every_pool_and_state_with_room_is_measured_and_shown() -> None:
    results = measure([64, 512], rounds=1, round_s=0)
    assert {(result.page_size, result.size) for result in results} == {(p, n) for p in PAGE_SIZES for n in (64, 512)}
    assert {result.state for result in results} == set(STATES) - {"one per block"}  # the pools are smaller than a block
    assert {result.call for result in results} == set(CALLS) - {"prefill 2048"}
    assert all(result.slots_us > 0 and result.ratio > 0 for result in results)
    text = format_results(results)
    assert all(state in text for state in STATES)
    assert f"of {len(results)} cases" in text


def test_the_mask_gives_and_refuses_what_the_allocator_does() -> None:
    for page_size in PAGE_SIZES:
        ours, mask = SlotAllocator(64, page_size), MaskAllocator(64, page_size)
        for allocator in (ours, mask):
            allocator.alloc(64)
            allocator.free(np.arange(16, 48))
        for need in (page_size, 16, 32):
            first, second = ours.alloc(need), mask.alloc(need)
            assert (first is None) == (second is None)
            if first is not None and second is not None:
                assert first.tolist() == second.tolist()
                assert first.dtype == second.dtype
        with pytest.raises(ValueError, match="outside"):
            mask.free([64])


def test_the_figures_are_written_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "slots.json"
    main(["--sizes", "64", "--rounds", "1", "--json", str(file)])
    assert "64" in capsys.readouterr().out
    assert {row["size"] for row in json.loads(file.read_text())} == {64}
