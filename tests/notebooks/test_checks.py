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

import numpy as np
import pytest
import torch

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.indices import as_int_array, consecutive_runs
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import MatchResult, RadixCache, TreeNode, common_prefix_len
from notebooks.course import Given, Hint, check
from notebooks.course.checking import _checked
from notebooks.course.checks import nb12_tile
from notebooks.course.compiled import Cpp
from notebooks.course.exercises import Exercise, all_exercises
from notebooks.course.expectations import NotWritten
from notebooks.course.replicas import View
from notebooks.course.tables import ALSO
from notebooks.tools.files import ROOT, read, source_of, sources
from notebooks.tools.student import cleared, exercise_ids
from tests.helpers.waiting import HANG_S
from tests.notebooks.mistakes import MISTAKES
from tests.notebooks.other_answers import OTHERS

# What notebook 12 has before its inner loop.
HEADER = """
constexpr int LANES = 8, PANELS = 2;
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4)));
constexpr int COLUMNS = LANES * PANELS;
"""
# What the notebooks have imported and defined before their exercises.
SURROUNDINGS = {
    **{
        each.__name__: each for each in (CacheManager, MatchResult, RadixCache, ReqToTokenPool, TokenToKVPool, TreeNode)
    },
    **{each.__name__: each for each in (accumulate, as_int_array, blake2b, ceil, chain, common_prefix_len, pairwise)},
    **{each.__name__: each for each in (Callable, Hashable, View, consecutive_runs, dataclass)},
    "HEADER": HEADER,
    "heapq": heapq,
    "np": np,
    "sha256": sha256,
    "torch": torch,
}
COMPILED = "12.4"
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


def cases(rows: list[Any]) -> list[Any]:
    """Those of the exercise that a compiler has to be started for are slow."""
    return [pytest.param(*row, marks=[pytest.mark.slow] * (row[0] == COMPILED)) for row in rows]


@pytest.fixture(autouse=True)
def _compiled_quickly_and_with_long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler optimises less, nobody compares the inner loop's time, and it may take as long as it needs."""
    monkeypatch.setenv("NANOINFER_CXXFLAGS", "-O1")
    monkeypatch.setattr(nb12_tile, "_slower", lambda *_: 1.0)
    monkeypatch.setitem(Cpp.outcome.__kwdefaults__, "seconds", HANG_S)


def test_every_exercise_has_a_solution_and_mistakes_here() -> None:
    ids = {exercise.id for exercise in all_exercises()}
    assert set(SOLVED) == {id for id, *_ in MISTAKES} == ids


@pytest.mark.parametrize("id", cases([[id] for id in sorted(SOLVED)]))
def test_the_solution_passes_and_the_stub_is_not_written_yet(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(id, written(SOLVED[id]))
    assert capsys.readouterr().out.startswith(f"✓ {id}")
    with pytest.raises(NotWritten):
        check(id, written(cleared(SOLVED[id], id)))


@pytest.mark.parametrize(("id", "answer"), OTHERS)
def test_other_right_answers_pass(id: str, answer: str) -> None:
    check(id, written(answer))


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), cases(MISTAKES))
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    assert right in SOLVED[id]
    with pytest.raises(Hint, match=f"(?i){hint}") as caught:
        check(id, written(SOLVED[id].replace(right, wrong)))
    assert id == "6.5" or ALSO not in str(caught.value), "one mistake gets one hint"


def test_two_mistakes_are_both_named() -> None:
    answer = SOLVED["3.1"].replace("2 * config", "config").replace("num_key_value_heads", "num_attention_heads")
    both = re.compile(f"key/value heads, not query heads.*{ALSO}.*a key and a value", re.DOTALL)
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
        check("6.4", namespace)


BY_P = "for (int p = 0; p < PANELS; p++) "
BY_M = "for (int m = 0; m < M; m++) "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "statements"),
    [
        (
            f"{BY_P} v[p] = *(Floats*)(w + k * COLUMNS + p * LANES);",
            f"{BY_M} {{ float a = *(x + m * in + k); int p = 0; for (auto& s : sums[m]) s += a * v[p++]; }}",
        ),
        (
            f"const float* of_k = w + k * COLUMNS; {BY_P} v[p] = *(const Floats*)(of_k + p * LANES);",
            f"{BY_P} {BY_M} {{ Floats& sum = sums[m][p]; sum = sum + v[p] * x[m * in + k]; }}",
        ),
        (f"{BY_P} {{ v[p] = *(const Floats*)w; w += LANES; }}", f"{BY_M} {BY_P} sums[m][p] += x[m * in + k] * v[p];"),
    ],
)
def test_other_right_inner_loops_pass(weights: str, statements: str) -> None:
    solution = SOLVED[COMPILED]
    begin, end = solution.index('    return """'), solution.index("### END SOLUTION")
    answer = f'{solution[:begin]}    return "Floats v[PANELS]; {weights} {statements}"\n    {solution[end:]}'
    check(COMPILED, written(answer))


@pytest.mark.slow
def test_a_slow_inner_loop_passes_and_is_told_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nb12_tile, "_slower", lambda *_: 9.0)
    check(COMPILED, written(SOLVED[COMPILED]))
    assert "takes 9 times as long as whole vectors need" in capsys.readouterr().out


@pytest.mark.slow
def test_an_inner_loop_that_never_ends_does_not_hold_up_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Cpp.outcome.__kwdefaults__, "seconds", 0.01)  # for ever is longer
    endless = SOLVED[COMPILED].replace(f"{BY_P}{{", "for (volatile int p = 0; p < 1; p += 0) {", 1)
    assert endless != SOLVED[COMPILED]
    with pytest.raises(Hint, match=r"doesn't end within 0 seconds\. Does each loop count up to its end"):
        check(COMPILED, written(endless))


def test_without_a_compiler_the_inner_loop_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    check(COMPILED, written(SOLVED[COMPILED]))
    assert "written, but not tried, because there is no C++ compiler" in capsys.readouterr().out


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
