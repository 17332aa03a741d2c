"""Checks of notebook 05: free slots as a list of runs, block tables, rows that share slots, and slots without an owner."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal
from notebooks.course.tables import Wrong, compare, expect_refused

Runs = list[tuple[int, int]]

SIZE = 32
# Free runs to start from: one run, several, runs of one slot, nothing free, all free.
STATES: list[Runs] = [[(4, 12)], [(0, 3), (5, 9), (20, 32)], [(1, 2), (3, 4), (6, 7), (31, 32)], [], [(0, 32)]]
ALL_OR_NOTHING = "It must give all or nothing: a request can't use part of its slots and would only block others"


def free_set(runs: Iterable[tuple[int, int]]) -> set[int]:
    return {slot for start, end in runs for slot in range(start, end)}


def as_runs(free: set[int]) -> Runs:
    """The maximal runs of a set of slots, by looking at every slot."""
    starts = [slot for slot in sorted(free) if slot - 1 not in free]
    ends = [slot + 1 for slot in sorted(free) if slot + 1 not in free]
    return list(zip(starts, ends, strict=True))


def _after(student: Any) -> Any:
    """The student's function on a list of runs of its own: what it returns, and the runs afterwards."""

    def call(runs: Runs, *arguments: Any) -> tuple[Any, Runs]:
        own = list(runs)
        got = student(own, *arguments)
        return (list(map(int, got)) if isinstance(got, list | tuple) else got), [(start, end) for start, end in own]

    return call


@exercise("5.1", "Allocate the lowest free slots", points=2)
def _(given: Given) -> str:
    cases = [(state, need) for state in STATES for need in (0, 1, 3, 4, 5, 8, 9, 12, 19, 32, 40)]
    mistakes = {
        f"alloc returned only some of the slots. {ALL_OR_NOTHING}, so return None": "partly",
        "The slots are still in `runs`, so the next request would get them too": "kept",
        "alloc returned None but changed `runs`, so the slots that it took are lost. Check that there are enough slots "
        "before you take any": "lost",
        "If no slots are asked for, return an empty list, not None": "none_of_none",
        "Return the lowest free slots in ascending order": "falling",
    }
    hint = (
        "take the lowest free slots, from as many runs as you need, and leave whole runs, none of them empty; None if "
    )
    hint += "there are too few. Is a `return` missing?"
    compare(_after(given["alloc"]), _lowest, cases, mistakes, hint=hint)
    return f"lowest first, all or nothing, in {len(cases)} cases"


def _lowest(runs: Runs, need_size: int, wrong: Wrong = ()) -> tuple[list[int] | None, Runs]:
    free = free_set(runs)
    slots = sorted(free)[:need_size]
    if (need_size > len(free) and "partly" not in wrong) or (need_size == 0 and "none_of_none" in wrong):
        return None, [] if "lost" in wrong and need_size else runs
    return slots[::-1] if "falling" in wrong else slots, runs if "kept" in wrong else as_runs(free - set(slots))


@exercise("5.4", "Allocate neighbours, first fit")
def _(given: Given) -> str:
    states = [*STATES, [(0, 2), (4, 9), (10, 13), (20, 23)]]
    cases = [(state, need) for state in states for need in (1, 2, 3, 4, 5, 8, 12, 13, 32, 33)]
    mistakes = {
        "`end` is exclusive. The slots are start, ..., end - 1, and end is the next one": "inclusive",
        "A later run is long enough, but *first fit* takes the first such run": "last",
        "The slots are still in `runs`: the wrong slots are left there": "kept",
    }
    hint = (
        "take the first slots of the first run that is long enough: return (start, end); None if there is no such run"
    )
    hint += ", however many slots are free in total. Is a `return` missing?"
    compare(_after(given["alloc_contiguous"]), _first_fit, cases, mistakes, hint=hint)
    return f"first fit in {len(cases)} cases"


def _first_fit(runs: Runs, need_size: int, wrong: Wrong = ()) -> tuple[list[int] | None, Runs]:
    fitting = [start for start, end in runs if end - start >= need_size]
    if not fitting:
        return None, runs
    start = fitting[-1 if "last" in wrong else 0]
    left = as_runs(free_set(runs) - set(range(start, start + need_size)))
    return [start, start + need_size - ("inclusive" in wrong)], runs if "kept" in wrong else left


