"""Checkpoints of the Hub that were quantized before: their weights are what the format's own package, or plain numpy, makes
of them, and the model's tokens are those of transformers with these weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nanoinfer import LLM, SamplingParams
from nanoinfer.errors import UnsupportedModelError, WeightMismatchError
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.layers.int4_weights import Int4Weights
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.loader import load_model
from nanoinfer.model.weights import checkpoint_targets, load_weights
from tests.helpers.checkpoints import edited, greedy, save_checkpoint

Tensors = dict[str, torch.Tensor]
# A weight → its tensors, and the weight that they stand for.
Way = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
PROMPT = [5, 6, 7, 8, 9]


def groups_of(weight: torch.Tensor, size: int, bits: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whole numbers 0..2**bits - 1 [out, in], scales [out, groups] float16 and zero points [out, groups]."""
    grouped = weight.numpy().reshape(len(weight), -1, size)
    top = 2**bits - 1
    if symmetric:
        scale = np.abs(grouped).max(2) * 2 / top
        zero = np.full_like(scale, (top + 1) // 2)
    else:
        scale = (grouped.max(2) - grouped.min(2)) / top
        zero = np.round(-grouped.min(2) / scale)
    scale = scale.astype(np.float16)
    q = np.clip(np.round(grouped / scale[..., None].astype(np.float32)) + zero[..., None], 0, top)
    return q.reshape(weight.shape).astype(np.int64), scale, zero.astype(np.int64)


def meant(q: np.ndarray, scale: np.ndarray, zero: np.ndarray, group: np.ndarray) -> torch.Tensor:
    weight = np.empty(q.shape, np.float32)
    for (o, i), number in np.ndenumerate(q):
        weight[o, i] = np.float32(scale[o, group[i]]) * np.float32(number - zero[o, group[i]])
    return torch.tensor(weight)


def words(numbers: np.ndarray, bits: int) -> torch.Tensor:
    """[n, k · (32 / bits)] → [n, k]: each word has its numbers from the lowest bits on."""
    parts = numbers.reshape(len(numbers), -1, 32 // bits).astype(np.uint32)
    packed = np.zeros(parts.shape[:2], np.uint32)
    for i in range(32 // bits):
        packed |= parts[:, :, i] << np.uint32(i * bits)
    return torch.tensor(packed.view(np.int32))


def gptq(size: int, symmetric: bool = True, shuffled: bool = False, version: int = 1, bits: int = 4) -> Way:
    def store(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        q, scale, zero = groups_of(weight, size, bits, symmetric)
        group = np.arange(q.shape[1]) // size
        if shuffled:  # as with desc_act: which inputs are a group is arbitrary
            group = np.random.default_rng(0).permutation(group)
        if version == 1:
            zero = np.maximum(zero, 1)  # it cannot store a zero point of 0
        tensors = {
            "qweight": words(q, bits).T,
            "qzeros": words((zero - (version == 1)).T, bits),
            "scales": torch.tensor(scale.T),
            "g_idx": torch.tensor(group, dtype=torch.int32),
            "bias": torch.zeros(len(q), dtype=torch.float16),
        }
        return tensors, meant(q, scale, zero, group)

    return store


def awq(size: int) -> Way:
    def store(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        q, scale, zero = groups_of(weight, size, 4, symmetric=False)

        def packed(numbers: np.ndarray) -> torch.Tensor:  # [n, out]
            return words(numbers.reshape(len(numbers), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(numbers.shape), 4)

        tensors = {"qweight": packed(q.T), "qzeros": packed(zero.T), "scales": torch.tensor(scale.T)}
        return tensors, meant(q, scale, zero, np.arange(q.shape[1]) // size)

    return store


def compressed(layout: str, **weights: Any) -> Way:
    """By the format's own package, whose `decompress` says what is meant."""
    strategy, size, block = weights["strategy"], weights.get("group_size"), weights.get("block_structure")

    def store(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        from compressed_tensors import BaseCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from compressed_tensors.quantization.utils import calculate_qparams

        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
        compressor = BaseCompressor.get_value_from_registry(layout)
        rows, columns = weight.shape
        height, width = {"tensor": (rows, columns), "channel": (1, columns), "group": (1, size)}.get(strategy) or block
        cells = weight.reshape(rows // height, height, columns // width, width)
        scale, zero = calculate_qparams(cells.amin((1, 3)), cells.amax((1, 3)), scheme.weights)
        scale = scale.bfloat16().float()  # as files have them
        if strategy == "tensor":
            scale, zero = scale.reshape(1), zero.reshape(1)
        state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        tensors = compressor.compress(state, scheme)
        return tensors, compressor.decompress(dict(tensors), scheme)["weight"].float()

    return store


def fp8(block: int | None, scale_name: str) -> Way:
    def store(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        height, width = (block, block) if block else (1, weight.shape[1])
        cells = weight.reshape(len(weight) // height, height, -1, width)
        scale = cells.abs().amax((1, 3)) / 448
        q = (cells / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        tensors = {"weight": q.reshape(weight.shape), scale_name: scale, "input_scale": torch.ones(())}
        return tensors, (q.float() * scale[:, None, :, None]).reshape(weight.shape)

    return store


def ct(layout: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": groups, "ignore": ["lm_head"]}


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
BLOCKS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [32, 16]}
COMPRESSED = {  # layout, and what is said of the weights
    "w4a16": ("pack-quantized", INT4),
    "w4a16 asymmetric": ("pack-quantized", {**INT4, "symmetric": False}),
    "w8a16": ("pack-quantized", INT8),
    "w8a8": ("int-quantized", INT8),
    "fp8 per tensor": ("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"}),
    "fp8 per block": ("float-quantized", BLOCKS),
}
CASES: dict[str, tuple[Way, dict[str, Any]]] = {
    "gptq": (gptq(32), {"quant_method": "gptq", "bits": 4, "group_size": 32}),
    "gptq asymmetric": (gptq(64, symmetric=False), {"quant_method": "gptq", "bits": 4, "sym": False}),
    "gptq desc_act": (gptq(32, shuffled=True), {"quant_method": "gptq", "bits": 4, "desc_act": True}),
    "gptq version 2": (gptq(32, False, version=2), {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}),
    "gptq of 8 bits": (gptq(64, bits=8), {"quant_method": "gptq", "bits": 8}),
    "awq": (awq(32), {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}),
    "fp8 of DeepSeek and Qwen": (fp8(32, "weight_scale_inv"), {"quant_method": "fp8", "weight_block_size": [32, 32]}),
    "fbgemm_fp8": (fp8(None, "weight_scale"), {"quant_method": "fbgemm_fp8"}),
    **{name: (compressed(layout, **said), ct(layout, **said)) for name, (layout, said) in COMPRESSED.items()},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("plain") / "model", intermediate_size=128, num_hidden_layers=2)


def quantized(plain: Path, target: Path, way: Way, config: dict[str, Any]) -> Tensors:
    """Write a quantized copy of the checkpoint `plain` to `target`. Returns the weights that it stands for."""
    edited(plain, target, quantization_config=config)
    stored, stands_for = {}, {}
    for name, tensor in load_file(target / "model.safetensors").items():
        layer, _, kind = name.rpartition(".")
        if not layer.endswith("_proj") or kind != "weight":
            stored[name] = stands_for[name] = tensor
            continue
        parts, stands_for[name] = way(tensor)
        stored |= {f"{layer}.{part}": value.contiguous() for part, value in parts.items()}
    save_file(stored, target / "model.safetensors")
    return stands_for


def tokens_of(path: Path) -> list[int]:
    params = SamplingParams(temperature=0, max_new_tokens=12, ignore_eos=True)
    return LLM(path).generate([PROMPT], params)[0].token_ids


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_that_the_format_means(case: str, plain: Path, tmp_path: Path) -> None:
    way, config = CASES[case]
    wanted = quantized(plain, tmp_path / "model", way, config)
    network = LlamaForCausalLM(ModelConfig.from_pretrained(tmp_path / "model"), 64, torch.float32, torch.device("cpu"))
    load_weights(network, tmp_path / "model")
    for name, target in checkpoint_targets(network).items():
        torch.testing.assert_close(target.parameter[target.start : target.end], wanted[name], rtol=1e-6, atol=0)


@pytest.mark.parametrize("case", ["gptq desc_act", "awq", "fp8 per block"])
def test_tokens_are_those_of_transformers_with_these_weights(case: str, plain: Path, tmp_path: Path) -> None:
    way, config = CASES[case]
    wanted = quantized(plain, tmp_path / "model", way, config)
    model = transformers.AutoModelForCausalLM.from_pretrained(plain).eval()
    model.load_state_dict(wanted)
    assert tokens_of(tmp_path / "model") == greedy(model, PROMPT, 12)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("case", "stays"), [("gptq", True), ("w4a16", True), ("gptq asymmetric", False), ("w8a16", False)]
)
def test_four_bits_stay_as_they_are_where_ours_say_exactly_the_same(
    case: str, stays: bool, plain: Path, tmp_path: Path
) -> None:
    wanted = quantized(plain, tmp_path / "model", *CASES[case])
    weights = load_model(tmp_path / "model").model.model.layers[0].mlp.down_proj.weights
    assert isinstance(weights, Int4Weights) == stays
    unit = torch.eye(128)  # its products are the weights' columns
    torch.testing.assert_close(
        weights.multiply(unit).T, wanted["model.layers.0.mlp.down_proj.weight"], rtol=1e-5, atol=0
    )
    asked = load_model(tmp_path / "model", dtype="float32").model.model.layers[0].mlp.down_proj.weights
    assert not isinstance(asked, Int4Weights)


def test_a_file_beside_the_config_says_that_a_checkpoint_is_of_gptq(plain: Path, tmp_path: Path) -> None:
    way, config = CASES["gptq"]
    quantized(plain, tmp_path / "model", way, config)
    with_config = tokens_of(tmp_path / "model")
    edited(tmp_path / "model", tmp_path / "other", quantization_config=None)
    (tmp_path / "other" / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32}))
    assert tokens_of(tmp_path / "other") == with_config


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method='bitsandbytes'"),
        ({"quant_method": "gptq", "bits": 3}, "bits=3"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version='gemv'"),
        (ct("nvfp4-pack-quantized", num_bits=4), "format='nvfp4-pack-quantized'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    config: dict[str, Any], named: str, plain: Path, tmp_path: Path
) -> None:
    edited(plain, tmp_path / "model", quantization_config=config)
    with pytest.raises(UnsupportedModelError, match=named):
        LLM(tmp_path / "model")


def test_a_weight_without_its_scales_is_refused_by_name(plain: Path, tmp_path: Path) -> None:
    quantized(plain, tmp_path / "model", *CASES["awq"])
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.scales"]
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    with pytest.raises(WeightMismatchError, match=r"layers\.1\.mlp\.up_proj\.qweight"):
        LLM(tmp_path / "model")
