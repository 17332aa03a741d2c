"""A config.json that is read without transformers says what transformers reads in it; any other file is left to it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from nanoinfer.errors import UnsupportedModelError
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.families import find_family
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.model.plain_config import MUST_SAY, SIZES, read_plain_config
from nanoinfer.registry import MODEL_FAMILIES
from tests.helpers.checkpoints import FAMILIES, tiny_config
from tests.helpers.imports import loaded_by

ROOT = Path(__file__).parents[3]
ARCHITECTURE = {find_family(name).model_type.removesuffix("_text"): name for name in MODEL_FAMILIES}
PLAIN = [family for family in FAMILIES if ARCHITECTURE[family] in MUST_SAY]


def full(family: str) -> dict[str, object]:
    """Everything that transformers writes into the config.json of a small model."""
    config = tiny_config(family, architectures=[ARCHITECTURE[family]], dtype=torch.bfloat16)
    written: dict[str, object] = json.loads(config.to_json_string())
    return written


def hub(family: str) -> dict[str, object]:
    """A model as the files from before transformers 5 have it."""
    old = {**full(family), "rope_theta": 5e4, "rope_scaling": None, "torch_dtype": "bfloat16"}
    if "layer_types" in old:
        old |= {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 2}
    return {key: value for key, value in old.items() if key not in ("rope_parameters", "dtype", "layer_types")}


def required(family: str) -> dict[str, object]:
    """Only what a family cannot be told from its others without; the rest are the defaults of transformers."""
    said = ("architectures", "model_type", *SIZES)
    return {key: value for key, value in full(family).items() if key in said}


FILES = {"full": full, "hub": hub, "required": required}


def written(path: Path, content: object) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(content))
    return path


def read_by_transformers(path: Path) -> ModelConfig | None:
    """None if it is refused."""
    try:
        return ModelConfig.from_hf_config(AutoConfig.from_pretrained(path))
    except Exception:
        return None


def read_here(path: Path) -> ModelConfig | None:
    try:
        return ModelConfig.from_pretrained(path)
    except UnsupportedModelError:
        return None


@pytest.mark.parametrize("family", PLAIN)
@pytest.mark.parametrize("kind", ["full", "hub"])
def test_every_key_that_is_read_plainly_has_the_value_that_transformers_reads(
    family: str, kind: str, tmp_path: Path
) -> None:
    content = FILES[kind](family)
    plain = read_plain_config(written(tmp_path, content) / "config.json")
    assert plain is not None
    config = AutoConfig.from_pretrained(tmp_path)
    read = {
        *SIZES,
        "rms_norm_eps",
        "tie_word_embeddings",
        "eos_token_id",
        "hidden_act",
        *MUST_SAY[ARCHITECTURE[family]],
    }
    for key in read:
        assert getattr(plain, key) == getattr(config, key), key
    assert getattr(torch, plain.dtype) == config.dtype
    for key, value in plain.rope_parameters.items():
        assert config.rope_parameters[key] == value
    assert read_here(tmp_path) == read_by_transformers(tmp_path) is not None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", FILES)
def test_a_file_without_one_of_its_keys_is_the_model_that_transformers_makes_of_it(
    family: str, kind: str, tmp_path: Path
) -> None:
    content = FILES[kind](family)
    assert read_here(written(tmp_path, content)) == read_by_transformers(tmp_path) is not None
    for key in content.keys() - {"architectures", "model_type"}:
        rest = {other: value for other, value in content.items() if other != key}
        assert read_here(written(tmp_path, rest)) == read_by_transformers(tmp_path), key


UNUSUAL: list[object] = [None, True, False, 0, 1, -1, 3, 7, 4.0, "text", "float64", [], [1], [[1]], {}, {"a": 1}]


@pytest.mark.slow
@pytest.mark.parametrize("family", PLAIN)
@pytest.mark.parametrize("kind", ["full", "hub"])
def test_unusual_values_have_the_effect_that_they_have_in_transformers(family: str, kind: str, tmp_path: Path) -> None:
    """Except that transformers refuses an `initializer_range` above 1, which changes nothing for a trained model."""
    content, plainly = FILES[kind](family), 0
    for key in content.keys() | {"rope_parameters", "layer_types", "is_causal", "auto_map", "quantization_config"}:
        for value in UNUSUAL:
            written(tmp_path, {**content, key: value})
            if read_plain_config(tmp_path / "config.json") is None:
                continue
            plainly += 1
            expected = read_by_transformers(tmp_path)
            assert read_here(tmp_path) == expected or key == "initializer_range", (key, value)
    assert plainly > 10


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": []},
        {"architectures": None},
        {"architectures": [["LlamaForCausalLM"]]},
        {"model_type": "mistral"},
        {"auto_map": {"AutoConfig": "my.Config"}},
        {"per_layer_config": {}},
        {"quantization_config": {"bits": 4}},
        {"hidden_size": 63},
        {"head_dim": 15},
        {"num_attention_heads": 0},
        {"eos_token_id": ["</s>"]},
        {"dtype": "float64"},
        {"layer_types": ["sliding_attention"] * 3},
        {"rope_theta": 1e6},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": "1e4", "rope_type": "default"}},
    ],
)
def test_what_is_unusual_is_left_to_transformers(changes: dict[str, object], tmp_path: Path) -> None:
    assert read_plain_config(written(tmp_path, full("llama")) / "config.json") is not None
    assert read_plain_config(written(tmp_path, {**full("llama"), **changes}) / "config.json") is None


@pytest.mark.parametrize("content", ["", "no json", "[]", "null", "\x00"])
def test_a_file_that_is_no_json_object_is_left_to_transformers(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    assert read_plain_config(tmp_path / "config.json") is None


def test_a_family_from_outside_gets_the_object_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    class Mine(LlamaForCausalLM):
        @classmethod
        def read_config(cls, hf: object) -> ModelConfig:
            read.append(type(hf).__name__)
            return super().read_config(hf)

    monkeypatch.setitem(MODEL_FAMILIES, "LlamaForCausalLM", Mine)
    ModelConfig.from_pretrained(written(tmp_path, full("llama")))
    assert read == ["LlamaConfig"]


@pytest.mark.slow
def test_the_bundled_models_config_is_read_without_transformers() -> None:
    path = str(resolve_model_path("story"))
    loaded = loaded_by(f"nanoinfer.model.config as read\nread.ModelConfig.from_pretrained({path!r})", ROOT)
    assert "nanoinfer.model.plain_config" in loaded
    assert not [module for module in loaded if module.split(".")[0] in ("transformers", "huggingface_hub")]
