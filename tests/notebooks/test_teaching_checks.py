"""Every exercise's check, on answers that are no answers: it says so, and lets none of them pass."""

from typing import Any

import pytest
import torch

from nanoinfer.cache.radix_cache import RadixCache
from notebooks.course import Given, Hint
from notebooks.course.checking import _checked
from notebooks.course.exercises import Exercise, all_exercises


class Yes:
    """Claims to equal, to exceed and to contain everything."""

    def _yes(self, *_: Any) -> bool:
        return True

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = _yes  # type: ignore[assignment]

    def _self(self, *_: Any) -> Any:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __call__ = __getitem__ = __invert__ = _self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter((self, self))

    def __int__(self) -> int:
        return 3

    __index__ = __int__


class YesInt(int):
    """A number that claims to equal everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __ne__ = __le__ = __ge__ = __eq__
    __hash__ = int.__hash__


ANSWERS: dict[str, Any] = {
    "None": None,
    "a number": 0,
    "a float": 1.5,
    "a text": "x",
    "an empty list": [],
    "an empty dict": {},
    "a list of None": [None],
    "two None": (None, None),
    "three None": (None, None, None),
    "a tensor of nothing": torch.tensor(0),
    "a tensor": torch.zeros(3),
    "a function": len,
    "a liar": Yes(),
    "two liars": (Yes(), Yes()),
    "a lying number": YesInt(3),
}

METHODS = {
    "MatchCache": ["match_prefix"],
    "SplitCache": ["_split"],
    "InsertCache": ["insert", "finish"],
    "LockCache": ["inc_lock_ref", "dec_lock_ref"],
    "EvictCache": ["evict"],
    "Session": ["__init__", "prefill", "step_once"],
    "Table": ["get", "put", "size"],
}
OF_THEIR_OWN = ("Session", "Table")  # classes without a base


class Always(Given):
    """Whatever the checker asks for, its functions and methods give one answer."""

    def __init__(self, answer: Any):
        super().__init__({})
        self._answer = answer

    def __getitem__(self, name: str) -> Any:
        def give(*_: Any, **__: Any) -> Any:
            return self._answer

        if name not in METHODS:
            return give
        members: dict[str, Any] = dict.fromkeys(METHODS[name], give)
        if name not in OF_THEIR_OWN:
            return type(name, (RadixCache,), members)
        fields = dict.fromkeys(("token_ids", "finished", "kv_len"), self._answer)
        return type(name, (), {**members, **fields, "__init__": lambda *_: None})

    def __contains__(self, name: str) -> bool:
        return True


@pytest.mark.parametrize("exercise", all_exercises(), ids=lambda exercise: exercise.id)
@pytest.mark.parametrize("what", ANSWERS)
def test_no_nonsense_passes_or_surprises_a_checker(exercise: Exercise, what: str) -> None:
    with pytest.raises(Hint):
        _checked(exercise, {}, Always(ANSWERS[what]))
