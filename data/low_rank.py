"""Low-rank adapters (LoRA) for training: the layers, and the two files of PEFT's format.

Beside a frozen weight W [out, in] stand two small matrices A [rank, in] and B [out, rank]. The layer computes
W x + (alpha / rank) B A x. (Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021)
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

CONFIG = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "base_model_name_or_path": "story",
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_bias": False,
    "lora_dropout": 0.0,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "rank_pattern": {},
    "revision": None,
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}
"""`adapter_config.json` as PEFT 0.21 writes it, without what `Shape` says."""


@dataclass(frozen=True)
class Shape:
    """Which projections of every layer an adapter changes, and how much it may change them."""

    rank: int
    alpha: int
    modules: tuple[str, ...]


class LowRankLinear(nn.Module):
    """A frozen linear layer and what is added to its output. At first this is nothing, because B is zero."""

    def __init__(self, base: nn.Linear, shape: Shape) -> None:
        super().__init__()
        self.base, self.scale = base, shape.alpha / shape.rank
        self.lora_A = nn.Parameter(torch.empty(shape.rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, shape.rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] → [..., out]."""
        return self.base(x) + self.scale * functional.linear(functional.linear(x, self.lora_A), self.lora_B)


def attach(model: nn.Module, shape: Shape) -> dict[str, nn.Parameter]:
    """Freeze `model` and replace the linear layers that `shape` names, in place.

    Returns:
        The new matrices under the names that they have in PEFT's file.
    """
    model.requires_grad_(False)
    found = [(name, part) for name, part in model.named_modules() if name.rpartition(".")[2] in shape.modules]
    matrices = {}
    for name, linear in found:
        layer = LowRankLinear(linear, shape)
        model.set_submodule(name, layer)
        for letter, matrix in (("A", layer.lora_A), ("B", layer.lora_B)):
            matrices[f"base_model.model.{name}.lora_{letter}.weight"] = matrix
    return matrices


@torch.no_grad()
def load(matrices: dict[str, nn.Parameter], folder: Path) -> None:
    """Fill the matrices, in place, from what `save` wrote for the same shape."""
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        matrices[name].copy_(tensor)


def save(matrices: dict[str, nn.Parameter], shape: Shape, folder: Path) -> int:
    """Write the two files of PEFT's format to `folder`; returns their size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | {"r": shape.rank, "lora_alpha": shape.alpha, "target_modules": sorted(shape.modules)}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    tensors = {name: matrix.detach().contiguous() for name, matrix in matrices.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    for file in folder.iterdir():
        file.chmod(0o644)
    return sum(file.stat().st_size for file in folder.iterdir())
