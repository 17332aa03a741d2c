"""Random adapters on disk, in PEFT's format, and a mixed batch of requests that use them."""

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import load_model
from nanoinfer.model.lora.peft_files import read_adapter
from nanoinfer.model.lora.projections import projections

Name = str | None
NAMES = ("small", "large", "some")
PARAMS = SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True, logprobs=4)
PROMPTS = [[5, 6, 7, 8, 9], [5, 6, 7, 8, 10, 11], [5, 6, 7, 8, 9], [40, 41, 42], [5, 6, 7, 8, 9], [9] * 20]
MIXED: list[Name] = ["small", "large", None, "some", "large", "small"]


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


@cache
def three_adapters(checkpoint: Path) -> dict[str, Path]:
    """Random adapters of a tiny checkpoint, beside it, made once: `small` and `large` of all projections, of ranks 1 and 9,
    and `some` of two projections, of rank 4."""
    network = load_model(checkpoint, kernels="torch").model
    folder = checkpoint.with_name(f"{checkpoint.name}-adapters")
    value = "qkv_proj" if any("qkv_proj" in name for name in projections(network)) else "v_proj"
    return {
        "small": save_adapter(folder / "small", network, 1, rank=1),
        "large": save_adapter(folder / "large", network, 2, rank=9, use_rslora=True),
        "some": save_adapter(folder / "some", network, 3, ends=[value, "down_proj"]),
    }


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


def outputs(llm: LLM, prompts: Sequence[list[int]] = PROMPTS, names: Sequence[Name] = MIXED) -> list[Any]:
    """What the prompts come to together; by default the mixed batch."""
    return llm.generate(prompts, PARAMS, use_tqdm=False, adapter=list(names))


def alone(llm: LLM, prompt: list[int], name: Name) -> list[dict[int, float]]:
    """The log-probabilities of one request alone, with an empty cache."""
    llm.engine.flush_cache()
    (output,) = llm.generate(prompt, PARAMS, adapter=name)
    assert output.cached_tokens == 0
    assert output.logprobs is not None
    return output.logprobs
