"""The picture of a split layer: each process has its columns, rows and heads, by the rules that the engine splits with."""

from dataclasses import replace

import pytest

pytest.importorskip("matplotlib")

from nanoinfer import viz
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.loader import resolve_model_path
from tests.helpers.pictures import assert_readable, named, texts

STORY = ModelConfig.from_pretrained(resolve_model_path("story"))  # 8 query heads, 2 K/V heads, 448 columns in the MLP


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_of_a_matrix_make_it_whole_and_each_process_has_its_heads(parts: int) -> None:
    picture = viz.split_layer(STORY, parts, title="T", caption="C.")
    assert_readable(picture)
    assert len(named(picture, "q head ")) == 8
    assert len(named(picture, "K/V head ")) == max(2, parts), (
        "with more processes than K/V heads, several have the same"
    )
    for name, side in {"q_proj": "width", "gate_proj": "width", "o_proj": "height", "down_proj": "height"}.items():
        shapes = [named(picture, f"{name} {part}")[0] for part in range(parts)]
        sizes = [getattr(shape, f"get_{side}")() for shape in shapes]
        assert sizes == pytest.approx([sizes[0]] * parts)
        starts = sorted(shape.get_x() for shape in shapes)
        if side == "width":
            assert [start - starts[0] for start in starts] == pytest.approx([i * sizes[0] for i in range(parts)])
    assert len([text for text in texts(picture) if text == "sum"]) == 2


def test_its_words_say_who_has_what() -> None:
    alt = viz.split_layer(STORY, 2).alt
    assert "process 1 has 4 query heads and 1 K/V head, and 224 of 448 MLP columns" in alt
    assert "Of q, k and v, process 0 has 192 of 384 columns." in alt


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parts=5: must be an integer, 1\.\.4"):
        viz.split_layer(STORY, 5)
    with pytest.raises(ValueError, match="must divide the model's 8 query heads"):
        viz.split_layer(STORY, 3)
    with pytest.raises(ValueError, match="config: must be ModelConfig, got str"):
        viz.split_layer("story", 2)  # type: ignore[arg-type]


def test_a_wide_model_has_room() -> None:
    wide = replace(STORY, hidden_size=8192, intermediate_size=28672, num_attention_heads=64, num_key_value_heads=8)
    assert_readable(viz.split_layer(replace(wide, head_dim=128), 4, title="T", caption="C."))
