"""Writes a checkpoint's weights in eight or four bits as compressed-tensors, the format that vLLM reads."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

GROUP = 32  # inputs that share a scale in int4
PER_WORD = 8  # numbers of four bits in an int32


def make_compressed(checkpoint: Path, weights: str) -> Path:
    """Write the folder `CHECKPOINT.int8.compressed` or `CHECKPOINT.int4.compressed`; returns its path.

    int8: one scale per output, and activations that vLLM quantizes per token. int4: one scale per 32 inputs, weights only.
    Embedding, head and norms stay as they are, since vLLM does not read them in this format.
    """
    target = Path(f"{checkpoint}.{weights}.compressed")
    target.mkdir(exist_ok=True)
    for file in checkpoint.glob("*.safetensors"):
        made: dict[str, torch.Tensor] = {}
        for name, tensor in load_file(file).items():
            if name.startswith("model.layers.") and name.endswith("_proj.weight"):
                made.update(_eight_bits(name, tensor) if weights == "int8" else _four_bits(name, tensor))
            else:
                made[name] = tensor
        save_file(made, target / file.name, metadata={"format": "pt"})
    for file in checkpoint.glob("*.json"):
        if not file.name.startswith("model.safetensors"):
            shutil.copy(file, target / file.name)
    config = json.loads((checkpoint / "config.json").read_text())
    config["quantization_config"] = _description(weights)
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return target


def _eight_bits(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """`weight` [out, in] → int8 [out, in] and a scale [out, 1]."""
    scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    return {name: (weight / scale).round().to(torch.int8), f"{name}_scale": scale.to(weight.dtype)}


def _four_bits(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """`weight` [out, in] → int32 [out, in / 8], the first of 8 numbers in the lowest bits, and scales [out, in / 32]."""
    groups = weight.float().view(len(weight), -1, GROUP)
    scale = groups.abs().amax(2, keepdim=True).clamp(min=1e-12) / 7
    numbers = ((groups / scale).round().clamp(-8, 7) + 8).long().view(len(weight), -1, PER_WORD)
    words = (numbers << torch.arange(0, 32, 4)).sum(2)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return {
        f"{name}_packed": words,
        f"{name}_scale": scale[:, :, 0].to(weight.dtype).contiguous(),
        f"{name}_shape": torch.tensor(weight.shape),
    }


def _description(weights: str) -> dict[str, Any]:
    """What the checkpoint's config says about its weights."""
    common: dict[str, Any] = {"type": "int", "symmetric": True}
    of_weights = {"num_bits": 8, "strategy": "channel"} if weights == "int8" else {"num_bits": 4, "strategy": "group"}
    scheme: dict[str, Any] = {"targets": ["Linear"], "weights": {**common, **of_weights, "dynamic": False}}
    if weights == "int8":
        scheme["input_activations"] = {**common, "num_bits": 8, "strategy": "token", "dynamic": True}
    else:
        scheme["weights"]["group_size"] = GROUP
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if weights == "int8" else "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
    }
