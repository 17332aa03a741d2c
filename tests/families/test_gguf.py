"""GGUF files of tiny random models of every family: tokens and log-probabilities are those of transformers on the weights
that the files stand for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.layers.int4_weights import Int4Weights
from nanoinfer.model.layers.linear import Linear
from nanoinfer.model.loader import load_model
from tests.helpers.checkpoints import greedy
from tests.helpers.families import LINEAR_ROPE, LLAMA3_ROPE, YARN_ROPE
from tests.helpers.gguf_files import rounded, write_gguf
from tests.helpers.loading import PROMPT, check_same_model, tokens_of
from tests.helpers.rows import compare_all_passes

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]

LLAMA31_ROPE = {**LLAMA3_ROPE, "original_max_position_embeddings": 8192}  # as in all its checkpoints
GEMMA = {"query_pre_attn_scalar": 16}  # a file has no other than the size of a head
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama-tied-biases": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 24}),
    "llama-rope-llama3": ("llama", {"rope_parameters": LLAMA31_ROPE, "head_dim": 32}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"rope_parameters": LINEAR_ROPE}),
    "qwen3": ("qwen3", {"rope_parameters": YARN_ROPE, "head_dim": 24}),
    "gemma3": ("gemma3", {**GEMMA, "final_logit_softcapping": 0.2}),
    "phi3": ("phi3", {"sliding_window": 5}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gguf_file_gives_what_transformers_gives_for_the_checkpoint(
    variant: str, checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    family, changes = VARIANTS[variant]
    path = checkpoint(family, **changes)
    file = write_gguf(path, tmp_path / "model.gguf")
    expected = ModelConfig.from_pretrained(path)
    if family == "mistral":
        expected = replace(expected, architecture="LlamaForCausalLM")
    assert ModelConfig.from_pretrained(file) == replace(expected, dtype=None)
    check_same_model(file, oracle(path))


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *(("llama", kind) for kind in (Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.Q5_1, Kind.BF16, Kind.F16)),
        *((family, Kind.Q8_0) for family in ("qwen3", "gemma3", "phi3")),
    ],
)
def test_quantized_matrices_are_decoded_to_what_they_stand_for(
    family: str, kind: Kind, checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    path = checkpoint(family, **(GEMMA if family == "gemma3" else {}))
    file = write_gguf(path, tmp_path / "model.gguf", kind)
    expected = oracle(rounded(path, tmp_path / "rounded", kind))
    assert tokens_of(file, dtype="float32") == greedy(expected, PROMPT, 6)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(Kind.F32, torch.float32), (Kind.F16, torch.float16), (Kind.Q5_0, torch.bfloat16)]
)
def test_numbers_are_decoded_to_the_file_s_dtype(
    kind: Kind, dtype: torch.dtype, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    assert load_model(write_gguf(checkpoint("llama"), tmp_path / "model.gguf", kind)).dtype == dtype


@pytest.mark.parametrize(
    ("family", "changes", "kind"),
    [
        ("llama", {"tie_word_embeddings": True, "attention_bias": True}, Kind.Q4_0),
        ("gemma3", GEMMA, Kind.Q4_1),
        ("phi3", {}, Kind.Q4_0),
    ],
)
def test_weights_in_4_bits_are_used_as_they_are(
    family: str,
    changes: dict[str, object],
    kind: Kind,
    checkpoint: Checkpoint,
    oracle: Oracle,
    tmp_path: Path,
) -> None:
    path = checkpoint(family, **changes)
    file, same = write_gguf(path, tmp_path / "model.gguf", kind), rounded(path, tmp_path / "rounded", kind)
    loaded = load_model(file, kernels="torch")
    assert loaded.dtype == torch.bfloat16
    network, stored = load_model(same, kernels="torch").model, 0
    for name, module in loaded.model.named_modules():
        if isinstance(module, Linear):
            assert isinstance(module.weights, Int4Weights)
            minimum = 0 if module.weights.minimum is None else module.weights.minimum.float()[..., None]
            matrix = module.weights.whole * module.weights.scale.float()[..., None] + minimum
            assert torch.equal(matrix.flatten(1), network.get_submodule(name).weights.packed.float())
            stored += 1
    assert stored == 4 * loaded.config.num_hidden_layers + 1
    compare_all_passes(load_model(file), oracle(same), page_size=1, relative=0.1)


def test_what_is_asked_for_is_made_of_the_decoded_weights(
    checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "model.gguf", Kind.Q4_1)
    same = rounded(checkpoint("llama"), tmp_path / "rounded", Kind.Q4_1)
    for options in ({"dtype": "bfloat16"}, {"dtype": "float32", "quantization": "int8"}):
        assert tokens_of(file, **options) == tokens_of(same, **options)
