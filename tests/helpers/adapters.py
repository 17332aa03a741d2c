"""Random adapters on disk, in PEFT's format."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from nanoinfer.adapters.projections import projections


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
