"""Checks of notebook 04, memory pools. The oracle of a list of free runs is the plain set of free slots."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.teaching.exercises import Given, exercise
from nanoinfer.teaching.expectations import Hint, expect, expect_equal

Runs = list[tuple[int, int]]

# Free runs to start from: one run, several, runs of one slot, nothing free, all free.
STATES: list[Runs] = [[(4, 12)], [(0, 3), (5, 9), (20, 32)], [(1, 2), (3, 4), (6, 7), (31, 32)], [], [(0, 32)]]
SIZE = 32


def free_set(runs: Iterable[tuple[int, int]]) -> set[int]:
    return {slot for start, end in runs for slot in range(start, end)}


def as_runs(free: set[int]) -> Runs:
    """The maximal runs of a set of slots, by looking at every slot."""
    starts = [slot for slot in sorted(free) if slot - 1 not in free]
    ends = [slot + 1 for slot in sorted(free) if slot + 1 not in free]
    return list(zip(starts, ends, strict=True))


def plain_runs(runs: Any) -> Runs:
    """The student's runs as tuples of ints, empty ones refused; Hint when they are no such list."""
    try:
        plain = [(int(start), int(end)) for start, end in runs]
    except (TypeError, ValueError):
        raise Hint(f"`runs` must stay a list of pairs (start, end), but it is now {runs!r}") from None
    for start, end in plain:
        expect(start < end, f"`runs` now holds ({start}, {end}), a run without slots: leave it out once it is used up")
    return plain


def plain_ints(value: Any, what: str) -> list[int]:
    """A list, array or tensor as a list of ints; Hint when it is something else."""
    if value is None:
        raise Hint(f"{what} is None, but there is an answer here. Is a `return` missing?")
    try:
        return [int(item) for item in value]
    except (TypeError, ValueError):
        raise Hint(f"{what} must be a list of slots, got {type(value).__name__}: {value!r}") from None


def check_left(runs: Runs, want: set[int], hint: str) -> None:
    """`runs` must describe exactly the free slots `want`, in maximal runs."""
    plain = plain_runs(runs)
    expect_equal(sorted(free_set(plain)), sorted(want), hint)
    expect_equal(
        plain, as_runs(want), "The right slots are free, but `runs` must be sorted, and runs that touch are one"
    )


def kv_pool(size: int = SIZE, page_size: int = 1) -> TokenToKVPool:
    return TokenToKVPool(size, torch.float32, head_num=1, head_dim=2, layer_num=1, page_size=page_size)


@exercise("4.1", "Allocate the lowest free slots", points=2)
def alloc(given: Given) -> str:
    student = given["alloc"]
    cases = 0
    for state in STATES:
        free = free_set(state)
        for need in (1, 3, 4, 5, 8, 9, 12, 19, 32, 40):
            runs = list(state)
            got = student(runs, need)
            if need > len(free):
                if got is not None:
                    expect(
                        len(plain_ints(got, "What alloc returns")) >= need,
                        f"{need} slots were asked for, {len(free)} are free, and alloc returned only some. All or nothing: "
                        "a request that cannot have all its slots gets None, since a part of them would only block others",
                    )
                expect(got is None, f"{need} slots were asked for and {len(free)} are free: alloc must return None")
                expect_equal(
                    plain_runs(runs),
                    state,
                    "alloc returned None, but `runs` has changed. Nothing may be taken when not everything can be had: "
                    "those slots would be lost. Compare before you take",
                )
            else:
                slots = plain_ints(got, f"alloc({state}, {need})")
                expect(len(slots) == need, f"{need} slots were asked for, alloc returned {len(slots)}: {slots}")
                expect_equal(
                    slots,
                    sorted(free)[:need],
                    f"From {state}, {need} slots: the lowest free ones come first, in ascending order, across as many runs "
                    "as it takes, so that the used part of the pool stays compact",
                )
                expect(
                    runs != state, "The slots are right, but they are still in `runs`: the next one would get them too"
                )
                check_left(runs, free - set(slots), "What alloc took and what is left in `runs` do not add up")
            cases += 1
    runs = [(2, 6)]
    expect_equal(
        plain_ints(student(runs, 0), "alloc of 0 slots"), [], "Nothing asked for is an empty list, and not None"
    )
    expect_equal(plain_runs(runs), [(2, 6)], "Nothing was asked for, but `runs` has changed")
    return f"lowest first, all or nothing, in {cases + 1} cases"


