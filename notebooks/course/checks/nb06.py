"""Checks of notebook 06, input metadata. The expected values come from loops over requests and positions."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, expect, expect_equal
from notebooks.course.several import ALSO, several

# seq_lens, prefix_lens: the worked example, no prefix, mixed, different prefixes, one new token each, a single token.
BATCHES = [
    ([12], [7]),
    ([7], [0]),
    ([8, 3, 6], [5, 0, 2]),
    ([4, 4, 4], [0, 1, 3]),
    ([9, 1, 13, 2], [8, 0, 12, 1]),
    ([1], [0]),
]
LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)


def int32(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def checked_tensor(got: Any, dtype: torch.dtype, what: str) -> torch.Tensor:
    """`got` if it is a one-dimensional tensor of `dtype`; else raises Hint."""
    expect(got is not None, f"{what} is None. Is a `return` missing?")
    expect(isinstance(got, torch.Tensor), f"{what} must be a tensor, got {type(got).__name__}")
    expect(got.ndim == 1, f"{what} must have one dimension, request after request: got shape {list(got.shape)}")
    name = str(dtype).removeprefix("torch.")
    expect(
        got.dtype == dtype,
        f"{what} must be {name}, got {str(got.dtype).removeprefix('torch.')}. Kernels read the tensor's raw memory, so the "
        "dtype must be right",
    )
    return got


@exercise("6.1", "Positions of the new tokens")
def positions(given: Given) -> str:
    student = given["positions"]
    for seq_lens, prefix_lens in BATCHES:
        want = [p for seq, prefix in zip(seq_lens, prefix_lens, strict=True) for p in range(prefix, seq)]
        got = checked_tensor(student(int32(seq_lens), int32(prefix_lens)), torch.int64, "positions").tolist()
        case = f"seq_lens={seq_lens}, prefix_lens={prefix_lens}"
        new_lens = [seq - prefix for seq, prefix in zip(seq_lens, prefix_lens, strict=True)]
        expect(
            got != [p for new in new_lens for p in range(new)] or got == want,
            f"{case}: you start every request at position 0. The cached tokens come first, so the first new token is at "
            "the position right after the prefix",
        )
        expect(
            got != list(range(len(want))) or got == want,
            f"{case}: these are indices in the batch, 0 to T - 1. A position is counted within the request's sequence",
        )
        expect(
            got != [p for seq in seq_lens for p in range(seq)] or got == want,
            f"{case}: these are the positions of all tokens. This pass computes only the new ones",
        )
        expect_equal(got, want, f"{case}: the positions are prefix_len, ..., seq_len - 1 of each request in turn")
    return "prefix_len .. seq_len - 1 of each request, whatever else is in the batch"


@exercise("6.2", "CSR row pointers")
def row_pointers(given: Given) -> str:
    student = given["row_pointers"]
    with several() as part:
        for lens in ([12], [8, 3, 6], [1, 1, 1, 1], [5, 17, 2, 9, 30]):
            got = student(int32(lens))
            expect(isinstance(got, tuple) and len(got) == 2, f"Return two tensors, (indptr, start_loc), got {got!r}")
            want = [sum(lens[:i]) for i in range(len(lens) + 1)]
            with part("indptr"):
                indptr = checked_tensor(got[0], torch.int32, "indptr").tolist()
                _expect_indptr(indptr, want, lens)
            start_loc = checked_tensor(got[1], torch.int32, "start_loc").tolist()
            with part(
                "start_loc", *["indptr"] * (start_loc == indptr[:-1])
            ):  # taken from a wrong one, it is wrong, too
                expect(
                    start_loc != want[1:],
                    f"lens={lens}: your start_loc is where each request *ends*. It must be the sum of the lengths *before* "
                    "the request",
                )
                expect_equal(start_loc, want[:-1], f"lens={lens}: start_loc must say where each request begins: [B]")
            lens_tensor = int32([3, 4])
            with part("in place"):
                student(lens_tensor)
                expect_equal(
                    lens_tensor.tolist(), [3, 4], "Your function changed `lens`, but the caller still needs it"
                )
    return "B + 1 pointers, and start_loc is all but the last"


def _expect_indptr(indptr: list[int], want: list[int], lens: list[int]) -> None:
    expect(
        indptr != want[1:],
        f"lens={lens}: the 0 at the front is missing. Request 0 begins at 0, and request i at indptr[i]",
    )
    expect(
        indptr != want[:-1],
        f"lens={lens}: the total is missing at the end. Request i has the range indptr[i] : indptr[i + 1]. The last "
        "request needs an end too, so B requests need B + 1 pointers",
    )
    expect_equal(indptr, want, f"lens={lens}: indptr must be 0 followed by the running sums")


@exercise("6.3", "Is it a range?")
def contiguous(given: Given) -> str:
    student = given["contiguous"]
    cases: list[tuple[list[int], str]] = [
        ([16, 17, 18, 19, 20], ""),
        ([0, 1, 2, 3, 4, 5, 6], ""),
        ([9], "a single slot is a range too"),
        ([0], "slot 0 is a slot like any other"),
        (
            [4, 6, 5, 7],
            "the first and the last slot fit, but the others are in the wrong order: two tokens' K/V would be swapped",
        ),
        (
            [4, 9, 2, 7],
            "the last slot is the first + 3, but the two between are somewhere else: slots of other requests would be "
            "overwritten",
        ),
        ([7, 6, 5, 4], "the slots are adjacent but in descending order: a copy would store the K/V in reverse"),
        ([3, 4, 6, 7], "there is a gap"),
        ([5, 6, 7, 3], "the last slot is lower than the others"),
        ([2, 2], "the same slot twice isn't a range"),
    ]
    with several() as part:
        for slots, why in cases:
            with part("two values"):
                got = student(torch.tensor(slots))
                expect(isinstance(got, tuple | list) and len(got) == 2, f"{slots}: return two values, got {got!r}")
            with part(*_about(slots), "two values"):
                _expect_range(student, slots, why)
    return "order, gaps and single slots"


def _about(slots: list[int]) -> list[str]:
    """What a case of exercise 6.3 is about, and what else it depends on."""
    if all(after == before + 1 for before, after in pairwise(slots)):
        return ["ranges"] if len(slots) > 1 else ["single slots", "ranges"]
    as_far_as_a_range = len(slots) - 1 in (slots[-1] - slots[0], max(slots) - min(slots))
    return ["the slots between"] if as_far_as_a_range else ["the ends"]


def _expect_range(student: Any, slots: list[int], why: str) -> None:
    for dtype in (torch.int32, torch.int64):
        is_range = all(after == before + 1 for before, after in pairwise(slots))
        want = (slots[0], slots[-1] + 1) if is_range else (None, None)
        got = student(torch.tensor(slots, dtype=dtype))
        if not (isinstance(got, tuple | list) and len(got) == 2):
            raise Hint(f"{slots}: return two values, got {got!r}")
        if not is_range:
            expect(tuple(got) == want, f"{slots}: {why}. Return (None, None), not {tuple(got)}")
            continue
        expect(
            None not in got, f"{slots}: this is a range{': ' + why if why else ''}. Return its ends, not {tuple(got)}"
        )
        start, end = int(got[0]), int(got[1])
        expect(
            (start, end) != (slots[0], slots[-1]),
            f"{slots}: `end` is exclusive: it must be the slot after the last one",
        )
        expect_equal((start, end), want, f"{slots}: return the first slot and the one after the last")


def refuse_loops(function: Callable[..., Any]) -> None:
    """Raises Hint if the source of `function` has a loop or a comprehension. Accepts it if there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, LOOPS):
            raise Hint(
                "Your result is right, but your function has a Python loop (or a comprehension). For 64 requests with 500 "
                "tokens each, it runs 32,000 times before every pass. Compute all tokens at once"
            )


