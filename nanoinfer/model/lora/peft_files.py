"""Reads an adapter in PEFT's format, a folder with adapter_config.json and adapter_model.safetensors. Like a checkpoint, it
is read strictly: every tensor must be used, and every targeted projection must have both of its tensors.

Patterns select what they select in PEFT 0.21 (tests/property/test_peft_format.py compares them). A setting that changes
what an adapter computes, and that this engine does not have, is refused by its name.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from nanoinfer.errors import AdapterError
from nanoinfer.model.lora.projections import LowRank, Projection, projections
from nanoinfer.model.other_formats import PICKLED, pointer_problem

T = TypeVar("T")

MOST_ALPHA = 1e9  # beyond any use; with much more, what an adapter adds is infinite in float32
ALL_LINEAR = "all-linear"  # as target_modules: every projection
EMBEDDINGS = ("lm_head", "model.embed_tokens")  # PEFT can adapt these, too
MERGE = "merge it into its model with the package peft (merge_and_unload), and load that"

# Fields that say how an adapter was trained or where it comes from, and change nothing about what it computes now.
IRRELEVANT = {
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"),
    *("lora_dropout", "corda_config", "eva_config", "loftq_config", "lora_ga_config", "ensure_weight_tying"),
    *("megatron_core", "qalora_group_size", "runtime_config"),  # read only with fields that are refused, or never saved
}
# Fields that must be null, false or empty: with them, an adapter is something else than low-rank additions to projections.
REFUSED = {
    *("alora_invocation_tokens", "arrow_config", "fan_in_fan_out", "kasa_config", "layer_replication", "lora_bias"),
    *("megatron_config", "modules_to_save", "monteclora_config", "target_parameters", "trainable_token_indices"),
    *("use_bdlora", "use_dora", "use_qalora", "velora_config"),
}
# Ways to begin training. With some, training changed the model's own weights first, so the adapter alone is not all.
HARMLESS_STARTS = (True, False, None, "eva", "gaussian", "mica", "orthogonal")
CHANGED_BASE = ("corda", "loftq", "lora_ga", "olora", "pissa")


@dataclass(frozen=True)
class AdapterConfig:
    """The settings of an adapter, under PEFT's names. A projection's name is its path: `model.layers.0.mlp.up_proj`.

    - `target_modules`, `exclude_modules`: names, each of which means all projections with this path or this end of one;
      or a regular expression for the whole path; or "all-linear". What is excluded is not targeted.
    - `layers_to_transform`: if there are any, only in these layers, except for projections named with their whole path.
      `layers_pattern`: what is before the layer's number in a path, as regular expressions; empty: anything.
    - `rank_pattern`, `alpha_pattern`: rank and alpha of the projections whose path, or an end of it, the regular
      expression matches; the first in the file that does counts (PEFT saves them sorted). `r` and `lora_alpha` are those
      of all others.
    - `base_model_name_or_path`: the model it was trained with, for messages only.
    """

    target_modules: tuple[str, ...] | str
    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    exclude_modules: tuple[str, ...] | str = ()
    layers_to_transform: tuple[int, ...] = ()
    layers_pattern: tuple[str, ...] = ()
    base_model_name_or_path: str | None = None

    @classmethod
    def parse(cls, text: str | bytes) -> "AdapterConfig":
        """The settings in `text`, the contents of a JSON file. AdapterError naming the field that is wrong or refused."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
            raise AdapterError(f"adapter_config.json is damaged: {error}") from error
        if not isinstance(raw, dict):
            raise AdapterError(f"adapter_config.json must hold an object, not {shown(raw)}")
        _refuse_other_kinds(raw)
        values = {name: _checked(name, raw[name]) for name in CHECKS if name in raw}
        if "target_modules" not in values:
            raise AdapterError(f"target_modules: missing, must be {CHECKS['target_modules'][1]}")
        if isinstance(values["target_modules"], str):
            for name in ("layers_to_transform", "layers_pattern"):
                if raw.get(name) is not None:
                    raise AdapterError(f"{name}={shown(raw[name])}: must be null unless target_modules is a list")
        if raw.get("layers_pattern") and raw.get("layers_to_transform") is None:
            raise AdapterError(f"layers_pattern={shown(raw['layers_pattern'])}: needs layers_to_transform")
        base = raw.get("base_model_name_or_path")
        config = cls(**values, base_model_name_or_path=base if isinstance(base, str) else None)
        for name, pattern, whole in config._patterns():
            try:
                re.compile(whole)
            except (re.error, OverflowError, RecursionError) as error:
                raise AdapterError(f"{name}={shown(pattern)}: is not a regular expression: {error}") from error
        return config

    def targets(self, name: str) -> bool:
        """Whether the adapter adds to the module with this path, a projection or one of EMBEDDINGS."""
        if self.exclude_modules and _selects(self.exclude_modules, name):
            return False
        if isinstance(self.target_modules, str):
            if self.target_modules.lower() == ALL_LINEAR:
                return name not in EMBEDDINGS
            return _selects(self.target_modules, name)
        if name in self.target_modules:
            return True
        return _selects(self.target_modules, name) and self._is_in_layers(name)

    def rank(self, name: str) -> int:
        """The rank of what it adds to this projection."""
        return _first_match(self.rank_pattern, name, self.r)

    def scale(self, name: str) -> float:
        """What it adds to this projection is multiplied by alpha / rank, or with rsLoRA by alpha / √rank."""
        alpha, rank = _first_match(self.alpha_pattern, name, self.lora_alpha), self.rank(name)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def _is_in_layers(self, name: str) -> bool:
        if not self.layers_to_transform:
            return True
        patterns = [_layer_pattern(pattern) for pattern in self.layers_pattern] or [ANY_LAYER]
        match = next(filter(None, (re.match(pattern, name) for pattern in patterns)), None)
        return match is not None and match["idx"] is not None and int(match["idx"]) in self.layers_to_transform

    def _patterns(self) -> Iterator[tuple[str, str, str]]:
        """Every regular expression: its field, as it is in the file, and as it is used."""
        for name in ("target_modules", "exclude_modules"):
            if isinstance(getattr(self, name), str):
                yield name, getattr(self, name), getattr(self, name)
        yield from (("layers_pattern", pattern, _layer_pattern(pattern)) for pattern in self.layers_pattern)
        for name in ("rank_pattern", "alpha_pattern"):
            yield from ((name, pattern, _end_pattern(pattern)) for pattern in getattr(self, name))