@exercise("4.2", "From a block table to slots")
def slots_of(given: Given) -> str:
    student = given["slots_of"]
    one = student(torch.tensor([5, 2, 6]), torch.tensor([1]), 4)
    expect(
        plain_ints(one, "What slots_of returns") != [2 * 4 + 1],
        "Block table [5, 2, 6], P=4, position 1: the table was read at the position. It has one entry for each page: in "
        "which page of the text is this position?",
    )
    for page_size, table in ((4, [5, 2, 6]), (1, [9, 3, 4, 0]), (16, [3, 0]), (3, [7, 1, 0, 2])):
        want = [block * page_size + offset for block in table for offset in range(page_size)]
        for positions in (range(len(want)), [len(want) - 1], [0, len(want) - 1, 0], []):
            index = torch.tensor(list(positions), dtype=torch.int64)
            got = student(torch.tensor(table), index, page_size)
            expect(isinstance(got, torch.Tensor | np.ndarray), f"Return a tensor or an array, got {type(got).__name__}")
            expect_equal(list(got.shape), list(index.shape), "There is one slot for each position: same shape")
            expect_equal(
                [int(slot) for slot in got],
                [want[position] for position in positions],
                f"Block table {table}, P={page_size}, positions {list(positions)}. Position n lies in page n // P of the "
                "text, whose block the table names, at offset n % P",
            )
    return "for pages of 1, 3, 4 and 16 tokens"


@exercise("4.3", "Two rows share a prefix")
def share_prefix(given: Given) -> str:
    student = given["share_prefix"]
    for length, total in ((5, 9), (1, 2), (8, 9), (4, 12), (0, 3)):
        rows, pool = ReqToTokenPool(4, 16), kv_pool(SIZE)
        rows.req_to_token[:] = 99  # left over from earlier requests
        pool.alloc(3)
        held = pool.alloc(8)
        assert held is not None
        rows.req_to_token[2, :8] = held
        key = pool.get_key_buffer(0)
        key[:] = torch.arange(float(SIZE))[:, None, None]
        before, keys_before, free_before = rows.req_to_token.clone(), key.clone(), pool.available_size()
        got = student(rows, pool, old=2, new=1, length=length, total=total)
        case = f"{length} of {total} tokens shared"
        expect(got is not None, f"{case}: there are enough free slots, but the answer is None. Is a `return` missing?")
        row, taken = rows.req_to_token[1], free_before - pool.available_size()
        expect(
            taken != total or length == 0,
            f"{case}: {taken} slots were taken from the pool. The shared tokens have K/V already: only the other "
            f"{total - length} need slots",
        )
        expect(taken == total - length, f"{case}: {taken} slots were taken from the pool, must be {total - length}")
        expect_equal(
            row[:length].tolist(),
            before[2, :length].tolist(),
            f"{case}: at the shared positions the new row must name the same slots as the old one",
        )
        rest = row[length:total].tolist()
        expect(
            set(rest).isdisjoint(held.tolist()),
            f"{case}: the rest of the new row names slots of the old request: {rest}. Its tokens are different ones from "
            "there on",
        )
        expect_equal(
            rest, list(range(11, 11 + total - length)), f"{case}: the rest of the row names the new slots, in order"
        )
        expect_equal(int(got), total - length, f"{case}: return how many slots were taken")
        expect_equal(rows.req_to_token[2], before[2], f"{case}: the old row must stay as it was")
        expect_equal(
            row[total:].tolist(), [99] * (16 - total), f"{case}: right of the new length nothing is to be written"
        )
        expect(
            torch.equal(key, keys_before), f"{case}: K/V has been written or copied. Naming the slots is all it takes"
        )
    rows, pool = ReqToTokenPool(4, 16), kv_pool(12)
    held = pool.alloc(8)
    assert held is not None
    rows.req_to_token[0, :8] = held
    before = rows.req_to_token.clone()
    got = student(rows, pool, old=0, new=1, length=3, total=10)
    expect(got is None, f"7 slots were needed and 4 are free: return None, got {got!r}")
    expect(pool.available_size() == 4, "None was returned, but slots were taken: they are lost now")
    expect_equal(
        rows.req_to_token, before, "None was returned, but a row has changed. Take the slots first, then write"
    )
    return "same slots, nothing copied, new slots for the rest"


@exercise("4.4", "Allocate neighbours, first fit")
def alloc_contiguous(given: Given) -> str:
    student = given["alloc_contiguous"]
    cases = 0
    for state in [*STATES, [(0, 2), (4, 9), (10, 13), (20, 23)]]:
        for need in (1, 2, 3, 4, 5, 8, 12, 13, 32, 33):
            runs = list(state)
            fitting = [start for start, end in state if end - start >= need]
            got = student(runs, need)
            case = f"{need} neighbours from {state}"
            if not fitting:
                expect(
                    got is None,
                    f"{case}: no run is long enough, so the answer is None, however many slots are free; got {got!r}",
                )
                expect_equal(plain_runs(runs), state, f"{case}: None was returned, but `runs` has changed")
            else:
                pair = plain_ints(got, case)
                expect(len(pair) == 2, f"{case}: return (start, end), got {got!r}")
                start, end = pair
                expect(
                    end != start + need - 1,
                    f"{case}: `end` is exclusive: the slots are start, ..., end - 1, and end is the next",
                )
                expect_equal(end - start, need, f"{case}: ({start}, {end}) is not {need} slots")
                expect(
                    start == fitting[0] or start not in fitting,
                    f"{case}: the run at {start} fits, but *first fit* takes the first that does, at {fitting[0]}",
                )
                expect_equal(start, fitting[0], f"{case}: take from the front of the first run that is long enough")
                check_left(
                    runs, free_set(state) - set(range(start, end)), f"{case}: what was taken and what is left differ"
                )
            cases += 1
    return f"first fit in {cases} cases"


