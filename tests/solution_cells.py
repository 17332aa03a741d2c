"""The exercise cells of a notebook with solutions: what the tests of its checks change, and run."""

from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain, pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache import radix_cache
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.indices import as_int_array
from notebooks.course import Hint, check
from notebooks.course.tables import ALSO
from notebooks.tools.files import read, source_of

# One line of these answers does several things, which a check tells apart.
SEVERAL_THINGS = {
    ("6.5", '"start_loc"'),  # a field is misspelt: one is missing, and one is unknown
    ("12.3", "        array[count:] = padding\n"),  # of each array
    ("8.2", "upper.lock_ref, upper.hit_count = node.lock_ref, node.hit_count\n"),
}

SOLUTIONS = Path(__file__).parent.parent / "notebooks" / "solutions"


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
    assert (id, right) in SEVERAL_THINGS or ALSO not in str(caught.value), "one mistake gets one hint"
