"""The picture of replicas: bars of tokens found and computed, areas of requests, a death, and scales that can be given."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from nanoinfer import viz
from tests.helpers.pictures import assert_readable, named, texts


def one(start: float = 0.0, end: float = 1.0, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(start=start, end=end, **{"cached": 0, "computed": 0, "running": 0, "waiting": 0} | fields)


PASSES = {
    "A": [one(cached=30, computed=10, running=1), one(1, 3, running=2, waiting=2)],
    "B": [one(0.5, 1.0, computed=40, running=1)],
}


SCALES: tuple[dict[str, Any], ...] = ({}, {"until": 6, "most_requests": 8})


def test_what_was_found_and_what_was_computed_are_bars_to_one_scale() -> None:
    picture = viz.replicas(PASSES)
    (found,), (new,), (other,) = (named(picture, name) for name in ("A found 0", "A computed 0", "B computed 0"))
    assert found.get_height() == pytest.approx(3 * new.get_height())
    assert other.get_height() == pytest.approx(found.get_height() + new.get_height())
    assert new.get_y() + new.get_height() == pytest.approx(found.get_y()), "on top of what was found"
    assert found.get_width() == pytest.approx(2 * other.get_width())
    assert not named(picture, "B found"), "nothing was"
    assert_readable(picture)


def test_requests_that_run_are_below_those_that_wait() -> None:
    picture = viz.replicas(PASSES)
    (running,), (waiting,) = (named(picture, name) for name in ("A running 1", "A waiting 1"))
    assert running.get_height() == pytest.approx(waiting.get_height())
    assert waiting.get_y() + waiting.get_height() == pytest.approx(running.get_y())
    assert picture.alt == (
        "A: 30 prompt tokens found, 10 computed, at most 2 wait, 2 passes; "
        "B: 0 prompt tokens found, 40 computed, at most 0 wait, 1 pass."
    )


def test_scales_can_be_given_so_that_pictures_can_be_compared() -> None:
    (alone,), (given,) = (named(viz.replicas(PASSES, **options), "A running 0") for options in SCALES)
    assert given.get_width() == pytest.approx(alone.get_width() / 2)
    assert given.get_height() == pytest.approx(alone.get_height() / 2)


def test_a_replica_that_dies_has_a_mark() -> None:
    picture = viz.replicas(PASSES, ends={"B": 2.0}, title="T", caption="C.")
    assert {"dies", "T", "C.", "75 % found", "at most 2 wait"} <= set(texts(picture))
    assert picture.alt.endswith("1 pass, dies at 2 s.")
    assert_readable(picture)


def test_a_replica_that_never_worked_is_drawn_too() -> None:
    picture = viz.replicas(PASSES | {"C": []})
    assert "C" in texts(picture)
    assert_readable(picture)


def test_what_cannot_be_drawn_is_refused() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"A": []}, {}, "passes: must have at least one"),
        ({str(i): [one()] for i in range(9)}, {}, "passes: 9 replicas; must be at most 8"),
        ({"A": [object()]}, {}, r"passes\['A'\]\[0\]: has no 'start'"),
        ({"A": [one(computed=-1)]}, {}, r"passes\['A'\]\[0\].computed=-1: must be at least 0"),
        ({"A": [one(2, 1)]}, {}, r"passes\['A'\]\[0\]: ends at 1, before its start at 2"),
        ({"A": [one()]}, {"ends": {"B": 1}}, "ends: 'B' is no replica"),
        ({"A": [one()]}, {"until": 0}, "until=0: must be above 0"),
        ({"A": [one()]}, {"most_requests": 0}, "most_requests=0: must be above 0"),
    ]
    for passes, options, problem in cases:
        with pytest.raises(ValueError, match=problem):
            viz.replicas(passes, **options)
