"""What is read from config.json (plainly, or by transformers, with the same result) and generation_config.json."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from nanoinfer import LLM, SamplingParams, UnsupportedModelError
from nanoinfer.llm import make_engine
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.families import find_family
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.loader import load_model
from nanoinfer.model.plain_config import MUST_SAY, SIZES, read_plain_config
from nanoinfer.model.rope import RopeScaling
from nanoinfer.registry import MODEL_FAMILIES
from tests.helpers.checkpoints import FAMILIES, MOE_FAMILIES, REMOVED, edited, tiny_config
from tests.helpers.families import LINEAR_ROPE, LLAMA3, YARN_ROPE
from tests.helpers.loading import GREEDY, PROMPT, Checkpoint, Oracle, check_same_model, tokens_of


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"sliding_window": 3}),
        ("llama", {"layer_types": ["sliding_attention"] * 3, "sliding_window": 3}),
        ("mistral", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {"attention_bias": True, "mlp_bias": True}),
        ("qwen3", {"mlp_bias": True, "sliding_window": 3}),
        ("gemma3", {"attn_logit_softcapping": 0.1, "hidden_act": "relu"}),
        ("phi3", {"attention_bias": True, "mlp_bias": True}),
    ],
)
def test_a_key_that_the_family_does_not_read_changes_nothing(
    family: str, changes: dict[str, object], checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    path = edited(checkpoint(family), tmp_path / "stray", **changes)
    assert tokens_of(path) == greedy_without_cache(oracle(path))
    assert tokens_of(path) == tokens_of(checkpoint(family))


@torch.no_grad()
def greedy_without_cache(model: transformers.PreTrainedModel) -> list[int]:
    """`greedy` computed anew for every token: the K/V cache of transformers follows a stray window, its Llama does not."""
    tokens = list(PROMPT)
    for _ in range(GREEDY.max_new_tokens):
        tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


UNSAID = {name: value for name, value in LLAMA3.items() if name != "original_max_position_embeddings"}
OLD = {"rope_parameters": REMOVED, "dtype": REMOVED, "torch_dtype": "float32", "rope_theta": 500.0}
GEMMA = {**OLD, "layer_types": REMOVED, "sliding_window_pattern": 3, "rope_local_base_freq": 30.0}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("family", "changes", "fields"),
    [
        ("llama", {**OLD, "rope_scaling": None}, {"rope_theta": 500.0}),
        (
            "llama",
            {**OLD, "rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rope_scaling": RopeScaling("linear", factor=4.0)},
        ),
        (
            "llama",  # the original context is the model's
            {**OLD, "rope_scaling": {"rope_type": "llama3", **UNSAID}, "max_position_embeddings": 64},
            {"rope_scaling": RopeScaling("llama3", **UNSAID, original_max_position_embeddings=64)},
        ),
        (
            "gemma3",  # a theta for far and one for near, a scaling for far
            {**GEMMA, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            {"sliding_windows": (5, 5, None), "rope_theta": 500.0, "local_rope_theta": 30.0},
        ),
        # Newer ones (Ministral), for which transformers has another class.
        ("mistral", {"layer_types": LAYERS, "sliding_window": 3}, {"sliding_windows": (3, None, 3)}),
    ],
)
def test_older_and_newer_ways_to_say_it_are_read_as_transformers_reads_them(
    family: str,
    changes: dict[str, object],
    fields: dict[str, object],
    checkpoint: Checkpoint,
    oracle: Oracle,
    tmp_path: Path,
) -> None:
    path = edited(checkpoint(family), tmp_path / "other", **changes)
    config = ModelConfig.from_pretrained(path)
    assert {name: getattr(config, name) for name in fields} == fields
    check_same_model(path, oracle(path))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("inside", [64, REMOVED])
@pytest.mark.parametrize("rope", [{"rope_type": "llama3", **LLAMA3}, YARN_ROPE, LINEAR_ROPE], ids=str)
def test_an_original_context_beside_the_rope_goes_before_the_one_in_it(
    family: str, inside: object, rope: dict[str, object], checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    """As transformers reads it when it builds the model: not for linear, which needs none."""
    said = {**rope, "rope_theta": 500.0, "original_max_position_embeddings": inside}
    said = {name: value for name, value in said.items() if value is not REMOVED}
    beside: dict[str, object] = {"original_max_position_embeddings": 24}
    new = edited(checkpoint(family), tmp_path / "new", rope_parameters=said, **beside)
    check_same_model(new, oracle(new))
    old = edited(checkpoint(family), tmp_path / "old", **OLD, rope_scaling=said, **beside)
    assert ModelConfig.from_pretrained(old) == ModelConfig.from_pretrained(new)


@pytest.mark.parametrize(
    ("stored", "asked", "served"),
    [
        ("float32", None, torch.float32),
        ("bfloat16", None, torch.bfloat16),
        ("float32", "bfloat16", torch.bfloat16),
        ("float32", torch.bfloat16, torch.bfloat16),
        ("float32", "float16", torch.float16),
        ("bfloat16", "float32", torch.float32),
    ],
)
def test_dtype_is_the_checkpoints_unless_asked_for(
    stored: str, asked: str | torch.dtype | None, served: torch.dtype, checkpoint: Checkpoint
) -> None:
    path = checkpoint("qwen2", dtype=stored)
    llm = LLM(path, dtype=asked, max_total_tokens=64)
    assert llm.model.dtype == served
    assert {parameter.dtype for parameter in llm.model.model.parameters()} == {served}
    pool = llm.engine.model_runner.token_to_kv_pool
    assert pool.get_key_buffer(2).dtype == pool.get_value_buffer(0).dtype == served
    assert len(llm.generate(PROMPT, GREEDY)[0].token_ids) == 6
    [weight] = [w for name, w in load_file(path / "model.safetensors").items() if name == "model.embed_tokens.weight"]
    assert torch.equal(llm.model.model.model.embed_tokens.weight, weight.to(served))


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_a_config_without_dtype_leaves_it_to_the_weights(stored: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("qwen2", dtype=stored), tmp_path / "unsaid", dtype=REMOVED)
    assert ModelConfig.from_pretrained(path).dtype is None
    assert load_model(path).dtype == getattr(torch, stored)
    assert load_model(path, dtype="float16").dtype == torch.float16


@pytest.mark.parametrize("as_list", [False, True])
def test_an_end_token_of_generation_config_stops(as_list: bool, checkpoint: Checkpoint, tmp_path: Path) -> None:
    expected = tokens_of(checkpoint("llama"))
    last = next(i for i in range(1, 6) if expected[i] not in expected[:i])
    path = edited(checkpoint("llama"), tmp_path / "eos", eos_token_id=2)
    eos: object = [319, expected[last]] if as_list else expected[last]
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    llm = LLM(path, max_total_tokens=64)
    assert llm.engine.builder.eos_token_ids == ({319, expected[last]} if as_list else {expected[last]})
    out = llm.generate(PROMPT, SamplingParams(max_new_tokens=6, temperature=0))[0]
    assert (out.token_ids, out.finish_reason) == (expected[: last + 1], "stop")
    out = llm.generate(PROMPT, GREEDY)[0]
    assert (out.token_ids, out.finish_reason) == (expected, "length")


@pytest.mark.parametrize(
    ("config", "generation_config", "expected"),
    [
        (7, None, (7,)),
        ([7, 8], None, (7, 8)),
        (7, {}, (7,)),
        (7, {"eos_token_id": None}, (7,)),
        (7, {"eos_token_id": 0}, (0,)),
        (0, None, (0,)),
        (None, None, ()),
        (None, {"eos_token_id": [4, 5]}, (4, 5)),
    ],
)
def test_end_tokens_come_from_generation_config_before_config(
    config: object, generation_config: object, expected: tuple[int, ...], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint("llama"), tmp_path / "eos", eos_token_id=config)
    (path / "generation_config.json").unlink()
    if generation_config is not None:
        (path / "generation_config.json").write_text(json.dumps(generation_config))
    assert ModelConfig.from_pretrained(path).eos_token_ids == expected


def test_a_tokenizer_gives_the_end_token_that_the_configs_do_not(story: LLM) -> None:
    assert story.tokenizer is not None
    unsaid = dataclasses.replace(story.model, config=dataclasses.replace(story.model.config, eos_token_ids=()))
    small = dataclasses.replace(story.config, max_total_tokens=64)
    assert make_engine(unsaid, small).builder.eos_token_ids == {story.tokenizer.eos_token_id}


# --- config.json read plainly ----------------------------------------------------------------------------------------

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
        return ModelConfig.from_hf_config(transformers.AutoConfig.from_pretrained(path))
    except Exception:
        return None


def read_here(path: Path) -> ModelConfig | None:
    try:
        return ModelConfig.from_pretrained(path)
    except UnsupportedModelError:
        return None


@pytest.mark.parametrize("family", [*FAMILIES, *MOE_FAMILIES])
@pytest.mark.parametrize("kind", FILES)
def test_a_file_without_one_of_its_keys_is_the_model_that_transformers_makes_of_it(
    family: str, kind: str, tmp_path: Path
) -> None:
    content = FILES[kind](family)
    assert read_here(written(tmp_path, content)) == read_by_transformers(tmp_path) is not None
    if family in PLAIN and kind != "required":
        assert read_plain_config(tmp_path / "config.json") is not None
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
