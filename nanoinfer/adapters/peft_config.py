"""Reads `adapter_config.json` as PEFT writes it: which projections an adapter adds to, with which rank and scale.

Patterns select what they select in PEFT 0.21 (tests/property/test_peft_format.py compares them). A setting that changes
what an adapter computes, and that this engine does not have, is refused by its name.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nanoinfer.errors import AdapterError

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
