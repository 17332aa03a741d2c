"""Random adapters on disk, in PEFT's format."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nanoinfer.adapters.peft_files import read_adapter
from nanoinfer.adapters.projections import projections
from nanoinfer.model.loader import load_model


def save_adapter(
    folder: Path, network: nn.Module, seed: int = 0, rank: int = 4, ends: Sequence[str] = (), **fields: Any
) -> Path:
    """Save an adapter of `network` to `folder`, with random weights that are large enough to change tokens.

    `ends`: the names of the projections it has; all by default. `fields`: more of its config.
    """
    generator = torch.Generator().manual_seed(seed)
    found = projections(network)
    ends = list(ends) or sorted({name.rpartition(".")[2] for name in found})
    tensors = {}
    for name, projection in found.items():
        if name.rpartition(".")[2] in ends:
            a = torch.randn(rank, projection.in_features, generator=generator) / projection.in_features**0.5
            b = torch.randn(projection.columns, rank, generator=generator) * 0.1
            tensors[f"base_model.model.{name}.lora_A.weight"] = a
            tensors[f"base_model.model.{name}.lora_B.weight"] = b
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "target_modules": ends}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "bias": "none", **fields}))
    return folder


def merged(checkpoint: Path, adapter: Path) -> Path:
    """A copy of a checkpoint, beside the adapter, into whose weights the adapter is merged."""
    network = load_model(checkpoint, torch.float32, kernels="torch").model
    target = adapter.with_name(f"{adapter.name}-merged")
    target.mkdir()
    shutil.copy(checkpoint / "config.json", target)
    weights = load_file(checkpoint / "model.safetensors")
    for name, part in read_adapter(adapter, network).items():
        weights[f"{name}.weight"] += part.scale * (part.b @ part.a)
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target
