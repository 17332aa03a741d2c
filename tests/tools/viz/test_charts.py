"""Bars and lines: lengths, axes in plain words, and the nonsense that is refused."""

from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.lines import Line2D

from nanoinfer import viz
from nanoinfer.viz.palette import BARS
from tests.helpers.pictures import (
    assert_readable,
    faces,
    make_pool,
    named,
)


def test_bars_have_lengths_of_their_values_and_ratios() -> None:
    picture = viz.bars({"one by one": 812.5, "batch": 300, "paged": 150}, unit="ms", compare="paged")
    widths = [patch.get_width() for patch in named(picture, "bar ")]
    assert widths[0] / widths[2] == pytest.approx(812.5 / 150)
    assert picture.alt == "one by one: 812 ms (5.42×), batch: 300 ms (2.00×), paged: 150 ms, ratios to paged."
    assert_readable(picture)


def test_bars_in_groups_have_one_scale_and_a_colour_a_label() -> None:
    values = {"chat": {"no cache": 800, "cache": 200}, "few-shot": {"no cache": 400, "cache": 40}}
    picture = viz.bars(values, unit="tokens")
    bars = named(picture, "bar ")
    assert [bar.get_width() / bars[0].get_width() for bar in bars] == pytest.approx([1, 0.25, 0.5, 0.05])
    faces = [bar.get_facecolor() for bar in bars]
    assert faces[0] == faces[2] != faces[1] == faces[3]
    assert picture.alt.startswith("chat, no cache: 800 tokens, chat, cache: 200 tokens, few-shot, no cache: 400 tokens")
    assert_readable(picture)


def test_labels_of_bars_may_have_their_colours_in_another_order() -> None:
    picture = viz.bars({"one": {"x": 1}, "two": {"y": 2}}, unit="ms", colours=("y", "x"))
    assert faces(picture, "bar one, x") == [BARS[1].face]
    assert faces(picture, "bar two, y") == [BARS[0].face]


def test_a_line_across_the_bars_lies_at_its_value() -> None:
    picture = viz.bars({"fast": 4.0, "as before": 1.0}, unit="times as fast", line_at=1)
    bar = named(picture, "bar as before")[0]
    dashed = [line for line in picture.findobj(Line2D) if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in dashed] == pytest.approx([bar.get_x() + bar.get_width()])
    assert_readable(picture)


def test_axes_are_in_plain_words() -> None:
    series = {"a": ([1, 4000], [0.001, 300])}
    picture = viz.lines(series, x="tokens", y="ms", log=True)
    picture.canvas.draw()
    (axes,) = picture.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "10", "100", "1,000", "10,000"]
    assert axes.get_xlabel() == "tokens  (each grid line: 10 times as much)"
    assert axes.get_ylabel() == "ms\n(each grid line: 10 times as much)"
    near = viz.lines({"a": ([1, 2, 8], [5, 6, 7])}, x="tokens", y="ms", log=True)
    near.canvas.draw()
    assert [label.get_text() for label in near.axes[0].get_xticklabels()] == ["1", "2", "4", "8"]
    assert len(near.axes[0].get_yticks()) >= 2
    assert near.axes[0].get_ylabel().endswith("(each grid line: twice as much)")
    low = viz.lines({"a": ([1, 8], [10.3, 113])}, x="tokens", y="ms", log=True)
    assert min(low.axes[0].get_yticks()) == 8, "a line below the lowest point"
    assert low.axes[0].get_ylim()[0] < 8
    exact = viz.lines({"a": ([2**10, 2**20], [5, 6])}, x="slots", y="ms", log=True, ticks=[2**10, 2**20])
    exact.canvas.draw()
    assert [label.get_text() for label in exact.axes[0].get_xticklabels()] == ["1,024", "1,048,576"]
    chosen = viz.lines({"a": ([1, 2, 8], [5, 6, 7])}, x="rank", y="ms", log=True, ticks=[1, 8])
    chosen.canvas.draw()
    assert [label.get_text() for label in chosen.axes[0].get_xticklabels()] == ["1", "8"]
    assert chosen.axes[0].get_xlabel() == "rank"
    assert chosen.axes[0].get_ylabel().endswith("(each grid line: twice as much)")


def test_ratios_are_said_as_one_says_them() -> None:
    picture = viz.lines({"a": ([1, 2, 3], [1, 2, 2.5])}, x="page size", y="", times="as long")
    picture.canvas.draw()
    shown = [label.get_text() for label in picture.axes[0].get_yticklabels()]
    assert {"0", "half as long", "just as long", "1.5 times as long", "twice as long"} <= set(shown)
    assert "from just as long at 1 to 2.5 times as long at 3" in picture.alt


def test_lines_go_through_their_points() -> None:
    series = {"without cache": ([16, 32, 64], [1, 4, 17]), "with cache": ([16, 32, 64], [1, 2, 4])}
    picture = viz.lines(series, x="tokens", y="ms", title="Time", log=True)
    (axes,) = picture.axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[1, 4, 17], [1, 2, 4]]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert picture.alt.startswith("ms over tokens: without cache, 3 points, from 1 at 16 to 17 at 64; with cache")


@pytest.mark.parametrize(
    ("values", "compare", "message"),
    [
        ({}, None, "values: must have at least one"),
        ({"a": -1}, None, r"values\['a'\]=-1.0: must be finite and not negative"),
        ({"a": 1}, "b", "compare='b': must be one of a, with a value above 0"),
        ({"a": {"b": 1}}, "a, b", "compare='a, b'"),
        ({"a": {"b": 1}, "c": 2}, None, "values: some are groups and some numbers; must be either"),
        ({"a": {}}, None, "values: must have at least one"),
    ],
)
def test_bars_of_nonsense_are_refused(values: Any, compare: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.bars(values, unit="ms", compare=compare)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ({}, "series: must have at least one"),
        ({"a": ([1, 2], [1])}, r"series\['a'\]: 2 xs and 1 ys; must be as many, at least 1"),
        ({"a": ([0, 2], [1, 1])}, r"series\['a'\]: 0: with log, numbers must be above 0"),
    ],
)
def test_lines_of_nonsense_are_refused(series: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.lines(series, x="x", y="y", log=True)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: viz.slot_map(3), "token_to_kv_pool: must be TokenToKVPool, got int"),
        (lambda: viz.slot_map(make_pool(4), {"a": [4]}), r"owners\['a'\]: slot 4 is outside 0..3"),
        (lambda: viz.slot_map(make_pool(4), highlight=[-1]), "highlight: slot -1 is outside 0..3"),
        (lambda: viz.slot_map(make_pool(4), [1]), "owners: must be Mapping, got list"),
        (lambda: viz.request_rows(3, {}), "req_to_token_pool: must be ReqToTokenPool, got int"),
        (lambda: viz.radix_tree(3), "radix_cache: must be RadixCache, got int"),
        (lambda: viz.engine(3), "engine: must be Engine, got int"),
        (lambda: viz.owners(3), "engine: must be Engine, got int"),
        (lambda: viz.lines({"a": ([1], [1])}, x="x", y="y", times=2), "times: must be str, got int"),
        (
            lambda: viz.allocator_marks(3),
            "allocator: must be SlotAllocator or TokenToKVPool or ReqToTokenPool, got int",
        ),
    ],
)
def test_wrong_things_are_refused_by_name(draw: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
