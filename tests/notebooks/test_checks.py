"""Every exercise's check: solutions and other right answers pass, stubs are not written yet, typical mistakes get their
hints, and what is no answer passes nowhere."""

import heapq
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import accumulate, chain, pairwise
from math import ceil
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.indices import as_int_array, consecutive_runs
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import MatchResult, RadixCache, TreeNode, common_prefix_len
from notebooks.course import Given, Hint, check
from notebooks.course.checking import _checked
from notebooks.course.exercises import Exercise, all_exercises
from notebooks.course.expectations import NotWritten
from notebooks.course.replicas import View
from notebooks.course.tables import ALSO
from notebooks.tools.files import ROOT, read, source_of, sources
from notebooks.tools.student import cleared, exercise_ids
from tests.notebooks.mistakes import MISTAKES
from tests.notebooks.other_answers import OTHERS

# What the notebooks have imported and defined before their exercises.
SURROUNDINGS = {
    **{
        each.__name__: each for each in (CacheManager, MatchResult, RadixCache, ReqToTokenPool, TokenToKVPool, TreeNode)
    },
    **{each.__name__: each for each in (accumulate, as_int_array, blake2b, ceil, chain, common_prefix_len, pairwise)},
    **{each.__name__: each for each in (Callable, Hashable, View, consecutive_runs, dataclass)},
    "heapq": heapq,
    "np": np,
    "sha256": sha256,
    "torch": torch,
}
STUB = (
    "def tokens_to_compute(prompt, cached):\n    ### BEGIN SOLUTION\n    return prompt - cached\n    ### END SOLUTION"
)
SOLVED = {"0.1": STUB} | {
    id: source_of(cell)
    for path in sources(ROOT)
    for cell in read(path)["cells"]
    for id in exercise_ids(cell, "exercise")
}


def written(text: str) -> dict[str, Any]:
    """The namespace of a notebook after running `text` in it."""
    namespace: dict[str, Any] = dict(SURROUNDINGS)
    exec(text, namespace)
    return namespace


def test_every_exercise_has_a_solution_and_mistakes_here() -> None:
    ids = {exercise.id for exercise in all_exercises()}
    assert set(SOLVED) == {id for id, *_ in MISTAKES} == ids


@pytest.mark.parametrize("id", sorted(SOLVED))
def test_the_solution_passes_and_the_stub_is_not_written_yet(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(id, written(SOLVED[id]))
    assert capsys.readouterr().out.startswith(f"✓ {id}")
    with pytest.raises(NotWritten):
        check(id, written(cleared(SOLVED[id], id)))


@pytest.mark.parametrize(("id", "answer"), OTHERS)
def test_other_right_answers_pass(id: str, answer: str) -> None:
    check(id, written(answer))


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    assert right in SOLVED[id]
    with pytest.raises(Hint, match=f"(?i){hint}") as caught:
        check(id, written(SOLVED[id].replace(right, wrong)))
    assert id == "6.1" or ALSO not in str(caught.value), "one mistake gets one hint"


def test_two_mistakes_are_both_named() -> None:
    answer = (
        SOLVED["3.1"].replace("num_tokens - 1", "num_tokens").replace("memory_bytes - weight_bytes", "memory_bytes")
    )
    both = re.compile(f"newest token has no K/V yet.*{ALSO}.*if there were no weights", re.DOTALL)
    with pytest.raises(Hint, match=both):
        check("3.1", written(answer))


def test_a_loop_is_noticed_where_the_source_can_be_read(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef kv_indices(req_to_token, req_pool_indices, seq_lens):\n"
        "    rows = zip(req_pool_indices.tolist(), seq_lens.tolist())\n"
        "    return torch.cat([req_to_token[row, :seq] for row, seq in rows])\n"
    )
    (tmp_path / "answer.py").write_text(text)
    namespace: dict[str, object] = {}
    exec(compile(text, str(tmp_path / "answer.py"), "exec"), namespace)
    with pytest.raises(Hint, match="Python loop"):
        check("6.2", namespace)


def liar() -> Any:
    """Claims to equal, to exceed and to contain everything."""
    said = MagicMock()
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "bool", "contains"):
        getattr(said, f"__{name}__").return_value = True
    said.configure_mock(**{"return_value": said, "__len__.return_value": 2, "__int__.return_value": 3})
    said.__iter__.side_effect = lambda: iter((said, said))
    return said


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
    "a liar": liar(),
    "two liars": (liar(), liar()),
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