@exercise("4.5", "Free, errors before effects", points=2)
def free(given: Given) -> str:
    student = given["free"]
    good: list[tuple[Runs, list[int]]] = [
        ([(0, 3), (5, 9), (20, 32)], [12]),
        ([(0, 3), (5, 9), (20, 32)], [4, 3]),
        ([(0, 3), (5, 9), (20, 32)], [19, 9, 4]),
        ([(0, 3), (5, 9), (20, 32)], [18, 10, 12, 11]),
        ([], [31, 0]),
        ([], list(range(31, -1, -1))),
        ([(0, 32)], []),
        ([(1, 31)], [31, 0]),
    ]
    for state, slots in good:
        runs = list(state)
        student(runs, list(slots), SIZE)
        check_left(runs, free_set(state) | set(slots), f"After freeing {slots} from {state} the wrong slots are free")
    bad: list[tuple[Runs, list[int], int, str]] = [
        ([(0, 3)], [7], 7, ""),  # can be freed: the same state, the same form
        ([(0, 3)], [5, 32], 32, f"is outside 0..{SIZE - 1}"),
        ([(0, 3)], [5, -1], -1, f"is outside 0..{SIZE - 1}; a negative index would count from the end of the pool"),
        ([(0, 3)], [6, 1], 1, "is free already: two requests would get it"),
        ([(0, 3)], [6, 2, 8], 2, "is free already: two requests would get it"),
        ([(0, 3)], [9, 4, 9], 9, "is given twice: it would be counted twice"),
        ([], [3, 3], 3, "is given twice: it would be counted twice"),
    ]
    for state, slots, offender, why in bad:
        runs = list(state)
        try:
            student(runs, list(slots), SIZE)
            refused = None
        except ValueError as error:
            refused = str(error)
        if not why:
            expect(refused is None, f"Freeing {slots} from {state} is fine, but it was refused: {refused}")
            continue
        expect(refused is not None, f"free({state}, {slots}): slot {offender} {why}. Raise a ValueError")
        expect(
            str(offender) in (refused or ""),
            f"The message must name the slot {offender}, so that the bug can be found: {refused!r}",
        )
        expect_equal(
            plain_runs(runs),
            state,
            f"free({state}, {slots}) was refused, but `runs` has changed before that. Errors before effects: check all of "
            "them first, then change anything",
        )
    return "merged runs, and three errors that change nothing"


@exercise("4.6", "Find the leak")
def audit(given: Given) -> str:
    student = given["audit"]
    rng = np.random.default_rng(0)
    for case in range(8):
        pool = kv_pool(48)
        taken = rng.permutation(48)[: 30 + case]
        pool.alloc(48)
        pool.free(np.setdiff1d(np.arange(48), taken))
        parts = np.split(taken, [9, 17, 26])
        owners: dict[str, Any] = {
            f"request {i}": torch.from_numpy(part.astype(np.int32)) for i, part in enumerate(parts[:3])
        }
        leaked, contested = sorted(parts[3].tolist()), []
        if case % 2:
            owners["request 3"] = torch.cat([owners["request 0"][:2], torch.from_numpy(parts[3][:1].astype(np.int32))])
            contested += owners["request 0"][:2].tolist()
            leaked.remove(int(parts[3][0]))
        if case % 3 == 2:
            freed = owners["request 2"][:2]
            pool.free(freed)
            contested += freed.tolist()
        if case == 7:
            owners["request without slots"] = torch.empty(0, dtype=torch.int32)
        got = student(pool, owners)
        expect(isinstance(got, tuple) and len(got) == 2, f"Return two lists, (leaked, contested), got {got!r}")
        mine, theirs = plain_ints(got[0], "The list of leaked slots"), plain_ints(got[1], "The list of contested slots")
        expect(
            set(mine).isdisjoint(pool.free_slots().tolist()),
            "Some of your leaked slots are free. A free slot is not lost: the free list owns it",
        )
        expect_equal(mine, leaked, "Leaked: neither free nor held, ascending")
        expect(
            len(set(theirs)) == len(theirs),
            f"A contested slot is to be named once, however many owners it has: {theirs}",
        )
        if case % 3 == 2:
            expect(
                set(freed.tolist()) <= set(theirs),
                "A slot that has an owner and that is free at the same time is contested too: the free list is an owner",
            )
        expect_equal(theirs, sorted(contested), "Contested: more than one owner, ascending")
    return "leaks, double owners, and slots that are free and owned at once"
