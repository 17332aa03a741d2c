"""Checks of notebook 05: slots from a block table, slots that two rows share, and slots that have no owner or too many."""

from typing import Any

import numpy as np
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from notebooks.course.checks.nb05 import SIZE, plain_ints
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal
from notebooks.course.several import several


def kv_pool(size: int = SIZE, page_size: int = 1) -> TokenToKVPool:
    return TokenToKVPool(size, torch.float32, head_num=1, head_dim=2, layer_num=1, page_size=page_size)


@exercise("5.2", "From a block table to slots")
def slots_of(given: Given) -> str:
    student = given["slots_of"]
    one = student(torch.tensor([5, 2, 6]), torch.tensor([1]), 4)
    expect(
        plain_ints(one, "What slots_of returns") != [2 * 4 + 1],
        "Block table [5, 2, 6], P=4, position 1: you used the position itself as the index into the table. The table has "
        "one entry per page: in which page of the text is this position?",
    )
    for page_size, table in ((4, [5, 2, 6]), (1, [9, 3, 4, 0]), (16, [3, 0]), (3, [7, 1, 0, 2])):
        want = [block * page_size + offset for block in table for offset in range(page_size)]
        for positions in (range(len(want)), [len(want) - 1], [0, len(want) - 1, 0], []):
            index = torch.tensor(list(positions), dtype=torch.int64)
            got = student(torch.tensor(table), index, page_size)
            expect(isinstance(got, torch.Tensor | np.ndarray), f"Return a tensor or an array, got {type(got).__name__}")
            expect_equal(list(got.shape), list(index.shape), "Return one slot for each position, in the same shape")
            expect_equal(
                [int(slot) for slot in got],
                [want[position] for position in positions],
                f"Block table {table}, P={page_size}, positions {list(positions)}. Position n is in page n // P of the "
                "text, at offset n % P. The table names the block of each page",
            )
    return "for pages of 1, 3, 4 and 16 tokens"


@exercise("5.3", "Two rows share a prefix")
def share_prefix(given: Given) -> str:
    student = given["share_prefix"]
    with several() as part:
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
            expect(
                got is not None, f"{case}: there are enough free slots, but you returned None. Is a `return` missing?"
            )
            _expect_shared(
                part, case, rows.req_to_token, before, free_before - pool.available_size(), got, (length, total)
            )
            with part("copied"):
                expect(
                    torch.equal(key, keys_before),
                    f"{case}: you wrote or copied K/V. It is enough to write the slots into the new row",
                )
        rows, pool = ReqToTokenPool(4, 16), kv_pool(12)
        held = pool.alloc(8)
        assert held is not None
        rows.req_to_token[0, :8] = held
        before = rows.req_to_token.clone()
        with part("none", "taken"):
            got = student(rows, pool, old=0, new=1, length=3, total=10)
            expect(got is None, f"7 slots are needed and only 4 are free: return None, not {got!r}")
            expect(pool.available_size() == 4, "You returned None but took slots: they are lost now")
            expect_equal(
                rows.req_to_token, before, "You returned None but changed a row. Take the slots first, then write"
            )
    return "same slots, nothing copied, new slots for the rest"


def _expect_shared(
    part: several, case: str, table: torch.Tensor, before: torch.Tensor, taken: int, got: Any, lens: tuple[int, int]
) -> None:
    """Row 1 shares `lens[0]` of its `lens[1]` tokens with row 2. `before`: the table before that. `taken`: how many slots
    the student took from the pool."""
    length, total = lens
    row, held = table[1], before[2, :8]
    with part("taken"):
        expect(
            taken != total or length == 0,
            f"{case}: you took {taken} slots from the pool. The shared tokens already have K/V, so only the other "
            f"{total - length} need slots",
        )
        expect(taken == total - length, f"{case}: you took {taken} slots from the pool; it must be {total - length}")
    with part("shared"):
        expect_equal(
            row[:length].tolist(),
            before[2, :length].tolist(),
            f"{case}: at the shared positions, the new row must have the same slots as the old row",
        )
    with part("rest", "taken"):
        rest = row[length:total].tolist()
        expect(
            set(rest).isdisjoint(held.tolist()),
            f"{case}: the rest of the new row has slots of the old request: {rest}. From there on the tokens differ and "
            "need new slots",
        )
        expect_equal(
            rest, list(range(11, 11 + total - length)), f"{case}: the rest of the row must be the new slots, in order"
        )
    with part("returned", "taken"):
        expect_equal(int(got), total - length, f"{case}: return how many slots you took")
    with part("old row"):
        expect_equal(table[2], before[2], f"{case}: the old row must stay as it was")
    with part("beyond"):
        expect_equal(row[total:].tolist(), [99] * (16 - total), f"{case}: don't write anything after the new length")


@exercise("5.6", "Find the leak")
def audit(given: Given) -> str:
    student = given["audit"]
    rng = np.random.default_rng(0)
    with several() as part:
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
                owners["request 3"] = torch.cat(
                    [owners["request 0"][:2], torch.from_numpy(parts[3][:1].astype(np.int32))]
                )
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
            mine, theirs = (
                plain_ints(got[0], "The list of leaked slots"),
                plain_ints(got[1], "The list of contested slots"),
            )
            with part("free list"):
                expect(
                    set(mine).isdisjoint(pool.free_slots().tolist()),
                    "Some of the slots that you call leaked are free. A free slot isn't lost: the free list owns it",
                )
            with part("leaked", "free list"):
                expect_equal(
                    mine, leaked, "Leaked slots are neither free nor held by an owner. List them in ascending order"
                )
            with part("contested"):
                expect(
                    len(set(theirs)) == len(theirs),
                    f"List a contested slot once, however many owners it has: {theirs}",
                )
            if case % 3 == 2:
                with part("free list", "contested"):
                    expect(
                        set(freed.tolist()) <= set(theirs),
                        "A slot that has an owner and is free at the same time is contested too, because the free list is "
                        "an owner",
                    )
            with part("contested", "free list"):
                expect_equal(
                    theirs, sorted(contested), "Contested slots have more than one owner. List them in ascending order"
                )
    return "leaks, double owners, and slots that are free and owned at once"
