"""Registries: the named alternatives that an option chooses among.

One line adds an alternative, inside or outside the package: `EVICTION_POLICIES["mru"] = newest_first`. The built-in ones
are registered by the files that are named here, which a registry imports when it is first asked.
"""

import ast
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

T = TypeVar("T")
_loading = RLock()  # one thread at a time imports for a registry, the files of which may ask another one


class Registry(MutableMapping[Any, T]):
    """Alternatives by name. `name` is that of the registry here, `option` the setting that chooses an alternative, which
    error messages name.

    A registry may have an alternative under None, which is used if the option is not set. `files`: the modules of nanoinfer
    that register the built-in ones. `hint`: what an error message adds after the list of alternatives.
    """

    def __init__(self, name: str, option: str, *files: str, hint: str = ""):
        self.name, self.option, self.files, self.hint = name, option, files, hint
        self._missing, self._alternatives = [*files], dict[Any, T]()

    def built_in(self) -> list[str]:
        """The names of the built-in alternatives, in order, read from the text of their files: importing these takes a
        second, and the help of a command is to be there at once."""
        names: list[str] = []
        for file in self.files:
            path = Path(__file__).parent.joinpath(*file.split(".")).with_suffix(".py")
            names += _registered(ast.parse(path.read_text(encoding="utf-8")), self.name)
        return names

    def check(self, name: object) -> None:
        """Raise a ValueError that lists the alternatives unless `name` is one of them."""
        if not any(isinstance(name, type(key)) and name == key for key in self):  # it may be unhashable, or an array
            raise ValueError(f"{self.option}={name!r}: must be one of {', '.join(map(str, self))}{self.hint}")

    def __getitem__(self, name: Any) -> T:
        return self._loaded()[name]

    def __setitem__(self, name: Any, alternative: T) -> None:
        self._alternatives[name] = alternative

    def __delitem__(self, name: Any) -> None:
        del self._loaded()[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())

    def _loaded(self) -> dict[Any, T]:
        """All alternatives; imports the files with the built-in ones first, if that has not happened yet. What was added
        before that stays."""
        if self._missing:
            with _loading:
                mine = dict(self._alternatives)
                while self._missing:
                    import_module(f"nanoinfer.{self._missing[-1]}")
                    self._missing.pop()
                self._alternatives.update(mine)
        return self._alternatives


def _registered(tree: ast.Module, registry: str) -> list[str]:
    """What a file's `registry["name"] = ...` and `registry.update(name=..., ...)` add, as far as the names are texts."""
    names: list[object] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets):
                for target in targets:
                    match target:
                        case ast.Subscript(value=ast.Name(id=of), slice=ast.Constant(value=name)) if of == registry:
                            names.append(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr="update")) if of == registry:
                keys = [key for given in node.args if isinstance(given, ast.Dict) for key in given.keys]
                names += [key.value for key in keys if isinstance(key, ast.Constant)]
                names += [keyword.arg for keyword in node.keywords]
    return [name for name in names if isinstance(name, str)]


ATTENTION_BACKENDS: Registry[Any] = Registry("ATTENTION_BACKENDS", "attention_backend", "model.attention.select")
DRAFTERS: Registry[Any] = Registry("DRAFTERS", "drafter", "speculative.load")
EVICTION_POLICIES: Registry[Any] = Registry("EVICTION_POLICIES", "eviction_policy", "cache.eviction")
MODEL_FAMILIES: Registry[Any] = Registry("MODEL_FAMILIES", "architecture", "model.families")
QUANTIZATIONS: Registry[Any] = Registry(
    "QUANTIZATIONS",
    "quantization",
    *("model.layers.linear_weights", "model.layers.int8_weights", "model.layers.int4_weights"),
    hint="; a checkpoint of GPTQ, AWQ, compressed-tensors or FP8 is read without it",
)
KV_STORAGES: Registry[Any] = Registry(
    "KV_STORAGES",
    "kv_cache_dtype",
    "cache.kv_storage",
    hint="; fp8 is not implemented, int8 takes as little memory",
)
SCHEDULE_POLICIES: Registry[Any] = Registry("SCHEDULE_POLICIES", "schedule_policy", "scheduler.policy")

REGISTRIES = (
    ATTENTION_BACKENDS,
    DRAFTERS,
    EVICTION_POLICIES,
    MODEL_FAMILIES,
    QUANTIZATIONS,
    KV_STORAGES,
    SCHEDULE_POLICIES,
)
