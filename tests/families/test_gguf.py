"""GGUF files of tiny random models of every family: tokens and log-probabilities are those of transformers on the weights
that the files stand for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gguf import gguf_tensors
from nanoinfer.model.layers.grouped_weights import GroupedWeights
from nanoinfer.model.layers.linear import Linear
from nanoinfer.model.loader import load_model
from nanoinfer.model.weights import checkpoint_targets
from tests.helpers.any_decoder import expected_of, save_any
from tests.helpers.checkpoints import greedy
from tests.helpers.families import LINEAR_ROPE, LLAMA3_ROPE, YARN_ROPE
from tests.helpers.gguf_files import rounded, write_gguf
from tests.helpers.kernels import need_cpp
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
    "qwen3_moe": ("qwen3_moe", {"mlp_only_layers": []}),
    "qwen2_moe": ("qwen2_moe", {"norm_topk_prob": False}),
    "olmoe": ("olmoe", {"norm_topk_prob": False}),
    "mixtral": ("mixtral", {"sliding_window": None}),
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
    [*(("llama", kind) for kind in (Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.Q5_1)), ("gemma3", Kind.Q8_0)],
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


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_groups_stand_for_the_decoded_matrix(kind: Kind, checkpoint: Checkpoint, tmp_path: Path) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "model.gguf", kind)
    for name, tensor in gguf_tensors(file, checkpoint_targets(load_model(file).model)).items():
        if tensor.kind == kind:
            groups = {part: numbers.float() for part, numbers in tensor.few_bits()[1].items()}
            matrix = groups["whole"] * groups["scale"][..., None] + groups.get("minimum", torch.zeros(1, 1))[..., None]
            assert torch.equal(matrix.flatten(1), tensor.read()), name


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("family", "changes", "kind"),
    [
        ("llama", {"tie_word_embeddings": True, "attention_bias": True}, Kind.Q4_0),
        ("gemma3", GEMMA, Kind.Q4_1),
        ("phi3", {}, Kind.Q8_0),
        ("qwen3_moe", {"mlp_only_layers": [], "moe_intermediate_size": 64}, Kind.Q4_0),
    ],
)
def test_weights_in_few_bits_are_used_as_they_are(
    family: str,
    changes: dict[str, object],
    kind: Kind,
    checkpoint: Checkpoint,
    oracle: Oracle,
    tmp_path: Path,
) -> None:
    need_cpp("bfloat16")
    path = checkpoint(family, **changes)
    loaded = load_model(write_gguf(path, tmp_path / "model.gguf", kind))
    linear = [module.weights for module in loaded.model.modules() if isinstance(module, Linear)]
    assert all(isinstance(weights, GroupedWeights) for weights in linear)
    compare_all_passes(loaded, oracle(rounded(path, tmp_path / "rounded", kind)), page_size=1, relative=0.1)


@pytest.mark.parametrize(("name", "kind"), [("stablelm", Kind.F32), ("nemotron", Kind.Q8_0)])
def test_a_file_of_an_architecture_that_only_transformers_knows_runs_on_its_network(
    name: str, kind: Kind, tmp_path: Path
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    save_any(folder, name, {})
    file = write_gguf(folder, tmp_path / "model.gguf", kind)
    same = rounded(folder, tmp_path / "rounded", kind)
    expected = expected_of(transformers.AutoModelForCausalLM.from_pretrained(same, attn_implementation="eager").eval())
    llm = LLM(file, dtype="float32", max_total_tokens=512)
    assert llm.model.implementation.name == "transformers"
    params = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True, prompt_logprobs=True)
    for out, each in zip(llm.generate([each.prompt for each in expected], params), expected, strict=True):
        assert out.token_ids == each.tokens
        assert out.prompt_logprobs[1:] == pytest.approx(each.prompt_logprobs, abs=1e-3)
    llm.shutdown()


def test_what_is_asked_for_is_made_of_the_decoded_weights(
    checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    file = write_gguf(checkpoint("llama"), tmp_path / "model.gguf", Kind.Q4_1)
    same = rounded(checkpoint("llama"), tmp_path / "rounded", Kind.Q4_1)
    for options in ({"dtype": "bfloat16"}, {"dtype": "float32", "quantization": "int8"}):
        assert tokens_of(file, **options) == tokens_of(same, **options)
