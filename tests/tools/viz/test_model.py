"""viz.decoder and viz.heat_map: what they draw and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
import transformers
from matplotlib.patches import Polygon

from nanoinfer import viz
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.loader import load_model, resolve_model_path
from tests.helpers.checkpoints import FAMILIES, tiny_config
from tests.helpers.pictures import assert_readable

ARCHITECTURES = {family: f"{family.capitalize()}ForCausalLM" for family in FAMILIES}


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return ModelConfig.from_pretrained(resolve_model_path("story"))


def texts(picture: viz.Picture) -> list[str]:
    return [text.get_text() for text in picture.axes[0].texts]


def faces(picture: viz.Picture) -> dict[str, tuple[float, ...]]:
    return {patch.get_gid(): patch.get_facecolor() for patch in picture.axes[0].patches if patch.get_gid()}


def test_decoder_shows_the_models_number_of_parameters(config: ModelConfig) -> None:
    parameters = load_model("story").model.num_parameters
    assert f"{parameters:,} together" in viz.decoder(config).alt


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bias", [False, True])
def test_decoder_counts_what_a_family_has_besides(family: str, bias: bool) -> None:
    changes = {"attention_bias": True, "mlp_bias": True} if bias and family == "llama" else {"attention_bias": bias}
    hf = tiny_config(family, **changes)
    hf.architectures = [ARCHITECTURES[family]]
    oracle = transformers.AutoModelForCausalLM.from_config(hf)
    picture = viz.decoder(ModelConfig.from_hf_config(hf))
    assert f"{sum(parameter.numel() for parameter in oracle.parameters()):,} together" in picture.alt
    assert ("gelu(gate) · up" if family == "gemma3" else "silu(gate) · up") in texts(picture)


def test_decoder_draws_norms_of_heads_and_behind_where_a_family_has_them() -> None:
    hf = tiny_config("gemma3", architectures=["Gemma3ForCausalLM"])
    shown = texts(viz.decoder(ModelConfig.from_hf_config(hf)))
    assert shown.count("norm") == 5
    assert "each token looks at itself and those before it; heads of query and key are normed first" in shown


def test_decoder_draws_shapes_in_the_projects_letters(config: ModelConfig) -> None:
    shown = texts(viz.decoder(config))
    assert "[T, H=8, D=32]" in shown
    assert shown.count("[T, Hk=2, D=32]") == 2
    assert "logits [T, 2048]" in shown


def test_query_key_and_value_all_reach_attention(config: ModelConfig) -> None:
    """An arrow ends at each box's left edge: q and both of the cache's at attention, key and value at the cache."""
    picture = viz.decoder(config)
    boxes = {patch.get_gid(): patch for patch in picture.axes[0].patches if patch.get_gid()}
    heads = [patch.get_xy()[0] for patch in picture.axes[0].patches if isinstance(patch, Polygon)]
    arriving = {
        name: sum(
            x == pytest.approx(boxes[f"box {name}"].get_x())
            and boxes[f"box {name}"].get_y() <= y <= boxes[f"box {name}"].get_y() + boxes[f"box {name}"].get_height()
            for x, y in heads
        )
        for name in ("query", "key", "value", "cache", "attend", "output")
    }
    assert arriving == {"query": 1, "key": 1, "value": 1, "cache": 2, "attend": 3, "output": 1}
    assert "query with every cached K, softmax, sum of every cached V → output" in picture.alt


@pytest.mark.parametrize("family", FAMILIES)
def test_the_decoder_of_any_family_is_readable(family: str) -> None:
    hf = tiny_config(family, architectures=[ARCHITECTURES[family]])
    assert_readable(viz.decoder(ModelConfig.from_hf_config(hf)))


def test_an_untied_head_has_parameters_of_its_own(config: ModelConfig) -> None:
    tied, untied = viz.decoder(config), viz.decoder(replace(config, tie_word_embeddings=False))
    assert "shared" in texts(tied)
    assert "shared" not in texts(untied)
    assert "head 524,288" in untied.alt


def test_decoder_refuses_what_is_no_config() -> None:
    with pytest.raises(ValueError, match="config: must be ModelConfig"):
        viz.decoder("story")  # type: ignore[arg-type]


def test_heat_map_is_darker_where_there_is_more() -> None:
    look = faces(viz.heat_map([[0.0, 0.5, 1.0]], ["head 0"], ["a", "b", "c"]))
    brightness = [sum(look[f"cell 0 {column}"][:3]) for column in range(3)]
    assert brightness[0] == 3.0
    assert brightness[0] > brightness[1] > brightness[2]


def test_heat_map_reaches_its_darkest_at_most() -> None:
    values = [[0.1, 0.2, 0.4]]
    look = faces(viz.heat_map(values, ["p"], ["a", "b", "c"], most=0.2))
    assert look["cell 0 1"] == look["cell 0 2"] != look["cell 0 0"]


def test_heat_map_tells_the_largest_of_each_row() -> None:
    picture = viz.heat_map(np.array([[0.25, 0.75], [0.9, 0.1]]), ["head 0", "head 1"], ["<s>", " Lily"])
    assert picture.alt == "head 0: largest at ·Lily, 0.75; head 1: largest at <s>, 0.90."


def test_heat_map_writes_numbers_only_when_asked() -> None:
    values = [[0.31, 0.69]]
    assert "0.31" not in texts(viz.heat_map(values, ["p"], ["a", "b"]))
    assert {"0.31", "0.69"} <= set(texts(viz.heat_map(values, ["p"], ["a", "b"], numbers=True)))


def test_heat_map_of_small_shares_has_three_decimals() -> None:
    assert {"0.021", "0.069"} <= set(texts(viz.heat_map([[0.021, 0.069]], ["p"], ["a", "b"], numbers=True, most=0.1)))


def test_causal_heat_map_has_no_cells_above_its_diagonal() -> None:
    cells = {name for name in faces(viz.heat_map(np.eye(3), "abc", "abc", causal=True)) if name.startswith("cell")}
    assert cells == {f"cell {row} {column}" for row in range(3) for column in range(row + 1)}


@pytest.mark.parametrize(
    ("values", "rows", "columns", "most", "message"),
    [
        ([[0.5]], ["a", "b"], ["c"], 1.0, r"values: shape \[1, 1\], must be \[2, 1\]"),
        ([], [], [], 1.0, "values: shape"),
        ([[1.5]], ["a"], ["b"], 1.0, "must be in 0..1"),
        ([[float("nan")]], ["a"], ["b"], 1.0, "must be in 0..1"),
        ([[0.5]], ["a"], ["b"], 0.0, "most=0.0: must be above 0"),
    ],
)
def test_heat_map_refuses_what_it_cannot_draw(
    values: list[list[float]], rows: list[str], columns: list[str], most: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        viz.heat_map(values, rows, columns, most=most)