@exercise("6.4", "kv_indices without a loop", points=2)
def kv_indices(given: Given) -> str:
    student = given["kv_indices"]
    rng = np.random.default_rng(0)
    for rows, seq_lens in (
        ([0], [12]),
        ([2, 0, 3], [8, 3, 6]),
        ([3, 1], [1, 16]),
        ([1, 0, 3, 2], [5, 5, 5, 5]),
        ([2, 3], [16, 16]),
    ):
        table = torch.from_numpy(rng.permutation(64).reshape(4, 16).astype(np.int32))
        want = [int(table[row, p]) for row, seq in zip(rows, seq_lens, strict=True) for p in range(seq)]
        before = table.clone()
        got = checked_tensor(student(table, int32(rows), int32(seq_lens)), torch.int32, "kv_indices").tolist()
        case = f"req_pool_indices={rows}, seq_lens={seq_lens}"
        by_batch_index = [int(table[i, p]) for i, seq in enumerate(seq_lens) for p in range(seq)]
        expect(
            got != by_batch_index or got == want,
            f"{case}: you read rows 0, 1, ... of the table. Request i of the batch is in row req_pool_indices[i]",
        )
        expect(
            len(got) == len(want),
            f"{case}: you return {len(got)} slots for {len(want)} tokens. Return one slot for each token of each request, "
            "without padding",
        )
        expect_equal(got, want, f"{case}: list the slots request by request, each in the order of its positions")
        expect(torch.equal(table, before), f"{case}: you changed the table of rows. Only read it")
    refuse_loops(student)
    return "every token of every request in one look-up"