def _selects(modules: tuple[str, ...] | str, name: str) -> bool:
    if isinstance(modules, str):
        return re.fullmatch(modules, name) is not None
    return any(name == module or name.endswith(f".{module}") for module in modules)


def _first_match(patterns: Mapping[str, T], name: str, otherwise: T) -> T:
    return next((value for pattern, value in patterns.items() if re.match(_end_pattern(pattern), name)), otherwise)


# What PEFT puts around patterns. There are no parentheses around that of layers, so `a|b` has its effect on all of it.
def _end_pattern(pattern: str) -> str:
    return rf"(.*\.)?({pattern})$"


def _layer_pattern(pattern: str) -> str:
    return rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\."


ANY_LAYER = r".*?\.[^.]*\.(?P<idx>\d+)\."


# --- checks -------------------------------------------------------------------------------------------------------


def _is_rank(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_alpha(value: object) -> bool:
    return type(value) in (int, float) and -MOST_ALPHA <= value <= MOST_ALPHA  # type: ignore[operator]


def _is_name(value: object) -> bool:
    return isinstance(value, str)


def _is_layer(value: object) -> bool:
    return type(value) is int


def _list_of(is_one: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: is_one(value) or (isinstance(value, list) and all(map(is_one, value)))


def _object_of(is_one: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_one, value.values()))


# The fields that are read: what a value must be, in code and in words.
CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {
    "target_modules": (_list_of(_is_name), f"a list of names, a regular expression, or {ALL_LINEAR!r}"),
    "exclude_modules": (_list_of(_is_name), "null, a list of names, or a regular expression"),
    "layers_to_transform": (_list_of(_is_layer), "null, a layer's number, or a list of them"),
    "layers_pattern": (_list_of(_is_name), "null, a regular expression, or a list of them"),
    "r": (_is_rank, "a whole number, at least 1"),
    "lora_alpha": (_is_alpha, f"a finite number, at most {MOST_ALPHA:g} in size"),
    "use_rslora": (lambda value: isinstance(value, bool), "true or false"),
    "rank_pattern": (_object_of(_is_rank), "an object with regular expressions and ranks (whole, at least 1)"),
    "alpha_pattern": (_object_of(_is_alpha), "an object with regular expressions and numbers up to 1e9"),
}
NULL_MEANS: dict[str, Any] = {
    "exclude_modules": (),
    "layers_to_transform": (),
    "layers_pattern": (),
    "rank_pattern": {},
    "alpha_pattern": {},
}


def _checked(name: str, value: Any) -> Any:
    """`value` as AdapterConfig has it. AdapterError if the field `name` cannot have it."""
    if value is None and name in NULL_MEANS:
        return NULL_MEANS[name]
    is_right, must_be = CHECKS[name]
    if not is_right(value):
        raise AdapterError(f"{name}={shown(value)}: must be {must_be}")
    if isinstance(value, list):
        return tuple(value)
    if name == "layers_to_transform" or (name == "layers_pattern" and value):
        return (value,)
    return () if name == "layers_pattern" else value


def _refuse_other_kinds(raw: dict[str, Any]) -> None:
    """AdapterError naming the first field with which the adapter would be something else than low-rank additions."""
    if raw.get("peft_type") != "LORA":
        raise AdapterError(f"peft_type={shown(raw.get('peft_type'))}: must be 'LORA', the only kind supported")
    for name in sorted(REFUSED & raw.keys()):
        if raw[name]:
            raise AdapterError(f"{name}={shown(raw[name])}: is not supported; {MERGE}")
    if raw.get("bias", "none") != "none":
        raise AdapterError(f"bias={shown(raw['bias'])}: must be 'none'; {MERGE}")
    start = raw.get("init_lora_weights")
    start = start.lower() if isinstance(start, str) else start
    if isinstance(start, str) and start.startswith(CHANGED_BASE):
        raise AdapterError(
            f"init_lora_weights={shown(raw['init_lora_weights'])}: this way to begin changed the model's own weights, and "
            f"the adapter needs them; {MERGE}"
        )
    if not any(type(start) is type(known) and start == known for known in HARMLESS_STARTS):
        known = ", ".join(map(repr, HARMLESS_STARTS))
        raise AdapterError(f"init_lora_weights={shown(raw['init_lora_weights'])}: must be one of {known}")
    known_fields = {"peft_type", "bias", "init_lora_weights", *CHECKS, *REFUSED, *IRRELEVANT}
    for name, value in raw.items():
        if name not in known_fields and value:
            raise AdapterError(f"{name}={shown(value)}: is not known here; must be null, false or empty")


def shown(value: object) -> str:
    """`value` as an error message quotes it: a config may list hundreds of names."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


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
                    untargeted = f"{CONFIG_FILE} targets no such projection of this model"
                    reason = "experts cannot have adapters" if ".experts." in key else untargeted
                    problems.append(f"{key}: surplus, {reason}")
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
