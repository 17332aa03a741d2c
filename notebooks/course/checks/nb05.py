"""Checks of notebook 05: rows that share slots, and slots without an owner."""

import numpy as np
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal
from notebooks.course.tables import Wrong, compare

SIZE = 32


def kv_pool(size: int = SIZE) -> TokenToKVPool:
    return TokenToKVPool(size, torch.float32, head_num=1, head_dim=2, layer_num=1)


@exercise("5.1", "Two rows share a prefix")
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


@exercise("5.2", "Find the leak")
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
