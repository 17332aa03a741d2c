"""Panels of explorables: what they refuse, and where they put numbers and columns."""

from collections.abc import Callable

import pytest

from notebooks.course.explore.control import Control
from notebooks.course.explore.explorable import Explorable, Frame
from notebooks.course.explore.panels.cells import Cell, CellRow, Cells
from notebooks.course.explore.panels.lanes import Flag, Lane, Lanes, Span

LANE = [Lane("request 0", [Span(0, 2, "decode")])]
FRAME = Frame([Lanes("a", 2, LANE)], "What there is to see.")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lanes("a", 2, LANE, flags=[Flag(2, "too late")]), "flags: step=2; there are steps=2"),
        (lambda: Flag(-1, "too early"), "step=-1"),
        (lambda: Flag(0, " "), "text=' '"),
        (lambda: Lanes("a", 2, LANE, widths=[1]), "widths: 1 for steps=2"),
        (lambda: Lanes("a", 2, LANE, widths=[1, -1]), "widths=-1"),
        (lambda: Lanes("a", 2, LANE, widths=[0, 0]), "widths: are all 0"),
        (lambda: Lanes("a", 2, LANE, widths=[3, 4], whole=6), "whole=6"),
        (lambda: Lanes("a", 2, LANE, scale=["from"]), "scale=\\['from'\\]: must be two texts"),
        (lambda: Lanes("a", 2, LANE, until=1), "until=1: must be in at=None"),
        (lambda: Lanes("a", 2, LANE, at=1, until=0), "until=0: must be in at=1..1"),
        (lambda: Cells("a", [CellRow("r", [Cell()])], group=-1), "group=-1"),
        (
            lambda: Explorable("a", "b", [Control("c", "d", [1, 2])], dict.fromkeys([(0,), (1,)], FRAME), still=(2,)),
            "still",
        ),
    ],
)
def test_what_cannot_be_drawn_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_numbers_below_the_lanes_are_round_and_not_at_the_ends() -> None:
    assert Lanes("a", 62, LANE).ticks() == [((n - 0.5) / 62, str(n)) for n in (10, 20, 30, 40, 50)]
    ticks = Lanes("a", 2, LANE, widths=[100, 400], whole=588, scale=["time →", "588 units"]).ticks()
    assert ticks == [(n / 588, str(n)) for n in (100, 200, 300, 400)]
    assert Lanes("a", 2, LANE).ticks() == []


def test_columns_are_as_wide_as_they_are_said_to_be() -> None:
    assert Lanes("a", 2, LANE).edges() == [0, 0.5, 1]
    assert Lanes("a", 2, LANE, widths=[1, 3], whole=8).edges() == [0, 0.125, 0.5]
