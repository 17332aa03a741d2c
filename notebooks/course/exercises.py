"""The exercises of the notebooks: how checkers are registered and found."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from notebooks.course import checks
from notebooks.course.expectations import NotWritten

Checker = Callable[["Given"], str | None]

_CHECKS_FILE = re.compile(r"nb(\d+)")  # nb05.py


class Given:
    """What the student wrote, by name: `given["alloc"]`. A copy: nothing is written back into the notebook. `asked`: the
    names that a checker has asked for."""

    def __init__(self, namespace: Mapping[str, Any]):
        self._namespace = dict(namespace)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        """The notebook's `name`. NotWritten when there is none."""
        self.asked.add(name)
        if name not in self._namespace:
            raise NotWritten(
                f"there is no `{name}` in this notebook yet: run the cell that defines it, then check again"
            )
        return self._namespace[name]

    def __contains__(self, name: str) -> bool:
        return name in self._namespace


@dataclass(frozen=True)
class Exercise:
    """One exercise: `id` "5.1" is the first of notebook 05; `checker` raises Hint if the answer is wrong."""

    id: str
    title: str
    points: int
    checker: Checker


_exercises: dict[str, Exercise] = {}


def exercise(id: str, title: str, *, points: int = 1) -> Callable[[Checker], Checker]:
    """Decorator: registers a checker. It takes what the student wrote, raises Hint (`expect`, `expect_equal`) if that is
    wrong, and may return a text about what is proved, which is printed."""

    def register(checker: Checker) -> Checker:
        _exercises[id] = Exercise(id, title, points, checker)
        return checker

    return register


def notebook_of(id: str) -> int:
    """5 of "5.1"."""
    return int(id.partition(".")[0])


def find(id: str) -> Exercise:
    """The exercise `id`; loads its notebook's checks. ValueError that lists all ids if there is no such exercise."""
    if not isinstance(id, str):
        raise ValueError(f"exercise id {id!r}: must be a string, as in check('5.1', globals())")
    if re.fullmatch(r"\d+\.\d+", id):
        _load(notebook_of(id))
    if id not in _exercises:
        known = ", ".join(exercise.id for exercise in all_exercises())
        raise ValueError(f"exercise id {id!r}: must be one of {known or 'none'}")
    return _exercises[id]


def exercises_of(notebook: int) -> list[Exercise]:
    """All exercises of notebook 05 (`notebook=5`) in order; none if it has no checks."""
    _load(notebook)
    found = [exercise for exercise in _exercises.values() if notebook_of(exercise.id) == notebook]
    return sorted(found, key=lambda exercise: int(exercise.id.partition(".")[2]))


def all_exercises() -> list[Exercise]:
    """Every exercise of every notebook, in order."""
    files = (_CHECKS_FILE.fullmatch(module.name) for module in pkgutil.iter_modules(checks.__path__))
    return [exercise for number in sorted(int(file[1]) for file in files if file) for exercise in exercises_of(number)]


def _load(notebook: int) -> None:
    """Import a notebook's checks, if it has any. By their name, as plug-ins are: they import this file to register, so this
    file must not import them, and a new notebook's checks need a line nowhere else."""
    name = f"{checks.__name__}.nb{notebook:02d}"
    if find_spec(name):
        importlib.import_module(name)
