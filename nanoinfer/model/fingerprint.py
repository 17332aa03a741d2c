"""Fingerprint of a model: what must be the same in two processes so that they compute the same K/V, to the last bit."""

import os
import platform
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nanoinfer.model.kernels.build import cpu_features, library
from nanoinfer.model.kernels.select import selection_of
from nanoinfer.model.layers.linear import Linear, quantization_of
from nanoinfer.model.loader import LoadedModel

# Fields of a ModelConfig that say what is done with K/V's results, or are about the file.
NOT_OF_KV = ("eos_token_ids", "dtype", "max_position_embeddings", "logit_softcap", "logit_scale")
PIECE_BYTES = 16 << 20  # hashed by one thread at a time


def model_fields(model: LoadedModel, attention_backend: object, kv_cache_dtype: str | None = None) -> dict[str, str]:
    """The fields of a fingerprint (see engine/tiers.py) that are the model's and its kernels'.

    It reads all weights once, which takes about a second for each gigabyte and core.
    """
    config = model.config
    described = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in NOT_OF_KV}
    ranks = 1 if model.split is None else model.split.size  # which of them it is, its weights tell
    return {
        "weights": weights_digest(model.model),
        "config": "; ".join(f"{name}={value!r}" for name, value in described.items()),
        "dtype": str(model.dtype),
        "kv_cache_dtype": str(kv_cache_dtype or "plain"),
        "quantization": str(quantization_of(model.model)),
        "source": source_digest(model.model),
        "ranks": str(ranks),
        "kernels": kernels_of(model, attention_backend),
    }


def kernels_of(model: LoadedModel, attention_backend: object) -> str:
    """Which arithmetic computes K/V. Other instructions, or other threads, may add in another order, and come to other
    bits; our own kernels do not mind how many threads there are, or what else is computed in the same pass.

    torch's kernels do mind what else is computed: with them, K/V of a prefix has the bits of the pass that computed it,
    whether it stays in the pool or comes back. Environment variables that change torch's libraries (`MKL_CBWR`,
    `ONEDNN_MAX_CPU_ISA`) are not looked at.
    """
    names = [selection_of(getattr(model.model, "kernels", model.model)).name, selection_of(attention_backend).name]
    parts = [*names, f"torch {torch.__version__}", platform.machine(), model.device.type]
    if model.device.type == "cpu":
        parts += [torch.backends.cpu.get_cpu_capability(), sha256(cpu_features().encode()).hexdigest()]
    elif (accelerator := getattr(torch, model.device.type, None)) is not None:
        parts += [accelerator.get_device_name(model.device), str(getattr(torch.version, model.device.type, None))]
    if "cpp" in names:
        parts.append(Path(library()._name).name)  # it tells source, flags, processor, compiler and content
    torch_computes = names != ["cpp", "cpp"] or model.implementation.name != "nanoinfer"
    if torch_computes or quantization_of(model.model).reason:
        parts += [f"{torch.get_num_threads()} threads", f"{torch.get_float32_matmul_precision()} precision"]
    return ", ".join(parts)


def source_digest(network: object) -> str:
    """SHA-256 of the code that computes K/V: whoever changes a model's code must not get what the old code computed."""
    package = Path(__file__).parent.parent
    files = [file for folder in ("cache", "model") for file in sorted((package / folder).rglob("*.py"))]
    families = {getattr(sys.modules.get(cls.__module__), "__file__", None) for cls in type(network).__mro__}
    files += [
        Path(file)
        for file in sorted(filter(None, families))
        if Path(file).is_file() and "torch" not in Path(file).parts
    ]
    return sha256(b"\n".join(file.read_bytes() for file in dict.fromkeys(files))).hexdigest()


def weights_digest(network: nn.Module) -> str:
    """SHA-256 over names, shapes, dtypes and bytes of all parameters and buffers of `network`, and of what its linear
    layers have made of theirs (packed, perhaps quantized)."""
    described = []
    with ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1))) as pool:
        for name, tensor in _weights(network):
            described.append(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            described += pool.map(lambda piece: sha256(piece.numpy()).digest(), _pieces(tensor))
    return sha256(b"\n".join(described)).hexdigest()


def _weights(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """By name; what is shared comes once."""
    yield from network.named_parameters()
    yield from network.named_buffers()
    for path, module in network.named_modules():
        kept: dict[str, Any] = vars(module.weights) if isinstance(module, Linear) and module.weights is not None else {}
        yield from ((f"{path}.{name}", value) for name, value in kept.items() if isinstance(value, torch.Tensor))


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The bytes of a tensor, on the host."""
    plain = tensor.to_dense() if tensor.is_mkldnn else tensor
    if plain.numel():
        yield from plain.detach().cpu().contiguous().view(-1).view(torch.uint8).split(PIECE_BYTES)
