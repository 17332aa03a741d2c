"""Reads an adapter in PEFT's format, a folder with adapter_config.json and adapter_model.safetensors. Like a checkpoint, it
is read strictly: every tensor must be used, and every targeted projection must have both of its tensors."""

import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from nanoinfer.adapters.peft_config import EMBEDDINGS, MERGE, AdapterConfig, shown
from nanoinfer.adapters.projections import LowRank, Projection, projections
from nanoinfer.errors import AdapterError
from nanoinfer.model.other_formats import PICKLED, pointer_problem

BUNDLED_ADAPTERS = ("rhymes", "sea")  # of the story model
CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"
# PEFT's name of a tensor. Early versions also put the adapter's name into it, which is "default" unless one was given.
TENSOR_NAME = re.compile(r"base_model\.model\.(.+\.lora_[AB])(?:\.default)?\.weight")


def read_adapter(path: str | Path, network: nn.Module) -> dict[str, LowRank]:
    """What the adapter in the folder `path` adds to which of `network`'s projections, by their names (see `projections`).
    `~` is the home directory. The tensors are copies: the files may change afterwards.

    Nothing is returned unless all of it is right. AdapterError ("adapter 'path': ...") if a file is missing or damaged, if
    the config asks for something that is not supported, or naming every tensor that is missing, surplus, of another shape,
    not floating-point or not finite.
    """
    if not isinstance(path, str | Path):
        raise AdapterError(f"adapter {path!r}: must be the path of a folder, got {type(path).__name__}")
    folder = Path(os.path.expanduser(path))
    try:
        _check_folder(folder)
        config = AdapterConfig.parse((folder / CONFIG_FILE).read_bytes())
        return _read_tensors(folder / TENSORS_FILE, config, _targets(config, projections(network)))
    except (AdapterError, OSError) as error:
        raise AdapterError(f"adapter {str(path)!r}: {error}") from error


def _check_folder(folder: Path) -> None:
    """AdapterError unless `folder` has the two files of an adapter; it says what is there instead."""
    if folder.is_file():
        raise AdapterError(f"is a file; give the folder that it is in, with {CONFIG_FILE} and {TENSORS_FILE}")
    if not folder.is_dir():
        raise AdapterError(
            "no such folder; only local folders are read (hf download NAME --local-dir FOLDER makes one); bundled: "
            f"{', '.join(BUNDLED_ADAPTERS)}"
        )
    config, tensors = folder / CONFIG_FILE, folder / TENSORS_FILE
    if not config.is_file():
        raise AdapterError(f"no {CONFIG_FILE} there")
    if not tensors.is_file():
        pickled = sorted(file.name for file in folder.glob("adapter_model.*") if file.suffix in PICKLED)
        if pickled:
            raise AdapterError(
                f"{pickled[0]} is pickled, and loading such a file can run any code in it, so it is not read; load it "
                f"with peft where you trust it, and save it as {TENSORS_FILE}: save_pretrained(folder)"
            )
        raise AdapterError(f"no {TENSORS_FILE} there")
    if problem := pointer_problem([config, tensors]):
        raise AdapterError(problem)


def _targets(config: AdapterConfig, available: dict[str, Projection]) -> dict[str, Projection]:
    """The projections that the adapter adds to. AdapterError if there are none, or if it targets embeddings, too."""
    kinds = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in available))
    for name in EMBEDDINGS:
        if config.targets(name):
            raise AdapterError(
                f"target_modules={shown(config.target_modules)}: targets {name}; only projections of attention and MLP can "
                f"have an adapter: {kinds}; {MERGE}"
            )
    targeted = {name: projection for name, projection in available.items() if config.targets(name)}
    if not targeted:
        raise AdapterError(
            f"target_modules={shown(config.target_modules)}: targets none of this model's projections (with what else "
            f"{CONFIG_FILE} says); they are {kinds} in each layer{_trained_with(config)}"
        )
    return targeted


def _read_tensors(file: Path, config: AdapterConfig, targets: dict[str, Projection]) -> dict[str, LowRank]:
    shapes = {}
    for name, projection in targets.items():
        shapes[f"{name}.lora_A"] = [config.rank(name), projection.in_features]
        shapes[f"{name}.lora_B"] = [projection.columns, config.rank(name)]
    keys: dict[str, str] = {}  # how the file calls each of them
    read: dict[str, torch.Tensor] = {}
    problems: list[str] = []
    try:
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 (safe_open is not a mapping)
                match = TENSOR_NAME.fullmatch(key)
                if match is None or match[1] not in shapes:
                    problems.append(f"{key}: surplus, {CONFIG_FILE} targets no such projection of this model")
                elif match[1] in keys:
                    problems.append(f"{key}: surplus, the same tensor as {keys[match[1]]}")
                else:
                    keys[match[1]] = key
            for name, shape in shapes.items():
                if name not in keys:
                    problems.append(f"base_model.model.{name}.weight: missing")
                elif problem := _problem(tensors, keys[name], shape):
                    problems.append(f"{keys[name]}: {problem}")
                else:
                    read[name] = tensors.get_tensor(keys[name]).clone()  # the file is mapped into memory
    except SafetensorError as error:
        raise AdapterError(f"{file.name}: is not a complete safetensors file: {error}") from error
    if problems:
        more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise AdapterError("; ".join(problems[:10]) + more + _trained_with(config))
    return {name: LowRank(read[f"{name}.lora_A"], read[f"{name}.lora_B"], config.scale(name)) for name in targets}


def _problem(tensors: safe_open, key: str, shape: list[int]) -> str:
    stored = tensors.get_slice(key)
    if stored.get_dtype() not in ("F64", "F32", "F16", "BF16"):
        return f"{stored.get_dtype()} numbers, must be floating-point"
    if stored.get_shape() != shape:
        return f"shape {stored.get_shape()}, must be {shape}"
    return "" if tensors.get_tensor(key).isfinite().all() else "has numbers that are not finite"


def _trained_with(config: AdapterConfig) -> str:
    base = config.base_model_name_or_path
    return f" (the adapter was trained with {base})" if base else ""