@exercise("6.5", "A whole description, by hand", points=2)
def predicted(given: Given) -> str:
    rows = {2: [8, 9, 10, 11, 0, 1, 2, 3, 20], 0: [8, 9, 10, 11, 4]}
    seq_lens, prefix_lens = [9, 5], [6, 4]
    new_lens = [3, 1]
    want: dict[str, tuple[list[int], str]] = {
        "req_pool_indices": ([2, 0], "the rows, in the order of the batch: row 2 comes first here"),
        "seq_lens": (seq_lens, "how many tokens each request has *after* this pass"),
        "prefix_lens": (
            prefix_lens,
            "how many tokens have K/V before this pass, no matter whether another request or this one computed it",
        ),
        "extend_seq_lens": (new_lens, "seq_lens - prefix_lens"),
        "positions": ([6, 7, 8, 4], "prefix_len .. seq_len - 1 of row 2, then of row 0"),
        "out_cache_loc": (
            [slot for row, prefix in zip(rows, prefix_lens, strict=True) for slot in rows[row][prefix:]],
            "the slots in the rows at the new positions, no matter which page they are in",
        ),
        "start_loc": ([0, 9], "where each request begins among *all* tokens: the sum of the seq_lens before it"),
        "qo_indptr": ([0, 3, 4], "where each request begins among the *new* tokens, and their total at the end"),
        "kv_indptr": ([0, 9, 14], "start_loc, with the total of all tokens added at the end"),
        "kv_indices": (rows[2] + rows[0], "all slots of row 2 up to its length, then all of row 0"),
        "kv_last_page_len": (
            [1 for _ in rows],
            "1 for each request: `kv_indices` lists single slots, so its pages have one token, whatever page size the pool "
            "has",
        ),
    }
    got = given["predicted"]()
    expect(isinstance(got, dict), f"predicted() must return a dict, got {type(got).__name__}")
    missing = [name for name in want if name not in got]
    unknown = [name for name in got if name not in want]
    names = [f"These fields are still missing: {', '.join(missing)}"] * bool(missing)
    names += [f"There are no such fields: {', '.join(map(str, unknown))}"] * bool(unknown)
    right = 0
    wrong: list[str] = []
    for name, (values, why) in want.items():
        if name in missing:
            continue
        mine = got[name].tolist() if isinstance(got[name], torch.Tensor | np.ndarray) else got[name]
        if mine is not None and list(mine) == values:
            right += 1
        else:
            wrong.append(f"`{name}` is {mine}, which isn't right. It should be {why}")
    if wrong:
        first = "The one that isn't" if len(wrong) == 1 else "The first two that aren't"
        names.append(f"{right} of {len(want)} fields are right. {first}: {ALSO.join(wrong[:2])}")
    expect(not names, ALSO.join(names))
    return f"all {len(want)} fields"
