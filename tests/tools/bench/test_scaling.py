"""The scaling measurements on tiny sizes: what is measured where, not how long it took."""

from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.bench.scaling import (
    BookkeepingCase,
    format_scaling,
    measure_bookkeeping,
    measure_radix,
    measure_ttft,
    np,
)


def results(story: LLM) -> dict[str, Any]:
    return {
        "bookkeeping": measure_bookkeeping([1, 4, 32], [64, 256], long=8, repeats=2),
        "entry": 20,
        "radix": measure_radix([40, 100], entry=20, repeats=3),
        "ttft": measure_ttft(story, [0.0, 0.5], repeats=1),
    }


def test_only_steps_in_which_all_requests_decode_are_timed() -> None:
    case = BookkeepingCase(requests=3, slots=64, seq_len=8)
    for _ in range(2):
        case.run(np.random.default_rng(0))
    assert len(case.times) == 2 * 7
    assert case.engine.stats()["decode_steps"] == 2 * 7
    case.engine.check_integrity()


def test_every_size_that_fits_is_measured(story: LLM) -> None:
    story.engine.flush_cache()
    measured = results(story)
    shapes = [(r["requests"], r["slots"], r["seq_len"]) for r in measured["bookkeeping"]]
    assert shapes == [
        (1, 64, 4),
        (4, 64, 4),
        (1, 256, 4),
        (4, 256, 4),
        (32, 256, 4),
        *((n, 256, 8) for n in (1, 4, 32)),
    ]
    assert all(r["ms"] > 0 for r in measured["bookkeeping"])
    assert [r["tokens"] for r in measured["radix"]] == [40, 100]
    assert [r["cached_tokens"] for r in measured["ttft"]] == [0, int(0.5 * 1023)]
    text = format_scaling(measured)
    assert "| 64 slots, 4 tokens each " in text
    assert " – |" in text, "32 requests do not fit into 64 slots"
    assert "1023 prompt tokens" in text


def test_the_figure_is_drawn(story: LLM, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from nanoinfer.bench.scaling_figure import draw

    draw(results(story), tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
