"""Mixtures of experts: who goes to which expert, products by expert in C++, and passes that are recorded."""

import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from nanoinfer import LLM, SamplingParams
from nanoinfer.errors import AdapterError, WeightMismatchError
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.kernels import TorchKernels
from nanoinfer.model.layers.int4_weights import Int4Weights
from nanoinfer.model.layers.linear import Linear
from nanoinfer.model.layers.linear_weights import DenseWeights, LinearWeights
from nanoinfer.model.loader import load_model
from nanoinfer.model.lora.peft_files import read_adapter
from nanoinfer.model.qwen_moe import MoeConfig, SparseMoeBlock
from nanoinfer.registry import QUANTIZATIONS
from tests.helpers.adapters import MIXED, PROMPTS, merged, outputs, save_adapter, three_adapters
from tests.helpers.checkpoints import MOE_FAMILIES, tiny_config
from tests.helpers.kernels import CPU, DTYPES, assert_close, need_cpp, random
from tests.helpers.peft_models import adapt, check_equal, network_of
from tests.helpers.split_models import split_llm

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("rows", "experts", "top_k"), [(1, 1, 1), (5, 6, 2), (40, 17, 17), (0, 4, 2)])
def test_tokens_are_sorted_by_expert(dtype: torch.dtype, normalized: bool, rows: int, experts: int, top_k: int) -> None:
    """numpy chooses; equal logits go to the first of the experts."""
    x, logits = random(rows, 24, dtype=dtype), random(rows, experts, dtype=dtype, seed=1).mul(4).round().div(2)
    weights = torch.softmax(logits.double(), dim=1).numpy()
    for kernels in (need_cpp(dtype), TorchKernels()):
        found = kernels.dispatch(x, logits, top_k, normalized)
        starts, places = found.starts.tolist(), found.places.numpy()
        assert sorted(places.ravel().tolist()) == list(range(rows * top_k))
        assert starts[0] == 0
        assert starts[-1] == rows * top_k
        assert torch.equal(found.x[found.places.long()], x[:, None].expand(-1, top_k, -1))
        for token in range(rows):
            chosen = np.argsort(-weights[token], kind="stable")[:top_k]
            assert (np.searchsorted(starts, places[token], side="right") - 1).tolist() == chosen.tolist()
            wanted = weights[token][chosen]
            np.testing.assert_allclose(found.weights[token], wanted / (wanted.sum() if normalized else 1), rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_in_a_token_is_that_tokens_alone(dtype: torch.dtype) -> None:
    x, logits = random(3, 8, dtype=dtype), random(3, 5, dtype=dtype, seed=1)
    logits[1, 2] = torch.nan
    found = need_cpp(dtype).dispatch(x, logits, 2, True)
    assert found.weights.isnan().any(dim=1).tolist() == [False, True, False]
    assert sorted(found.places.flatten().tolist()) == list(range(6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [16, 24, 130])
def test_outputs_are_added_up_by_their_weights(dtype: torch.dtype, size: int) -> None:
    kernels, y, shared, gate = need_cpp(dtype), *(random(n, w, dtype=dtype) for n, w in ((15, size), (5, size), (5, 1)))
    dispatched = kernels.dispatch(random(5, size, dtype=dtype), random(5, 4, dtype=dtype, seed=1), 3, False)
    wanted = torch.zeros(5, size, dtype=torch.float64)
    for k in range(3):
        wanted += y[dispatched.places[:, k].long()].double() * dispatched.weights[:, k, None]
    both = wanted + shared.double() * torch.sigmoid(gate.double())
    for each in (kernels, TorchKernels()):
        assert_close(each.combine(y, dispatched), wanted.to(dtype))
        assert_close(each.combine(y, dispatched, shared, gate), both.to(dtype))


@cache
def block(quantization: str | None, dtype: torch.dtype, with_cpp: bool = True) -> SparseMoeBlock:
    """A random SparseMoeBlock with a shared expert, packed."""
    kernels = need_cpp(dtype) if with_cpp else TorchKernels()
    changes = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 45, "hidden_size": 72}
    config = ModelConfig.from_hf_config(
        tiny_config("qwen2_moe", architectures=["Qwen2MoeForCausalLM"], norm_topk_prob=False, **changes)
    )
    assert isinstance(config, MoeConfig)
    made = SparseMoeBlock(config, dtype, CPU)
    for i, (name, module) in enumerate(made.named_modules()):
        if hasattr(module, "kernels"):
            module.kernels = kernels
        if isinstance(module, Linear):
            shape = module.out_features, module.in_features
            module.weight = nn.Parameter(random(*shape, dtype=dtype, seed=i) / 8, requires_grad=False)
            module.pack(kernels, quantization, name)
    return made


def two_kinds(*arguments: Any) -> LinearWeights:
    return (DenseWeights if "experts.0." in arguments[-1] else Int4Weights)(*arguments)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("quantization", [None, "int8", "int4", "two kinds"])
def test_experts_in_cpp_are_those_in_torch(
    quantization: str | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a checkpoint has only some of them in few bits."""
    monkeypatch.setitem(QUANTIZATIONS, "two kinds", two_kinds)
    for rows in (0, 1, 3, 50):
        x = random(rows, 72, dtype=dtype)
        found, wanted = block(quantization, dtype)(x), block(quantization, dtype, with_cpp=False)(x)
        if rows:
            error = (found.float() - wanted.float()).abs().max() / wanted.float().abs().max()
            assert error < (0.02 if dtype is torch.bfloat16 else 1e-5 if quantization is None else 1e-3)
        assert found.shape == wanted.shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@settings(max_examples=15)
@given(rows=st.lists(st.integers(0, 39), min_size=1, max_size=60))
def test_a_tokens_bits_do_not_depend_on_the_tokens_beside_it(
    quantization: str | None, dtype: torch.dtype, rows: list[int]
) -> None:
    """However many of them go to the same experts."""
    x = random(40, 72, dtype=dtype)
    assert torch.equal(block(quantization, dtype)(x[rows]), block(quantization, dtype)(x)[rows])


@pytest.mark.parametrize(
    ("family", "quantization"),
    [*((family, None) for family in MOE_FAMILIES), ("qwen2_moe", "int8"), ("qwen2_moe", "int4")],
)
def test_recorded_passes_have_the_bits_of_others(family: str, quantization: str | None, checkpoint: Checkpoint) -> None:
    """In a recorded pass tokens go to other experts than in the pass in which it was recorded."""
    need_cpp("float32")
    recorded, eager = (
        LLM(checkpoint(family), capture=capture, max_total_tokens=256, quantization=quantization)
        for capture in (True, False)
    )
    params = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True, logprobs=2)
    found, wanted = (llm.generate(PROMPTS, params, use_tqdm=False) for llm in (recorded, eager))
    assert [(out.token_ids, out.logprobs) for out in found] == [(out.token_ids, out.logprobs) for out in wanted]
    assert recorded.engine.stats().capture == "yes"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_router_is_never_quantized(quantization: str, checkpoint: Checkpoint) -> None:
    layers: Any = load_model(checkpoint("qwen2_moe"), quantization=quantization).model.model.layers
    experts = layers[0].mlp
    assert isinstance(experts.gate.weights, DenseWeights)
    assert isinstance(experts.shared_expert_gate.weights, DenseWeights)
    assert not isinstance(experts.experts[5].down_proj.weights, DenseWeights)


def test_adapters_add_to_all_but_experts(checkpoint: Checkpoint) -> None:
    """The oracle: models into which the adapters are merged."""
    path = checkpoint("qwen3_moe")
    folders = three_adapters(path)
    models = {name: LLM(merged(path, folder), max_total_tokens=256) for name, folder in folders.items()}
    found = outputs(LLM(path, max_total_tokens=512, adapters=folders))
    for prompt, name, out in zip(PROMPTS, MIXED, found, strict=True):
        (wanted,) = outputs(models[name] if name else LLM(path, max_total_tokens=256), [prompt], [None])
        assert out.token_ids == wanted.token_ids


@pytest.mark.filterwarnings("ignore")  # PEFT warns that it takes parameters for modules
def test_pefts_adapters_are_read_where_they_add_to_no_expert(
    checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    path, attention = checkpoint("qwen3_moe"), ["q_proj", "v_proj"]
    for name, family, modules in (("a", path, attention), ("b", checkpoint("qwen2_moe"), "all-linear")):
        model = adapt(oracle(family), target_modules=modules)
        model.save_pretrained(tmp_path / name)
        check_equal(model, read_adapter(tmp_path / name, network_of(family)))
    adapt(oracle(path), target_modules="all-linear").save_pretrained(tmp_path / "c")
    with pytest.raises(AdapterError, match=r"target_parameters=.*gate_up_proj.*: is not supported"):
        read_adapter(tmp_path / "c", network_of(path))


def test_an_adapter_of_experts_is_refused_by_name(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = checkpoint("qwen3_moe")
    folder = save_adapter(tmp_path / "adapter", load_model(path).model)
    tensors = load_file(folder / "adapter_model.safetensors")
    name = "base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_A.weight"
    save_file({**tensors, name: torch.zeros(4, 64)}, folder / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match=rf"{re.escape(name)}: surplus, experts cannot have adapters"):
        LLM(path, adapters={"one": folder})


def test_experts_cannot_be_split_and_are_refused_by_name(checkpoint: Checkpoint) -> None:
    message = "tensor_parallel_size=2: must be 1, Qwen3MoeForCausalLM cannot be split"
    with pytest.raises(ValueError, match=message), split_llm(checkpoint("qwen3_moe"), 2):
        pass


def test_mixtrals_tensors_are_missed_by_the_names_that_they_have_in_checkpoints(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = shutil.copytree(checkpoint("mixtral"), tmp_path / "mixtral")
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.1.block_sparse_moe.experts.4.w3.weight"
    del tensors[name]
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(WeightMismatchError, match=f"{re.escape(name)}: missing"):
        load_model(path)