@exercise("5.5", "Free, errors before effects", points=2)
def _(given: Given) -> str:
    student, state = given["free"], [(0, 3), (5, 9), (20, 32)]
    cases: list[tuple[Runs, list[int], int]] = [
        *((state, slots, SIZE) for slots in ([12], [4, 3], [19, 9, 4], [18, 10, 12, 11])),
        ([], [31, 0], SIZE),
        ([], list(range(31, -1, -1)), SIZE),
        ([(0, 32)], [], SIZE),
        ([(1, 31)], [31, 0], SIZE),
        ([(0, 3)], [7], SIZE),
    ]
    mistakes = {"Sort `runs` and merge the runs that touch each other": "unmerged"}
    compare(
        _after(student), _freed, cases, mistakes, hint="the wrong slots are free afterwards. Free runs never touch."
    )
    for runs, slots, offender, why in (
        ([(0, 3)], [5, 32], 32, "is outside 0..31"),
        ([(0, 3)], [5, -1], -1, "is outside 0..31; a negative index would count from the end of the pool"),
        ([(0, 3)], [6, 1], 1, "is already free: two requests would get it"),
        ([(0, 3)], [9, 4, 9], 9, "is given twice: it would be counted twice"),
        ([], [3, 3], 3, "is given twice: it would be counted twice"),
    ):
        own, said = list(runs), f"free({runs}, {slots}): slot {offender} {why}."
        expect_refused(lambda own=own, slots=slots: student(own, list(slots), SIZE), [offender], said)  # type: ignore[misc]
        late = "raised an error, but only after it had changed `runs`. Errors before effects: check all slots first"
        expect_equal(own, runs, f"free({runs}, {slots}) {late}")
    return "merged runs, and three errors that change nothing"


def _freed(runs: Runs, slots: list[int], size: int, wrong: Wrong = ()) -> tuple[None, Runs]:
    single = [(slot, slot + 1) for slot in slots]
    return None, [*runs, *single] if "unmerged" in wrong else as_runs(free_set(runs) | set(slots))


