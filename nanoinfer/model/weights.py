"""Loads parameters from safetensors files, strictly: every tensor must be used and every parameter filled."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from nanoinfer.errors import WeightMismatchError
from nanoinfer.model.layers.linear import FusedLinear
from nanoinfer.model.split import Cut, cut_of


@dataclass(frozen=True)
class Target:
    """Where a checkpoint's tensor, or this process's `cut` of it, goes: to rows `start..end` of a parameter. The tensor
    must have this `shape`."""

    parameter: torch.Tensor
    start: int
    end: int
    cut: Cut | None = None

    @property
    def shape(self) -> list[int]:
        own = [self.end - self.start, *self.parameter.shape[1:]]
        return own if self.cut is None else self.cut.whole_shape(own)

    def fill(self, tensors: safe_open, name: str) -> None:
        """Copy the tensor `name` of an open file to where it goes. Of a cut one, no more is read than is kept."""
        rows = self.parameter[self.start : self.end]
        rows.copy_(tensors.get_tensor(name) if self.cut is None else self.cut.of(tensors.get_slice(name), rows.ndim))


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Fill `model`'s parameters in place from the safetensors files in the directory `path`.

    Raises FileNotFoundError if there are no such files, and WeightMismatchError naming every tensor that is missing,
    surplus or has another shape, or a damaged file. All names and shapes are checked before the first parameter is written.
    """
    files = _checkpoint_files(Path(path))
    targets = checkpoint_targets(model)
    where: dict[str, Path] = {}
    problems: list[str] = []
    surplus: list[str] = []
    for file in files:
        with _open(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118 (safe_open is not a mapping)
                shape, dtype = tensors.get_slice(name).get_shape(), tensors.get_slice(name).get_dtype()
                if name in targets and dtype not in ("F64", "F32", "F16", "BF16"):
                    problems.append(f"{name}: {dtype} numbers, must be floating-point")
                if name in where:
                    problems.append(f"{name}: in both {where[name].name} and {file.name}")
                elif name in targets and shape != targets[name].shape:
                    problems.append(f"{name}: shape {shape}, must be {targets[name].shape}")
                elif name not in targets:
                    surplus.append(name)
                where[name] = file
    problems += [
        f"{name}: surplus, this model has no such parameter" for name in surplus if not _is_redundant(name, where)
    ]
    problems += [f"{name}: missing" for name in targets if name not in where]
    if problems:
        shown = "; ".join(problems[:10]) + (f"; and {len(problems) - 10} more" if len(problems) > 10 else "")
        raise WeightMismatchError(f"{path}: {shown}")
    for file in files:
        with _open(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118
                if name in targets:
                    targets[name].fill(tensors, name)


def checkpoint_targets(model: nn.Module) -> dict[str, Target]:
    """Every tensor name that a checkpoint of `model` must have. A fused parameter has one name for each of its parts."""
    targets = {}
    names = {name for name, _ in model.named_parameters()}  # a tied head is not listed a second time
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix=module_name, recurse=False):
            if name not in names:
                continue
            if not isinstance(module, FusedLinear):
                targets[name] = Target(parameter.data, 0, len(parameter), cut_of(module, ""))
                continue
            parent, kind, start = module_name.rpartition(".")[0], name.rpartition(".")[2], 0
            for part, size in module.parts.items():
                rows = start, start + size
                targets[f"{parent}.{part}.{kind}"] = Target(parameter.data, *rows, cut_of(module, part))
                start += size
    return targets


def _checkpoint_files(path: Path) -> list[Path]:
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    names = [single.name]
    if index.is_file() and not single.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise WeightMismatchError(f"{index}: has no weight_map from tensors to files") from error
    elsewhere = [name for name in names if Path(name).name != name]
    if elsewhere:
        raise WeightMismatchError(f"{index}: file {elsewhere[0]!r} must be in the same folder")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{path}: no {', '.join(missing)} there; only safetensors checkpoints are supported")
    return [path / name for name in names]


def checkpoint_dtype(path: str | Path) -> torch.dtype:
    """The dtype of the first tensor of the checkpoint in the directory `path`, for configs that do not name one."""
    with _open(_checkpoint_files(Path(path))[0]) as tensors:
        return tensors.get_tensor(next(iter(tensors.keys()))).dtype


def _open(file: Path) -> safe_open:
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise WeightMismatchError(f"{file}: is not a complete safetensors file: {error}") from error


def _is_redundant(name: str, where: dict[str, Path]) -> bool:
    """True for what some checkpoints store needlessly: rotary frequencies, and a tied head equal to the embedding."""
    if name.endswith(".rotary_emb.inv_freq"):
        return True
    embedding = "model.embed_tokens.weight"
    if name != "lm_head.weight" or embedding not in where:
        return False
    with _open(where[name]) as head, _open(where[embedding]) as table:
        return torch.equal(head.get_tensor(name), table.get_tensor(embedding))
