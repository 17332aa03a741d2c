"""Pictures of kernels: a pass as a bar, and the products of a model beneath the roof."""

from typing import Any

import pytest

from nanoinfer import viz
from nanoinfer.viz.palette import BARS
from tests.helpers.pictures import assert_readable, faces, named, texts

CALLS = [
    ("gather_rows", "model", 10e-6, 11e-6),
    ("linear", "model.layers.0.self_attn.qkv_proj", 20e-6, 60e-6),
    ("attention", "model.layers.0.self_attn", 60e-6, 76e-6),
    ("linear", "model.layers.1.mlp.down_proj", 80e-6, 130e-6),
    ("linear", "lm_head", 130e-6, 190e-6),
]
POINTS = [("T = 1", 2e6, 4e6, 1e-3), ("T = 64", 128e6, 4.2e6, 2e-3)]


def test_kernels_are_as_wide_as_they_take_time_and_look_like_their_kind() -> None:
    picture = viz.kernel_times({"from Python": (CALLS, 200e-6), "replayed": (CALLS[1:2], 100e-6)})
    (bar,) = named(picture, "outside from Python")
    first, _ = named(picture, "linear model.layers.0.self_attn.qkv_proj")
    assert first.get_width() / bar.get_width() == pytest.approx(40 / 200)
    assert first.get_x() - bar.get_x() == pytest.approx(20 / 200 * bar.get_width())
    assert faces(picture, "linear lm_head") == [BARS[0].face]
    assert faces(picture, "attention model.layers.0.self_attn") == [BARS[3].face]
    assert faces(picture, "gather_rows model") == [BARS[1].face]
    (other,) = named(picture, "outside replayed")
    assert other.get_width() / bar.get_width() == pytest.approx(100 / 200), "one axis for both"
    assert {"layer 0", "layer 1", "200 µs: 84 % in 5 kernels", "100 µs: 40 % in 1 kernel"} <= set(texts(picture))
    assert picture.alt == (
        "from Python: 200 µs with 5 kernels, 75 % products with weights, 8 % attention, 0 % other kernels, 16 % outside "
        "the kernels; replayed: 100 µs with 1 kernel, 40 % products with weights, 60 % outside the kernels."
    )
    assert_readable(picture)


def test_a_pass_of_milliseconds_has_an_axis_of_milliseconds() -> None:
    picture = viz.kernel_times({"long": ([("linear_act", "model.layers.12.mlp", 0.0, 0.02)], 0.021)})
    assert "2.5 ms" not in texts(picture)
    assert {"0 ms", "5 ms", "20 ms"} <= set(texts(picture))
    assert faces(picture, "linear_act model.layers.12.mlp") == [BARS[0].face]
    assert_readable(picture)


@pytest.mark.parametrize(
    ("passes", "problem"),
    [
        ({}, "passes: must have at least one"),
        ([], "passes: must be Mapping"),
        ({"a": ([], 0)}, r"passes\['a'\]: takes 0 seconds"),
        ({"a": ([("k", "m", 0.0, 2.0)], 1.0)}, "call 0 is from 0.0 to 2.0"),
        ({"a": ([("k", "m", 0.0, 0.5), ("k", "m", 0.4, 0.6)], 1.0)}, "call 1 is from 0.4 to 0.6"),
    ],
)
def test_calls_that_cannot_be_are_refused(passes: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        viz.kernel_times(passes)


def test_products_are_lines_beneath_one_roof() -> None:
    picture = viz.product_roofline({"o_proj": POINTS, "lm_head": POINTS}, flop_per_second=1e11, bytes_per_second=1e10)
    axes = picture.axes[0]
    lines = {line.get_label(): line for line in axes.get_lines() if not str(line.get_label()).startswith("_")}
    assert list(lines) == ["o_proj", "lm_head"]
    assert list(lines["o_proj"].get_xdata()) == pytest.approx([0.5, 128 / 4.2])
    assert list(lines["o_proj"].get_ydata()) == pytest.approx([2.0, 64.0])
    assert [text.get_text() for text in axes.texts if text.get_text().startswith("T =")] == ["T = 1", "T = 64"]
    assert "o_proj, T = 1: 0.5 operations per byte, 2 billion operations per second, 40 % of the roof" in picture.alt
    assert "64 % of the roof (arithmetic is the limit)" in picture.alt
    assert_readable(picture)


@pytest.mark.parametrize(
    ("products", "roof", "problem"),
    [
        ({}, {}, "products: must have at least one"),
        ({"a": []}, {}, "products: must have at least one"),
        ({"a": [("T = 1", 0, 1, 1)]}, {}, r"products\['a'\], T = 1=0: must be above 0"),
        ({"a": POINTS}, {"flop_per_second": 0}, "flop_per_second=0: must be above 0"),
    ],
)
def test_a_roof_needs_products_and_numbers_above_0(products: Any, roof: dict[str, float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        viz.product_roofline(products, **{"flop_per_second": 1e11, "bytes_per_second": 1e10, **roof})
