"""The picture of a pass with adapters: rows, tiles, the matrices they read, the outputs that something is added to."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.patches import Polygon

from nanoinfer import LLM, SamplingParams, viz
from nanoinfer.viz.palette import BARS
from tests.helpers.adapters import save_adapter
from tests.helpers.pictures import assert_readable, faces, named, texts

PARAMS = SamplingParams(max_new_tokens=2, ignore_eos=True)
NAMES = ("small", "large")
QKV = "model.layers.0.self_attn.qkv_proj"


@pytest.fixture
def llm(tmp_path: Path) -> LLM:
    """The bundled model with two adapters that are on the device: one of q and v, one of everything."""
    made = LLM("story", max_total_tokens=256)
    network = made.model.model
    made.load_adapter("small", save_adapter(tmp_path / "small", network, 1, 2, ["q_proj", "v_proj"]))
    made.load_adapter("large", save_adapter(tmp_path / "large", network, 2, 8))
    for name in NAMES:
        made.generate([5, 6], PARAMS, adapter=name)
    made.engine.flush_cache()
    return made


def extend(llm: LLM, *requests: tuple[int, str | None]) -> None:
    """One EXTEND pass of prompts with these lengths and adapters."""
    for i, (length, adapter) in enumerate(requests):
        llm.engine.add_request([9 + i] * length, PARAMS, adapter=adapter)
    llm.engine.step()


def test_rows_are_in_tiles_and_what_is_added_is_coloured(llm: LLM) -> None:
    extend(llm, (1, "large"), (1, None), (8, "small"), (1, "large"))
    picture = viz.adapter_rows(llm.engine, QKV)
    assert len(named(picture, "tile 0 row")) == 6
    assert len(named(picture, "tile 1 row")) == 2
    assert len(named(picture, "tile 2 row")) == 2
    assert [len(faces(picture, f"tile {tile} row {row}")) for tile, row in ((0, 2), (1, 8), (2, 0), (2, 10))] == [1] * 4
    assert faces(picture, "tile 0 row 2") == faces(picture, "row 2") == [BARS[0].face]
    assert faces(picture, "tile 2 row 0") == faces(picture, "row 0") == [BARS[1].face]
    assert len(named(picture, "A small")) == 2 * 2, "of q and v, in two tiles"
    assert len(named(picture, "B large")) == 3
    assert faces(picture, "output 2 q") == faces(picture, "output 2 v") == [BARS[0].face]
    assert not named(picture, "output 2 k")
    assert not named(picture, "output 1 ")
    q, k = named(picture, "output 0 q")[0], named(picture, "output 0 k")[0]
    assert q.get_width() == pytest.approx(4 * k.get_width()), "as wide as it has outputs"
    assert {"q: 8 × 256, 256 × 8", "v: 2 × 256, 64 × 2", "not to scale"} <= set(texts(picture))
    assert {"row 1 has no adapter: it is in no tile", "row 1: nothing"} <= set(texts(picture))
    assert picture.alt == (
        "11 rows in 3 tiles: small for rows 2, 3, 4, 5, 6, 7, added to q (rank 2), v (rank 2); small for rows 8, 9, added "
        "to q (rank 2), v (rank 2); large for rows 0, 10, added to q (rank 8), k (rank 8), v (rank 8). Without an "
        "adapter: row 1."
    )
    assert_readable(picture)


def test_a_ribbon_goes_from_neighbours_to_their_place_in_a_tile(llm: LLM) -> None:
    extend(llm, (2, "large"), (1, None), (8, "small"), (1, "large"))
    picture = viz.adapter_rows(llm.engine, QKV)
    ribbons = [each for each in picture.findobj(Polygon) if len(each.get_xy()) == 5]
    assert len(ribbons) == 4, "two rows, six and two of one adapter, and one by itself"
    ends = [sorted(y for x, y in each.get_xy()[:4] if x == max(x for x, _ in each.get_xy())) for each in ribbons]
    pitch = named(picture, "tile 0 row 4")[0].get_y() - named(picture, "tile 0 row 3")[0].get_y()
    thin = min(high - low for low, high in ends)
    assert sorted(round((high - low - thin) / pitch) for low, high in ends) == [0, 1, 1, 5]


def test_an_adapter_that_adds_nothing_to_a_layer_is_drawn_without_matrices(llm: LLM) -> None:
    extend(llm, (2, "small"), (24 - 2 - 1, "large"), (1, None))
    picture = viz.adapter_rows(llm.engine, "model.layers.1.mlp.down_proj", title="T", caption="C.")
    assert not named(picture, "A small")
    assert len(named(picture, "A large down")) == 4
    assert {"T", "C.", "small adds nothing to this layer"} <= set(texts(picture))
    assert "small for rows 0, 1, added to nothing" in picture.alt
    assert_readable(picture)


@pytest.mark.parametrize(
    ("before", "layer", "problem"),
    [
        (lambda llm: None, QKV, "no pass"),
        (lambda llm: extend(llm, (3, None)), QKV, "no request of its last pass has an adapter"),
        (lambda llm: extend(llm, (25, "large")), QKV, "its last pass has 25 rows; at most 24 can be drawn"),
        (
            lambda llm: extend(llm, (2, "large")),
            "lm_head",
            "layer='lm_head': must be a linear layer that adapters may add",
        ),
        (lambda llm: extend(llm, (2, "large")), "q_proj", "layer='q_proj': must be a linear layer"),
    ],
)
def test_what_cannot_be_drawn_is_refused(llm: LLM, before: Callable[[LLM], None], layer: str, problem: str) -> None:
    llm.engine.last_batch = None
    before(llm)
    with pytest.raises(ValueError, match=problem):
        viz.adapter_rows(llm.engine, layer)
