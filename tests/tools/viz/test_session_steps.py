"""The picture of an OfflineScheduler's decode passes."""

from typing import Any

import pytest

viz = pytest.importorskip("nanoinfer.viz")


def drawn(picture: Any) -> dict[str, Any]:
    """Name → patch, of the shapes that stand for something."""
    return {patch.get_gid(): patch for axes in picture.axes for patch in axes.patches if patch.get_gid()}


def test_a_cell_is_filled_where_a_request_had_a_row() -> None:
    picture = viz.session_steps([{0: 5}, {0: 6, 1: 9}, {1: 9}], max_rows=2)
    cells = {name for name in drawn(picture) if name.startswith("request")}
    assert cells == {"request 0 pass 1", "request 0 pass 2", "request 1 pass 2", "request 1 pass 3"}
    assert picture.alt == (
        "2 requests, 3 decode passes with 1 to 2 rows, 1.3 on average, 4 of 6 possible rows used: "
        "request 0 in passes 1-2, request 1 in passes 2-3."
    )


def test_bars_count_the_rows_of_each_pass_and_what_was_not_used() -> None:
    shapes = drawn(viz.session_steps([{0: 1, 1: 1, 2: 1}, {2: 1}], max_rows=4))
    heights = {name: shapes[name].get_height() for name in shapes if "pass" in name and not name.startswith("request")}
    unit = heights["rows pass 2"]
    assert heights["rows pass 1"] == pytest.approx(3 * unit)
    assert heights["unused pass 1"] == pytest.approx(unit)
    assert heights["unused pass 2"] == pytest.approx(3 * unit)


def test_many_requests_and_passes_still_fit_the_sheet() -> None:
    steps = [dict.fromkeys(range(k, k + 4), 0) for k in range(500)]
    shapes = drawn(viz.session_steps(steps))
    assert max(patch.get_x() + patch.get_width() for patch in shapes.values()) <= 900
    assert "request 0 pass 1" in shapes
    assert "request 250 pass 250" not in shapes


@pytest.mark.parametrize(
    ("steps", "settings", "message"),
    [
        ([], {}, "steps: must have at least one with a token"),
        ([{}], {}, "steps: must have at least one with a token"),
        ([{0: 1}, [3]], {}, r"steps\[1\]: must be Mapping, got list"),
        ([{0: 1}], {"labels": {4: "four"}}, "labels: no step has a token of request 4"),
        ([{0: 1, 1: 1}], {"max_rows": 1}, r"max_rows=1: steps\[0\] has 2 rows"),
    ],
)
def test_what_cannot_be_drawn_is_refused(steps: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.session_steps(steps, **settings)
