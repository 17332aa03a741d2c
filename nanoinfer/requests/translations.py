"""Arguments of vLLM and SGLang that mean the same as ours but are written otherwise: from a value to our arguments.

Each function returns our arguments by name, and raises a ValueError that says what to use for a value without an equal.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Translation = Callable[[Any], Mapping[str, Any]]

STRUCTURED = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
WITHOUT_EFFECT = ("backend", "disable_fallback", "disable_any_whitespace")  # JSON has no whitespace anyway
METHODS = {"ngram": "ngram", "draft_model": "model"}  # vLLM's → drafters
ALGORITHMS = {"NGRAM": "ngram", "STANDALONE": "model"}  # SGLang's
LOOKUP = ("prompt_lookup_max", "prompt_lookup_min")  # how long a match may be: here, the longest counts
NO_HEADS = "heads that were trained to draft (EAGLE, Medusa, MTP) are not read; see drafter= in help(EngineConfig)"


@dataclass(frozen=True)
class NamedAdapter:
    """An adapter that a request brings with it: it is loaded from the folder `path` unless it is there."""

    name: str
    path: str | Path


def when(wanted: bool, **ours: Any) -> Translation:
    """For a switch: what `wanted` means here. The opposite is what happens anyway, and so is None."""

    def translate(value: Any) -> Mapping[str, Any]:
        if value is not None and not isinstance(value, bool):
            raise ValueError("must be True or False")
        return ours if value is wanted else {}

    return translate


def structured_outputs(value: Any) -> Mapping[str, Any]:
    """vLLM's StructuredOutputsParams and GuidedDecodingParams, or a mapping with their fields."""
    if value is None:
        return {}
    given = _fields(value, f"an object or a mapping with one of {', '.join(STRUCTURED)}")
    ours = {STRUCTURED[name]: given[name] for name in STRUCTURED if name in given}
    if given.get("json_object"):
        ours["json_schema"] = {"type": "object"}
    _refuse_rest(given, {*STRUCTURED, *WITHOUT_EFFECT, "json_object"}, f"use one of {', '.join(STRUCTURED)}")
    if len(ours) > 1:
        raise ValueError(f"must have one of {', '.join(STRUCTURED)}")
    return ours


def speculative_config(value: Any) -> Mapping[str, Any]:
    """vLLM's: `method`, `model`, `num_speculative_tokens`; a mapping, or its JSON."""
    if value is None:
        return {}
    given = _fields(json.loads(value) if isinstance(value, str) else value, "a mapping")
    model, count = given.get("model"), given.get("num_speculative_tokens")
    method = given.get("method") or (model if model == "ngram" else "draft_model")
    if method not in METHODS or (method == "draft_model" and model is None):
        raise ValueError(f"method must be one of {', '.join(METHODS)}, the latter with a model; {NO_HEADS}")
    _refuse_rest(given, {"method", "model", "num_speculative_tokens", *LOOKUP}, "has no equal here")
    ours = {"drafter": METHODS[method], "draft_model": model if method == "draft_model" else None}
    return ours if count is None else {**ours, "num_draft_tokens": count}


def speculative_algorithm(value: Any) -> Mapping[str, Any]:
    """SGLang's."""
    if value is None:
        return {}
    if str(value).upper() not in ALGORITHMS:
        raise ValueError(f"must be one of {', '.join(ALGORITHMS)}; {NO_HEADS}")
    return {"drafter": ALGORITHMS[str(value).upper()]}


def adapters(value: Any) -> Mapping[str, Any]:
    """vLLM's `lora_modules` and SGLang's `lora_paths`: folders by name, or a list of `name=path` or of their objects."""
    if isinstance(value, Mapping):
        return {"adapters": value}
    if not isinstance(value, list | tuple | None):
        raise ValueError("must be a list of name=path; or use adapters={'name': folder}")
    named: dict[str, Any] = {}
    for entry in value or ():
        if isinstance(entry, str):
            name, _, path = entry.rpartition("=")
            named[name or path] = path  # SGLang's, without a name: by its path
        elif (brought := _adapter(entry)) is not None:
            named[brought.name] = brought.path
    return {"adapters": named} if named else {}


def lora_request(value: Any) -> Mapping[str, Any]:
    """vLLM's LoRARequest, or a list with one per prompt. The adapter is loaded when it is first used."""
    return {"adapter": [_adapter(request) for request in value] if isinstance(value, list) else _adapter(value)}


def _adapter(value: Any) -> NamedAdapter | None:
    if value is None:
        return None
    given = _fields(value, "an object or a mapping with lora_name and lora_path")
    name, path = (given.get(f"lora_{key}", given.get(key)) for key in ("name", "path"))
    if name is None or path is None:
        raise ValueError("must have lora_name and lora_path; or use adapter='name' for one that is loaded")
    return NamedAdapter(name, path)


def _fields(value: Any, must_be: str) -> dict[str, Any]:
    """The fields of an object or a mapping that ask for something."""
    if not isinstance(value, Mapping):
        if type(value).__module__ == "builtins":
            raise ValueError(f"must be {must_be}")
        value = {name: getattr(value, name, None) for name in dir(value) if not name.startswith("_")}
    return {name: field for name, field in value.items() if not (field is None or field is False or callable(field))}


def _refuse_rest(given: Mapping[str, Any], known: set[str], answer: str) -> None:
    if rest := [name for name in given if name not in known]:
        raise ValueError(f"{', '.join(rest)}: {answer}")
