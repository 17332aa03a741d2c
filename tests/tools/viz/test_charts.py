"""Charts, and pictures of numbers, bytes, times and models: shapes to scale with what they were given."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from matplotlib.lines import Line2D

from nanoinfer import viz
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.viz.palette import BARS, ROLES
from tests.helpers.checkpoints import FAMILIES, tiny_config
from tests.helpers.pictures import faces, named, texts

STORY = ModelConfig.from_pretrained(resolve_model_path("story"))  # 8 query heads, 2 K/V heads, 448 columns in the MLP


def points_of(line: Line2D) -> list[list[float]]:
    return np.asarray(line.get_xydata()).tolist()


def widths(picture: viz.Picture, name: str) -> list[float]:
    return [shape.get_width() for shape in named(picture, name)]


# --- bars, lines, heat maps ------------------------------------------------------------------------------------------


def test_bars_are_as_long_as_their_values_and_lines_go_through_their_points() -> None:
    one = viz.bars({"one by one": 812.5, "batch": 300, "paged": 150}, unit="ms", compare="paged")
    assert [width / widths(one, "bar ")[2] for width in widths(one, "bar ")] == pytest.approx([812.5 / 150, 2, 1])
    groups = {"chat": {"no cache": 800, "cache": 200}, "few-shot": {"no cache": 400, "cache": 40}}
    grouped = viz.bars(groups, unit="tokens", colours=("cache", "no cache"))
    assert [width / widths(grouped, "bar ")[0] for width in widths(grouped, "bar ")] == pytest.approx(
        [1, 0.25, 0.5, 0.05]
    )
    assert faces(grouped, "bar few-shot, cache") == faces(grouped, "bar chat, cache") == [BARS[0].face]
    series = {"without cache": ([16, 32, 64], [1, 4, 17]), "with cache": ([16, 32, 64], [1, 2, 4])}
    assert [[y for _, y in points_of(line)] for line in viz.lines(series, x="tokens", y="ms").axes[0].lines] == [
        [1, 4, 17],
        [1, 2, 4],
    ]


def test_axes_have_plain_numbers() -> None:
    def ticks(picture: viz.Picture, axis: str = "x") -> list[str]:
        picture.canvas.draw()
        return [label.get_text() for label in getattr(picture.axes[0], f"get_{axis}ticklabels")()]

    far, near = {"a": ([1, 4000], [0.001, 300])}, {"a": ([1, 2, 8], [5, 6, 7])}
    assert ticks(viz.lines(far, x="tokens", y="ms", log=True)) == ["1", "10", "100", "1,000", "10,000"]
    assert ticks(viz.lines(near, x="tokens", y="ms", log=True)) == ["1", "2", "4", "8"]
    assert ticks(viz.lines(near, x="rank", y="ms", log=True, ticks=[1, 8])) == ["1", "8"]
    ratios = viz.lines({"a": ([1, 2, 3], [1, 2, 2.5])}, x="page size", y="", times="as long")
    assert {"0", "half as long", "1.5 times as long", "twice as long"} <= set(ticks(ratios, "y"))


def test_a_heat_map_is_darker_where_there_is_more_and_no_darker_than_its_most() -> None:
    values = [[0.0, 0.1, 0.2, 0.4]]
    cells = [named(viz.heat_map(values, ["p"], "abcd", most=0.2), f"cell 0 {i}")[0] for i in range(4)]
    light = [sum(cell.get_facecolor()[:3]) for cell in cells]
    assert light[0] == 3.0 > light[1] > light[2] == light[3]
    assert {"0.100", "0.400"} <= set(texts(viz.heat_map(values, ["p"], "abcd", numbers=True, most=0.1)))
    causal = {cell.get_gid() for cell in named(viz.heat_map(np.eye(3), "abc", "abc", causal=True), "cell")}
    assert causal == {f"cell {row} {column}" for row in range(3) for column in range(row + 1)}


def test_passes_and_products_are_beneath_the_roof_where_they_were_measured() -> None:
    passes = [("DECODE, 1 request", 3e6, 6e6, 6e-4), ("EXTEND of 256 tokens", 8e8, 1e7, 1e-2)]
    (axes,) = viz.roofline(passes, flop_per_second=160e9, bytes_per_second=10e9).axes
    points = {line.get_gid(): points_of(line)[0] for line in axes.lines if line.get_gid()}
    assert points["pass DECODE, 1 request"] == pytest.approx([0.5, 5])
    assert points["pass EXTEND of 256 tokens"] == pytest.approx([80, 80])
    assert points_of(axes.lines[0])[1] == pytest.approx([16, 160]), "where memory is the limit no more"
    products = {"o_proj": [("T = 1", 2e6, 4e6, 1e-3), ("T = 64", 128e6, 4.2e6, 2e-3)]}
    (axes,) = viz.roofline(products, flop_per_second=1e11, bytes_per_second=1e10).axes
    (line,) = [line for line in axes.get_lines() if line.get_label() == "o_proj"]
    assert np.ravel(points_of(line)).tolist() == pytest.approx([0.5, 2.0, 128 / 4.2, 64.0])


# --- times -----------------------------------------------------------------------------------------------------------


def test_kernels_are_as_wide_as_they_take_time_on_one_axis_for_all() -> None:
    calls = [
        ("gather_rows", "model", 10e-6, 11e-6),
        ("linear", "model.layers.0.self_attn.qkv_proj", 20e-6, 60e-6),
        ("attention", "model.layers.0.self_attn", 60e-6, 76e-6),
        ("linear", "lm_head", 130e-6, 190e-6),
    ]
    picture = viz.kernel_times({"from Python": (calls, 200e-6), "replayed": (calls[1:2], 100e-6)})
    (bar,), (other,) = named(picture, "outside from Python"), named(picture, "outside replayed")
    first, _ = named(picture, "linear model.layers.0.self_attn.qkv_proj")
    assert first.get_width() / bar.get_width() == pytest.approx(40 / 200)
    assert first.get_x() - bar.get_x() == pytest.approx(20 / 200 * bar.get_width())
    assert other.get_width() / bar.get_width() == pytest.approx(100 / 200)
    looks = [faces(picture, f"{name} {of}") for name, of, *_ in (calls[0], calls[2], calls[3])]
    assert looks == [[BARS[1].face], [BARS[3].face], [BARS[0].face]]


def test_spans_are_to_scale_and_in_their_lanes() -> None:
    spans = [("a", "served", 0.0, 2.0), ("b", "waiting", 1.0, 2.0), ("b", "served", 2.0, 4.0), ("b", "x", 3, 3)]
    picture = viz.lanes(spans, unit="seconds", within=(0, 8))
    first, wait, second, instant = (named(picture, f"{lane}, {kind}")[0] for lane, kind, *_ in spans)
    assert first.get_width() == pytest.approx(2 * wait.get_width())
    assert second.get_x() == pytest.approx(first.get_x() + first.get_width())
    assert first.get_y() < wait.get_y() == second.get_y()
    assert instant.get_width() > 0.5
    assert first.get_width() == pytest.approx(widths(viz.lanes(spans, unit="seconds"), "a, served")[0] / 2)


def test_replicas_show_what_was_found_and_computed_and_who_waits() -> None:
    def one(start: float, end: float, **fields: int) -> SimpleNamespace:
        return SimpleNamespace(
            start=start, end=end, **{"cached": 0, "computed": 0, "running": 0, "waiting": 0} | fields
        )

    passes = {
        "A": [one(0, 1, cached=30, computed=10, running=1), one(1, 3, running=2, waiting=2)],
        "B": [one(0.5, 1.0, computed=40, running=1)],
        "C": [],
    }
    picture = viz.replicas(passes, ends={"B": 2.0})
    (found,), (new,), (other,) = (named(picture, name) for name in ("A found 0", "A computed 0", "B computed 0"))
    assert found.get_height() == pytest.approx(3 * new.get_height())
    assert other.get_height() == pytest.approx(found.get_height() + new.get_height())
    assert found.get_width() == pytest.approx(2 * other.get_width())
    (running,), (waiting,) = (named(picture, name) for name in ("A running 1", "A waiting 1"))
    assert waiting.get_y() + waiting.get_height() == pytest.approx(running.get_y())
    assert not named(picture, "B found"), "nothing was"
    assert "dies" in texts(picture)
    scaled = named(viz.replicas(passes, until=6, most_requests=4), "A running 0")[0]
    (alone,) = named(picture, "A running 0")
    assert (scaled.get_width(), scaled.get_height()) == pytest.approx((alone.get_width() / 2, alone.get_height()))


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_every_byte_has_a_cell_in_the_look_of_its_part_and_each_line_a_row() -> None:
    request = [("request line", b"GET / HTTP/1.1\r\n"), ("headers", b"host: a\r\n"), ("empty line", b"\r\n")]
    picture = viz.wire([*request, ("body", "é \0$".encode()), ("headers", b"z" * 100)])
    assert len(named(picture, "byte ")) == 16 + 9 + 2 + 5 + 100
    looks = [faces(picture, f"byte {at}")[0] for at in (0, 15, 16, 25, 27, 32)]
    assert looks[0] == looks[1] != looks[2] == looks[5]
    assert len(set(looks)) == 4
    rows = [named(picture, f"byte {at}")[0].get_y() for at in (0, 16, 25, 27, 131)]
    assert rows == sorted(set(rows)), "a long line is continued in another row"
    assert {"c3", "a9", "·", "\\r", "\\n", "00", "$"} <= set(texts(picture))
    numbers = viz.wire([("text", b"x" * 8), ("numbers", np.array([13, 700, -1], "<i4"))])
    assert named(numbers, "byte 8")[0].get_width() == pytest.approx(4 * named(numbers, "byte 0")[0].get_width())
    assert {"13", "700", "-1"} <= set(texts(numbers))


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_decoder_counts_the_parameters_of_each_family(family: str) -> None:
    hf = tiny_config(family, attention_bias=True, architectures=[f"{family.capitalize()}ForCausalLM"])
    oracle = transformers.AutoModelForCausalLM.from_config(hf)
    alt = viz.decoder(ModelConfig.from_hf_config(hf)).alt
    assert f"{sum(parameter.numel() for parameter in oracle.parameters()):,} together" in alt


def test_the_decoder_has_the_parts_of_attention_in_their_order() -> None:
    picture = viz.decoder(STORY)
    tops = [
        named(picture, f"box {name}")[0].get_y() for name in ("query", "rotate", "K/V cache", "q · every K", "output")
    ]
    assert tops == sorted(set(tops))
    assert sum(text.startswith("[T, Hk=2, D=32]") for text in texts(picture)) == 2
    assert "head 524,288" in viz.decoder(replace(STORY, tie_word_embeddings=False)).alt


def test_attention_worked_out_is_torchs_attention() -> None:
    given = [1.0, 0.3], [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]
    q, k, v = map(torch.tensor, given)
    picture = viz.attention_steps(*given, newest=True)
    out = torch.nn.functional.scaled_dot_product_attention(q[None], k, v)[0].tolist()
    assert picture.alt.endswith(f"the result is [{out[0]:.3f}, {out[1]:.3f}].")
    assert {f"{weight:.3f}" for weight in torch.softmax(k @ q / 2**0.5, 0).tolist()} <= set(texts(picture))
    looks = [faces(picture, f"{name} {row} 0")[0] for name in ("k", "v") for row in (1, 2)]
    assert looks == [ROLES["in_use"].face, ROLES["new"].face] * 2


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_of_a_split_layer_make_it_whole(parts: int) -> None:
    picture = viz.split_layer(STORY, parts)
    kv_heads = "1 K/V head" if parts > 1 else "2 K/V heads"  # with more processes than heads, several have the same
    assert picture.alt.count(f"has {8 // parts} query heads and {kv_heads}") == parts
    for name, side in {"q_proj": "width", "gate_proj": "width", "o_proj": "height", "down_proj": "height"}.items():
        sizes = [getattr(named(picture, f"{name} {part}")[0], f"get_{side}")() for part in range(parts)]
        assert sizes == pytest.approx([sizes[0]] * parts)


def test_partial_sums_of_a_split_product_are_those_of_its_columns_and_rows() -> None:
    rng = np.random.default_rng(0)
    x, first, second = rng.normal(size=4), rng.normal(size=(4, 6)), rng.normal(size=(6, 3))
    picture = viz.split_product(x, first, second, 3)
    sums = (*(x @ first[:, 2:4] @ second[2:4]), *(x @ first @ second))
    assert {f"{value:.2f}".replace("-", "\u2212") for value in sums} <= set(texts(picture))
    columns = {int(str(shape.get_gid()).split()[3]) for shape in named(picture, "first 1 ")}
    rows = {int(str(shape.get_gid()).split()[2]) for shape in named(picture, "second 1 ")}
    assert columns == rows == {2, 3}


@pytest.mark.parametrize(
    ("where", "parts"),
    [
        ((), set()),
        (0, set()),
        (1, {"everywhere"}),
        (["model", "attention"], {"model", "attention"}),
        (5, {"rows", "slots"}),
        (19, {"radix tree", "slots"}),
        ("07", {"attention"}),
    ],
)
def test_parts_of_the_map_are_marked_by_name_and_by_notebook(where: Any, parts: set[str]) -> None:
    assert {str(shape.get_gid()).removeprefix("here ") for shape in named(viz.engine_map(where), "here ")} == parts