@exercise("5.2", "From a block table to slots")
def _(given: Given) -> str:
    student, cases = given["slots_of"], []
    for page_size, table in ((4, [5, 2, 6]), (1, [9, 3, 4, 0]), (16, [3, 0]), (3, [7, 1, 0, 2])):
        tokens = page_size * len(table)
        cases += [(table, each, page_size) for each in (list(range(tokens)), [tokens - 1], [0, tokens - 1, 0], [1], [])]
    mistakes = {
        "You used the position itself as the index into the table. The table has one entry per page: in which page of the "
        "text is this position?": lambda table, positions, size: [
            table[p % len(table)] * size + p % size for p in positions
        ],
        "That is where each block begins. Position n is at offset n % P in it.": (
            lambda table, positions, size: [table[p // size] * size for p in positions]
        ),
    }

    def call(block_table: list[int], positions: list[int], page_size: int) -> list[int]:
        got = student(torch.tensor(block_table), torch.tensor(positions, dtype=torch.int64), page_size)
        expect(got is not None, "slots_of returned None. Is a `return` missing?")
        return [int(slot) for slot in got]

    hint = "position n is in page n // P of the text, at offset n % P. The table names the block of each page"
    compare(call, _slots, cases, mistakes, hint=hint)
    return "for pages of 1, 3, 4 and 16 tokens"


def _slots(block_table: list[int], positions: list[int], page_size: int) -> list[int]:
    every = [block * page_size + offset for block in block_table for offset in range(page_size)]
    return [every[position] for position in positions]


def kv_pool(size: int = SIZE) -> TokenToKVPool:
    return TokenToKVPool(size, torch.float32, head_num=1, head_dim=2, layer_num=1)


@exercise("5.3", "Two rows share a prefix")
def _(given: Given) -> str:
    student = given["share_prefix"]
    for length, total in ((5, 9), (1, 2), (8, 9), (4, 12), (0, 3)):
        rows, pool = ReqToTokenPool(4, 16), kv_pool()
        rows.req_to_token[:] = 99  # left over from earlier requests
        pool.alloc(3)
        held = pool.alloc(8)
        assert held is not None
        rows.req_to_token[2, :8] = held
        key, table = pool.get_key_buffer(0), rows.req_to_token
        key[:] = torch.arange(float(SIZE))[:, None, None]
        before, keys_before, free_before = table.clone(), key.clone(), pool.available_size()
        got = student(rows, pool, old=2, new=1, length=length, total=total)
        case, taken = f"{length} of {total} tokens shared", free_before - pool.available_size()
        expect(got is not None, f"{case}: there are enough free slots, but you returned None. Is a `return` missing?")
        few = f"you took {taken} slots from the pool. The shared tokens already have K/V, so only"
        expect(taken == total - length, f"{case}: {few} {total - length} need slots")
        same = "at the shared positions, the new row must have the same slots as the old row"
        expect_equal(table[1, :length].tolist(), before[2, :length].tolist(), f"{case}: {same}")
        rest = f"{case}: the rest of the row must be the new slots, in order, and none of the old request's"
        expect_equal(table[1, length:total].tolist(), list(range(11, 11 + total - length)), rest)
        expect_equal(int(got), total - length, f"{case}: return how many slots you took")
        expect_equal(table[2], before[2], f"{case}: the old row must stay as it was")
        expect_equal(
            table[1, total:].tolist(), [99] * (16 - total), f"{case}: don't write anything after the new length"
        )
        copied = f"{case}: you wrote or copied K/V. It is enough to write the slots into the new row"
        expect(torch.equal(key, keys_before), copied)
    rows, pool = ReqToTokenPool(4, 16), kv_pool(12)
    rows.req_to_token[0, :8] = torch.arange(8, dtype=torch.int32) + 1
    pool.alloc(8)
    before = rows.req_to_token.clone()
    got = student(rows, pool, old=0, new=1, length=3, total=10)
    expect(got is None, f"7 slots are needed and only 4 are free: return None, not {got!r}")
    expect(pool.available_size() == 4, "You returned None but took slots: they are lost now")
    late = "You returned None but changed a row. Take the slots first, then write"
    expect_equal(rows.req_to_token, before, late)
    return "same slots, nothing copied, new slots for the rest"


@exercise("5.6", "Find the leak")
def _(given: Given) -> str:
    rng, cases = np.random.default_rng(0), []
    for case in range(8):
        pool, taken = kv_pool(48), rng.permutation(48)[: 30 + case].astype(np.int32)
        pool.alloc(48)
        pool.free(np.setdiff1d(np.arange(48), taken))
        parts = [torch.from_numpy(part) for part in np.split(taken, [9, 17, 26])]
        owners = {f"request {i}": part for i, part in enumerate(parts[:3])}
        if case % 2:
            owners["request 3"] = torch.cat([owners["request 0"][:2], parts[3][:1]])
        if case % 3 == 2:
            pool.free(owners["request 2"][:2])
        if case == 7:
            owners["request without slots"] = torch.empty(0, dtype=torch.int32)
            owners["request 4"] = owners["request 0"][:1]  # a slot with three owners
        cases.append((pool, owners))
    mistakes = {
        "Some of the slots that you call leaked are free. A free slot isn't lost: the free list owns it": "free_leak",
        "A slot that has an owner and is free at the same time is contested too, because the free list is an "
        "owner": "only_requests",
        "List a contested slot once, however many owners it has": "repeated",
    }
    hint = "leaked slots are neither free nor held by an owner; contested ones have more than one owner. List both in "
    hint += "ascending order"
    audit = given["audit"]
    compare(
        lambda pool, owners: tuple(list(map(int, each)) for each in audit(pool, owners)),
        _audit,
        cases,
        mistakes,
        hint=hint,
    )
    return "leaks, double owners, and slots that are free and owned at once"


def _audit(pool: TokenToKVPool, owners: dict[str, torch.Tensor], wrong: Wrong = ()) -> tuple[list[int], list[int]]:
    held, free = [slot for slots in owners.values() for slot in slots.tolist()], pool.free_slots().tolist()
    everything = held if "only_requests" in wrong else held + free
    leaked = [slot for slot in range(pool.size) if slot not in held and ("free_leak" in wrong or slot not in free)]
    contested = [slot for slot in range(pool.size) if everything.count(slot) > 1]
    return leaked, [slot for slot in contested for _ in range(everything.count(slot) - 1 if "repeated" in wrong else 1)]
