"""Checks of notebook 06, input metadata. The expected values come from loops over requests and positions."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, expect
from notebooks.course.tables import ALSO, Wrong, compare

LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)


def int32(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def refuse_loops(function: Callable[..., Any]) -> None:
    """Raises Hint if the source of `function` has a loop or a comprehension. Accepts it if there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return
    if any(isinstance(node, LOOPS) for node in ast.walk(tree)):
        raise Hint(
            "Your result is right, but your function has a Python loop (or a comprehension). For 64 requests with 500 "
            "tokens each, it runs 32,000 times before every pass. Compute all tokens at once"
        )


@exercise("6.2", "kv_indices without a loop", points=2)
def _(given: Given) -> str:
    student, rng = given["kv_indices"], np.random.default_rng(0)
    cases = [
        (rng.permutation(64).reshape(4, 16), rows, seq_lens)
        for rows, seq_lens in (
            ([0], [12]),
            ([2, 0, 3], [8, 3, 6]),
            ([3, 1], [1, 16]),
            ([1, 0, 3, 2], [5, 5, 5, 5]),
            ([2, 3], [16, 16]),
        )
    ]
    mistakes = {
        "You read rows 0, 1, ... of the table. Request i of the batch is in row req_pool_indices[i]": "by_place"
    }
    hint = "list the slots request by request, each in the order of its positions, int32, without padding"
    compare(student, _indices, cases, mistakes, give=int32, hint=hint)
    refuse_loops(student)
    return "every token of every request in one look-up"


def _indices(
    req_to_token: np.ndarray, req_pool_indices: list[int], seq_lens: list[int], wrong: Wrong = ()
) -> torch.Tensor:
    rows = range(len(seq_lens)) if "by_place" in wrong else req_pool_indices
    return int32([req_to_token[row, p] for row, seq in zip(rows, seq_lens, strict=True) for p in range(seq)])


FIELDS: dict[str, tuple[list[int], str]] = {
    "req_pool_indices": ([2, 0], "the rows, in the order of the batch: row 2 comes first here"),
    "seq_lens": ([9, 5], "how many tokens each request has *after* this pass"),
    "prefix_lens": (
        [6, 4],
        "how many tokens have K/V before this pass, no matter whether another request or this one computed it",
    ),
    "positions": ([6, 7, 8, 4], "prefix_len .. seq_len - 1 of row 2, then of row 0"),
    "out_cache_loc": ([2, 3, 20, 4], "the slots in the rows at the new positions"),
    "qo_indptr": ([0, 3, 4], "where each request begins among the *new* tokens, and their total at the end"),
    "kv_indptr": ([0, 9, 14], "where each request begins among *all* tokens, and their total at the end"),
    "kv_indices": (
        [8, 9, 10, 11, 0, 1, 2, 3, 20, 8, 9, 10, 11, 4],
        "all slots of row 2 up to its length, then all of row 0",
    ),
    "logit_rows": ([2, 3], "the last new token of each request: these predict tokens that aren't there yet"),
}


@exercise("6.1", "A complete InputMetadata", points=2)
def _(given: Given) -> str:
    got = given["predicted"]()
    expect(isinstance(got, dict), f"predicted() must return a dict, got {type(got).__name__}")
    missing = [name for name in FIELDS if name not in got]
    unknown = [str(name) for name in got if name not in FIELDS]
    hints = [f"These fields are still missing: {', '.join(missing)}"] * bool(missing)
    hints += [f"There are no such fields: {', '.join(unknown)}"] * bool(unknown)
    wrong = []
    for name, (values, why) in FIELDS.items():
        mine = got.get(name)
        mine = mine.tolist() if isinstance(mine, torch.Tensor | np.ndarray) else mine
        if name in got and (mine is None or list(mine) != values):
            wrong.append(f"`{name}` is {mine}, which isn't right. It should be {why}")
    right = len(FIELDS) - len(missing) - len(wrong)
    expect(not hints + wrong, f"{right} of {len(FIELDS)} fields are right. {ALSO.join([*hints, *wrong[:2]])}")
    return f"all {len(FIELDS)} fields"
