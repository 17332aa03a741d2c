"""Undo what a submission has changed in the modules that its checks rely on."""

import builtins
import contextlib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

import nanoinfer
import notebooks.course

# Besides the package and the course: what checks compute and compare with.
_OTHERS = ("bisect", "collections", "copy", "dataclasses", "heapq", "itertools", "math", "operator", "numpy", "torch")
# What no check needs: commands, servers and pages with sliders, which take a second to import.
LEFT_OUT = ("nanoinfer.__main__", "nanoinfer.bench", "nanoinfer.cli", "nanoinfer.server", "notebooks.course.explore")


def is_left_out(module: str) -> bool:
    """Whether a module is, or is part of, what no check needs."""
    return any(f"{module}.".startswith(f"{left_out}.") for left_out in LEFT_OUT)


def load_all() -> None:
    """Import every module of the package and the course that a check may need, so that none is imported after the
    submission has run. Those that need what is not installed are left out."""
    packages: list[ModuleType] = [nanoinfer, notebooks.course]
    for package in packages:
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not is_left_out(module.name):
                with contextlib.suppress(ImportError, OSError):
                    loaded = importlib.import_module(module.name)
                    packages += [loaded] if module.ispkg else []


class Intact:
    """A copy of what modules, their classes and their functions hold; `restore` puts it back.

    Objects stay the same objects, so that a submission's own references to nanoinfer's classes remain valid. Attributes
    that came in later stay where they add something (a module's submodules, a method that a class did not have); they go
    where they would cover something (another name in a module, a special method).
    """

    def __init__(self, functions: Iterable[Callable[..., Any]] = ()):
        """Copy now. `functions`: more of them, which are in no module's dictionary."""
        self._modules = {name: module for name, module in sys.modules.items() if _is_ours(name)}
        held = [*self._modules.values(), builtins, *(importlib.import_module(name) for name in _OTHERS)]
        self._first = [(names, dict(names)) for names in (vars(builtins), globals())]
        self._held: list[tuple[Any, dict[str, Any]]] = [(module, dict(vars(module))) for module in held]
        seen: dict[int, type] = {}
        for module in self._modules.values():
            for value in vars(module).values():
                if isinstance(value, type) and _is_ours(value.__module__):
                    seen[id(value)] = value
        import torch

        self._held += [(cls, dict(vars(cls))) for cls in [*seen.values(), torch.Tensor]]
        self._code: list[tuple[FunctionType, Any, Any, Any]] = []
        for owner, values in self._held:
            if owner is not builtins and _is_ours(getattr(owner, "__name__", ""), getattr(owner, "__module__", "")):
                for value in values.values():
                    self._keep_code(value)
        for function in functions:
            self._keep_code(function)

    def restore(self) -> None:
        """Undo what has happened since. First comes what this very function is made of."""
        for names, before in self._first:
            names.update(before)
        sys.modules.update(self._modules)
        for owner, values in self._held:
            now = vars(owner)
            for name, value in values.items():
                if now.get(name, self) is not value:
                    _set(owner, name, value)
            for name in [name for name in now if name not in values]:
                if _covers(owner, name, now[name]):
                    with contextlib.suppress(AttributeError, TypeError):
                        delattr(owner, name)
        for function, code, defaults, kwdefaults in self._code:
            if function.__code__ is not code:
                function.__code__ = code
            function.__defaults__, function.__kwdefaults__ = defaults, kwdefaults

    def _keep_code(self, value: Any) -> None:
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        for function in (value.fget, value.fset) if isinstance(value, property) else (value,):
            if isinstance(function, FunctionType) and _is_ours(function.__module__):
                self._code.append((function, function.__code__, function.__defaults__, function.__kwdefaults__))


def _is_ours(*names: str | None) -> bool:
    return any(f"{name}.".startswith(("nanoinfer.", "notebooks.course.")) for name in names)


def _set(owner: Any, name: str, value: Any) -> None:
    with contextlib.suppress(AttributeError, TypeError):  # members of enums, and the like, could not be changed either
        setattr(owner, name, value)


def _covers(owner: Any, name: str, value: Any) -> bool:
    if isinstance(owner, ModuleType):
        return _is_ours(owner.__name__) and not isinstance(value, ModuleType)
    return name.startswith("__") or not _is_ours(owner.__module__)
