"""The exercise cells of a notebook with solutions: what the tests of its checks change, and run."""

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b, sha256
from itertools import accumulate, chain, pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache import memory_pool, radix_cache
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.indices import as_int_array, consecutive_runs
from notebooks.course import Hint, check
from notebooks.course.tables import ALSO
from notebooks.tools.files import read, source_of

SOLUTIONS = Path(__file__).parent.parent / "notebooks" / "solutions"


@dataclass
class View:
    """What notebook 17 has before its exercises."""

    name: str
    cached: int
    queued: int
    requests: int


@cache
def solutions(name: str) -> dict[str, str]:
    """`{"7.1": text of the cell tagged exercise-7.1}` of notebooks/solutions/`name`.ipynb."""
    return {
        tag.removeprefix("exercise-"): source_of(cell)
        for cell in read(SOLUTIONS / f"{name}.ipynb")["cells"]
        for tag in cell["metadata"].get("tags", [])
        if tag.startswith("exercise-")
    }


def written(text: str) -> dict[str, Any]:
    """The namespace after running `text` with what the notebooks import."""
    namespace: dict[str, Any] = {
        **{name: getattr(memory_pool, name) for name in ("ReqToTokenPool", "TokenToKVPool")},
        **{each.__name__: each for each in (Callable, Hashable, View, blake2b, consecutive_runs)},
        "sha256": sha256,
        "heapq": heapq,
        **{name: getattr(radix_cache, name) for name in ("MatchResult", "RadixCache", "TreeNode", "common_prefix_len")},
        "CacheManager": CacheManager,
        "as_int_array": as_int_array,
        "np": np,
        "torch": torch,
        "accumulate": accumulate,
        "ceil": ceil,
        "chain": chain,
        "dataclass": dataclass,
        "pairwise": pairwise,
    }
    exec(text, namespace)
    return namespace


def passes(id: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that exercise `id` is right with `answer`, and says so."""
    check(id, written(answer))
    assert capsys.readouterr().out.startswith(f"✓ {id}")


def gets_hint(id: str, answer: str, right: str, wrong: str, hint: str) -> None:
    """Assert that `answer` with `wrong` wherever `right` stands gets `hint`, a regular expression, and no other."""
    assert right in answer
    with pytest.raises(Hint, match=f"(?i){hint}") as caught:
        check(id, written(answer.replace(right, wrong)))
    assert ALSO not in str(caught.value), "one mistake gets one hint"
