"""Charts, and pictures of numbers, bytes, times and models: shapes to scale with what they were given."""

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.lines import Line2D

from nanoinfer import viz
from nanoinfer.viz.palette import BARS, ROLES
from tests.helpers.pictures import faces, named, texts


def points_of(line: Line2D) -> list[list[float]]:
    return np.asarray(line.get_xydata()).tolist()


def widths(picture: viz.Picture, name: str) -> list[float]:
    return [shape.get_width() for shape in named(picture, name)]


# --- bars, lines, heat maps ------------------------------------------------------------------------------------------


def test_bars_are_as_long_as_their_values_and_lines_go_through_their_points() -> None:
    one = viz.bars({"one by one": 812.5, "batch": 300, "paged": 150}, unit="ms", compare="paged")
    assert [width / widths(one, "bar ")[2] for width in widths(one, "bar ")] == pytest.approx([812.5 / 150, 2, 1])
    groups = {"chat": {"no cache": 800, "cache": 200}, "few-shot": {"no cache": 400, "cache": 40}}
    grouped = viz.bars(groups, unit="tokens")
    assert [width / widths(grouped, "bar ")[0] for width in widths(grouped, "bar ")] == pytest.approx(
        [1, 0.25, 0.5, 0.05]
    )
    assert faces(grouped, "bar few-shot, cache") == faces(grouped, "bar chat, cache") == [BARS[1].face]
    series = {"without cache": ([16, 32, 64], [1, 4, 17]), "with cache": ([16, 32, 64], [1, 2, 4])}
    assert [[y for _, y in points_of(line)] for line in viz.lines(series, x="tokens", y="ms").axes[0].lines] == [
        [1, 4, 17],
        [1, 2, 4],
    ]


def test_a_heat_map_is_darker_where_there_is_more_and_may_say_how_much() -> None:
    picture = viz.heat_map([[0.0, 0.1, 0.4, 1.0]], ["p"], "abcd", numbers=True)
    light = [sum(named(picture, f"cell 0 {i}")[0].get_facecolor()[:3]) for i in range(4)]
    assert light[0] == 3.0 > light[1] > light[2] > light[3]
    assert {"0.10", "0.40"} <= set(texts(picture))


def test_passes_and_products_are_beneath_the_roof_where_they_were_measured() -> None:
    passes = [("DECODE, 1 request", 3e6, 6e6, 6e-4), ("EXTEND of 256 tokens", 8e8, 1e7, 1e-2)]
    (axes,) = viz.roofline(passes, flop_per_second=160e9, bytes_per_second=10e9).axes
    points = {line.get_gid(): points_of(line)[0] for line in axes.lines if line.get_gid()}
    assert points["pass DECODE, 1 request"] == pytest.approx([0.5, 5])
    assert points["pass EXTEND of 256 tokens"] == pytest.approx([80, 80])
    assert points_of(axes.lines[0])[1] == pytest.approx([16, 160]), "where memory is the limit no more"


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_every_byte_has_a_cell_in_the_look_of_its_part() -> None:
    request = [("request line", b"GET / HTTP/1.1\r\n"), ("headers", b"host: a\r\n"), ("empty line", b"\r\n")]
    picture = viz.wire([*request, ("body", "é \0$".encode()), ("headers", b"z" * 100)])
    assert len(named(picture, "byte ")) == 16 + 9 + 2 + 5 + 100
    looks = [faces(picture, f"byte {at}")[0] for at in (0, 15, 16, 25, 27, 32)]
    assert looks[0] == looks[1] != looks[2] == looks[5]
    assert len(set(looks)) == 4
    assert {"c3", "a9", "·", "\\r", "\\n", "00", "$"} <= set(texts(picture))


# --- models ----------------------------------------------------------------------------------------------------------


def test_attention_worked_out_is_torchs_attention() -> None:
    given = [1.0, 0.3], [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]
    q, k, v = map(torch.tensor, given)
    picture = viz.attention_steps(*given, newest=True)
    out = torch.nn.functional.scaled_dot_product_attention(q[None], k, v)[0].tolist()
    assert picture.alt.endswith(f"the result is [{out[0]:.3f}, {out[1]:.3f}].")
    assert {f"{weight:.3f}" for weight in torch.softmax(k @ q / 2**0.5, 0).tolist()} <= set(texts(picture))
    looks = [faces(picture, f"{name} {row} 0")[0] for name in ("k", "v") for row in (1, 2)]
    assert looks == [ROLES["in_use"].face, ROLES["new"].face] * 2


def test_parts_of_the_map_are_marked_by_name_and_by_notebook() -> None:
    marked: dict[Any, set[str]] = {0: set(), 1: {"everywhere"}, "07": {"attention"}, 5: {"rows", "slots"}}
    for where, parts in (marked | {("model", "sampler"): {"model", "sampler"}}).items():
        shapes = named(viz.engine_map(where), "here ")
        assert {str(shape.get_gid()).removeprefix("here ") for shape in shapes} == parts
