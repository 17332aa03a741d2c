"""The picture of what happened when: a lane per thread or request, and times to scale."""

import pytest

pytest.importorskip("matplotlib")

from nanoinfer import viz
from nanoinfer.viz.palette import ROLES
from tests.helpers.pictures import assert_readable, faces, named, texts

SPANS = [("a", "served", 0.0, 2.0), ("b", "waiting", 1.0, 2.0), ("b", "served", 2.0, 4.0)]


def test_spans_are_to_scale_and_in_their_lanes() -> None:
    picture = viz.lanes(SPANS, unit="seconds")
    (first,), (wait,), (second,) = (named(picture, name) for name in ("a, served", "b, waiting", "b, served"))
    assert first.get_width() == pytest.approx(2 * wait.get_width())
    assert second.get_x() == pytest.approx(first.get_x() + first.get_width())
    assert first.get_y() < wait.get_y() == second.get_y()
    assert {"a", "b", "seconds", "0", "1", "4"} <= set(texts(picture))
    assert picture.alt == "4 seconds in all. a: served 2; b: waiting 1, served 2."
    assert_readable(picture)


def test_waiting_is_light_and_each_other_kind_has_its_colour() -> None:
    picture = viz.lanes([*SPANS, ("c", "refused", 0, 1)], unit="ms", title="T", caption="C.")
    assert faces(picture, "b, waiting") == [ROLES["hidden"].face]
    assert faces(picture, "a, served") == faces(picture, "b, served") != faces(picture, "c, refused")
    assert {"T", "C.", "waiting", "served", "refused"} <= set(texts(picture))


def test_what_took_no_time_can_still_be_seen() -> None:
    picture = viz.lanes([("a", "x", 0, 1000), ("a", "y", 500, 500)], unit="ms")
    assert named(picture, "a, y")[0].get_width() > 0.5
    assert_readable(viz.lanes([("a", "x", 3, 3)], unit="ms"))


def test_two_pictures_within_the_same_times_have_one_scale() -> None:
    longer = viz.lanes([("a", "served", 0.0, 9.0)], unit="seconds", within=(0, 10))
    short = viz.lanes([("a", "served", 4.0, 5.0)], unit="seconds", within=(0, 10))
    (nine,), (one,) = named(longer, "a, served"), named(short, "a, served")
    assert nine.get_width() == pytest.approx(9 * one.get_width())
    assert one.get_x() == pytest.approx(nine.get_x() + 4 * one.get_width())
    assert short.alt == "1 seconds in all. a: served 1."
    with pytest.raises(ValueError, match=r"within=\(0, 3\): spans are from 0 to 4"):
        viz.lanes(SPANS, unit="seconds", within=(0, 3))


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="spans: must have at least one"):
        viz.lanes([], unit="ms")
    with pytest.raises(ValueError, match=r"spans\[1\]: ends at 1, before its start at 2"):
        viz.lanes([SPANS[0], ("a", "x", 2, 1)], unit="ms")
    with pytest.raises(ValueError, match=r"spans\[0\] end=inf: must be finite"):
        viz.lanes([("a", "x", 0, float("inf"))], unit="ms")
    with pytest.raises(ValueError, match=r"spans\[0\]: must be \(lane, kind, start, end\)"):
        viz.lanes([("a", 0, 1)], unit="ms")  # type: ignore[list-item]
    with pytest.raises(ValueError, match="spans: 25 lanes; must be at most 24"):
        viz.lanes([(str(i), "x", 0, 1) for i in range(25)], unit="ms")
    with pytest.raises(ValueError, match="spans: 5 kinds besides 'waiting'; must be at most 4"):
        viz.lanes([("a", str(i), 0, 1) for i in range(5)], unit="ms")
