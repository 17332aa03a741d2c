"""Weights of a checkpoint: shards, and how every tensor that is missing, surplus or misshaped is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from nanoinfer import LLM, WeightMismatchError
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.loader import load_model
from nanoinfer.model.random_model import random_model
from nanoinfer.model.weights import load_weights
from nanoinfer.sessions.inference import InferenceEngine
from tests.helpers.checkpoints import FAMILIES, REMOVED, edited, greedy, save_checkpoint
from tests.helpers.loading import (
    PROMPT,
    Checkpoint,
    Oracle,
    Tensors,
    check_same_model,
    rewritten,
    shard,
    tokens_of,
)


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("qwen2", True)])
def test_a_sharded_checkpoint_is_the_same_model(family: str, tied: bool, tmp_path: Path, oracle: Oracle) -> None:
    path = save_checkpoint(tmp_path / "sharded", family, max_shard_size="20KB", tie_word_embeddings=tied)
    assert len(list(path.glob("*.safetensors"))) > 3
    assert tokens_of(path) == greedy(oracle(path), PROMPT, 6)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "sharded", max_shard_size="20KB")
    gone = sorted(path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=gone.name):
        LLM(path)


@pytest.mark.parametrize("dtype", ["float32", REMOVED])
def test_shards_without_an_index_are_found_by_their_names(
    dtype: object, checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    source = save_checkpoint(tmp_path / "sharded", max_shard_size="40KB")
    path = edited(source, tmp_path / "copy", dtype=dtype)
    (path / "model.safetensors.index.json").unlink()
    (path / "consolidated.safetensors").write_bytes(b"the same in another format")
    assert tokens_of(path) == greedy(oracle(source), PROMPT, 6)
    shards = sorted(path.glob("model-*.safetensors"))
    for gone in (shards[1], shards[-1]):
        gone.unlink()
    with pytest.raises(FileNotFoundError, match=f"no {shards[1].name}, {shards[-1].name} there"):
        LLM(path)


@pytest.mark.parametrize("name", ["pytorch_model.safetensors", "model.fp32.safetensors"])
def test_one_file_may_have_any_name(name: str, checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "named")
    (path / "model.safetensors").rename(path / name)
    (path / "model-Q4.gguf").write_bytes(b"GGUF")
    assert tokens_of(path) == greedy(oracle(checkpoint("llama")), PROMPT, 6)


def test_two_files_with_the_same_tensors_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "two")
    shutil.copy(path / "model.safetensors", path / "model.fp32.safetensors")
    (path / "model.safetensors").rename(path / "model.fp16.safetensors")
    with pytest.raises(WeightMismatchError, match=r": in both model\.fp16\.safetensors and model\.fp32\.safetensors"):
        LLM(path)


@pytest.mark.parametrize("size", [0, 5, 1000, -1])
def test_a_file_cut_short_is_named(size: int, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "short")
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[:size])
    with pytest.raises(WeightMismatchError, match=r"short/model\.safetensors"):
        LLM(path)


def test_missing_surplus_and_misshaped_tensors_are_all_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        del tensors["model.layers.1.self_attn.k_proj.weight"], tensors["lm_head.weight"]
        tensors["model.layers.3.mlp.up_proj.weight"] = torch.zeros(96, 64)
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
        tensors["model.layers.2.self_attn.v_proj.weight"] = torch.zeros(64, 32)
        tensors["model.layers.2.input_layernorm.weight"] = torch.zeros(64, 1)

    path = rewritten(checkpoint("llama"), tmp_path / "bad", change)
    with pytest.raises(WeightMismatchError) as caught:
        LLM(path)
    problems = dict(problem.split(": ", 1) for problem in str(caught.value).removeprefix(f"{path}: ").split("; "))
    assert {name: problem.split()[0].strip(",") for name, problem in problems.items()} == {
        "model.layers.1.self_attn.k_proj.weight": "missing",
        "lm_head.weight": "missing",
        "model.layers.3.mlp.up_proj.weight": "surplus",
        "model.layers.0.self_attn.q_proj.bias": "surplus",
        "model.layers.2.self_attn.v_proj.weight": "shape",
        "model.layers.2.input_layernorm.weight": "shape",
    }


def to_int8(tensors: Tensors) -> None:
    """Quantized weights whose config does not say so would be read as nonsense."""
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name].to(torch.int8)


def repeat_the_norm(tensors: Tensors) -> None:
    tensors["norm.weight"] = tensors["model.norm.weight"].clone()


@pytest.mark.parametrize(
    ("change", "name"), [(to_int8, "model.layers.1.mlp.down_proj.weight"), (repeat_the_norm, "model.norm.weight")]
)
def test_a_tensor_of_whole_numbers_or_under_two_names_is_named(
    change: Callable[[Tensors], None], name: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    with pytest.raises(WeightMismatchError, match=name):
        LLM(rewritten(checkpoint("llama"), tmp_path / "bad", change))


def test_a_single_file_goes_before_an_index(checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path) -> None:
    """As in transformers: an index may be left over from before the shards were merged."""
    path = edited(checkpoint("llama"), tmp_path / "both")
    index = {"weight_map": {"model.norm.weight": "gone.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert tokens_of(path) == greedy(oracle(path), PROMPT, 6)


def test_nothing_is_written_into_a_model_that_a_checkpoint_does_not_fit(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = ModelConfig.from_pretrained(checkpoint("llama"))
    model = LlamaForCausalLM(config, 16, torch.float32, torch.device("cpu"))
    for parameter in model.parameters():
        parameter.data.fill_(7.0)
    bad = rewritten(checkpoint("llama"), tmp_path / "bad", lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(WeightMismatchError):
        load_weights(model, bad)
    assert all(bool((parameter == 7.0).all()) for parameter in model.parameters())
    load_weights(model, checkpoint("llama"))
    assert not any(bool((parameter == 7.0).any()) for parameter in model.parameters())


@pytest.mark.parametrize("in_another_shard", [False, True])
def test_a_tied_checkpoint_may_store_the_head_again(
    in_another_shard: bool, checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    source = checkpoint("llama", tie_word_embeddings=True)
    path = edited(source, tmp_path / "tied")
    tensors = load_file(path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    shard(path, *((tensors, head) if in_another_shard else (tensors | head,)))
    assert tokens_of(path) == greedy(oracle(source), PROMPT, 6)


def other_head(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_tied_checkpoint_with_another_head_keeps_it(
    family: str, checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    """As in transformers: it takes the config to be wrong, and warns."""
    source = checkpoint(family, tie_word_embeddings=True)
    path = rewritten(source, tmp_path / "untied", other_head)
    assert not load_model(path).config.tie_word_embeddings
    check_same_model(path, oracle(path))
    assert tokens_of(path) != tokens_of(source)


def test_a_tied_checkpoint_may_store_the_head_alone(checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path) -> None:
    def rename(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    source = checkpoint("qwen3", tie_word_embeddings=True)
    path = rewritten(source, tmp_path / "head", rename)
    check_same_model(path, oracle(path))
    assert tokens_of(path) == tokens_of(source)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_of_a_base_model_is_the_model_with_its_embedding_as_head(
    family: str, checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    """LlamaModel and others name their tensors without `model.`"""
    source = checkpoint(family, tie_word_embeddings=True)
    AutoModel.from_pretrained(source).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"][0].endswith("Model")
    assert "embed_tokens.weight" in load_file(tmp_path / "model.safetensors")
    check_same_model(tmp_path, oracle(source))


def test_a_base_model_whose_head_is_not_tied_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """transformers would make up a random one."""
    AutoModel.from_pretrained(checkpoint("llama")).save_pretrained(tmp_path)
    with pytest.raises(WeightMismatchError, match=r"lm_head\.weight: missing; a base model.* cannot generate$"):
        LLM(tmp_path)


def test_stored_rotary_frequencies_are_ignored(checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    path = rewritten(checkpoint("llama"), tmp_path / "old", change)
    assert tokens_of(path) == greedy(oracle(checkpoint("llama")), PROMPT, 6)


# --- random weights, made in memory for timing ------------------------------------------------------------------------

SHAPE = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}


def first_logits(seed: int, kernels: str = "torch") -> torch.Tensor:
    model = random_model(kernels=kernels, seed=seed, **SHAPE)
    return InferenceEngine(model).extend(torch.arange(10).numpy())[0]


def test_the_same_seed_gives_the_same_model() -> None:
    first, again, other = first_logits(1), first_logits(1), first_logits(2)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert torch.allclose(first_logits(1, kernels="auto"), first, atol=1e-4)
