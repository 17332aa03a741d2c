"""Random LoRA adapters of a checkpoint, written in PEFT's format, so that any engine can load them."""

import json
import re
from math import prod
from pathlib import Path

PROJECTION = re.compile(r"(model\.layers\.\d+\.(?:self_attn|mlp)\.(\w+_proj))\.weight")
SCALE = 2  # alpha / rank
SHARE = 0.1  # of what a projection computes is about what the adapter adds to it


def projection_shapes(path: Path) -> dict[str, tuple[int, int]]:
    """The projections in the layers of the checkpoint in the folder `path`: name → (outputs, inputs). Those that are stored
    as one tensor count as one, as in adapters of such models. ValueError if there are none."""
    from safetensors import safe_open

    shapes = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - it is no mapping
                if (found := PROJECTION.fullmatch(key)) is not None:
                    outputs, inputs = tensors.get_slice(key).get_shape()
                    shapes[found[1]] = (outputs, inputs)
    if not shapes:
        raise ValueError(f"{path}: has no projections named model.layers.0.self_attn.q_proj and so on")
    return shapes


def adapter_parameters(path: Path, rank: int) -> int:
    """How many numbers an adapter of all projections has."""
    return sum(rank * sum(shape) for shape in projection_shapes(path).values())


def make_adapters(path: Path, folder: Path, rank: int, count: int, dtype: str, seed: int = 0) -> dict[str, Path]:
    """Write `count` adapters of the checkpoint `path`, each with other numbers and for all projections, to folders inside
    `folder`. Returns name → folder. ValueError as in `projection_shapes`."""
    import torch
    from safetensors.torch import save_file

    shapes = projection_shapes(path)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": path.name,
        "r": rank,
        "lora_alpha": SCALE * rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in shapes}),
        "bias": "none",
        "inference_mode": True,
    }
    made = {}
    for number in range(count):
        generator = torch.Generator().manual_seed(seed * 1000 + number)

        def draw(shape: tuple[int, int], deviation: float, generator: torch.Generator = generator) -> torch.Tensor:
            return (torch.randn(prod(shape), generator=generator) * deviation).view(shape).to(getattr(torch, dtype))

        tensors = {}
        for name, (outputs, inputs) in shapes.items():
            tensors[f"base_model.model.{name}.lora_A.weight"] = draw((rank, inputs), inputs**-0.5)
            tensors[f"base_model.model.{name}.lora_B.weight"] = draw((outputs, rank), SHARE / SCALE * rank**-0.5)
        name = f"rank{rank}-{number}"
        made[name] = folder / name
        made[name].mkdir(parents=True)
        save_file(tensors, made[name] / "adapter_model.safetensors", {"format": "pt"})
        (made[name] / "adapter_config.json").write_text(json.dumps(config))
    return made
