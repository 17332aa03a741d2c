"""Checks of notebook 05: right answers pass, and each typical mistake gets a hint that names it."""

import pytest

from tests.solution_cells import gets_hint, passes

ALLOC = """
def alloc(runs, need_size):
    if need_size > sum(end - start for start, end in runs):
        return None
    slots = []
    while len(slots) < need_size:
        start, end = runs[0]
        taken_to = min(end, start + need_size - len(slots))
        slots += range(start, taken_to)
        runs[:1] = [(taken_to, end)] if taken_to < end else []
    return slots
"""
SLOTS_OF = """
def slots_of(block_table, positions, page_size):
    return block_table[positions // page_size] * page_size + positions % page_size
"""
SHARE = """
def share_prefix(req_to_token_pool, token_to_kv_pool, old, new, length, total):
    fresh = token_to_kv_pool.alloc(total - length)
    if fresh is None:
        return None
    table = req_to_token_pool.req_to_token
    table[new, :length] = table[old, :length]
    table[new, length:total] = fresh
    return len(fresh)
"""
CONTIGUOUS = """
def alloc_contiguous(runs, need_size):
    for i, (start, end) in enumerate(runs):
        if end - start >= need_size:
            taken_to = start + need_size
            runs[i : i + 1] = [(taken_to, end)] if taken_to < end else []
            return start, taken_to
    return None
"""
FREE = """
def free(runs, slots, size):
    now = {slot for start, end in runs for slot in range(start, end)}
    for i, slot in enumerate(slots):
        if not 0 <= slot < size:
            raise ValueError(f"slot {slot} is outside the pool")
        if slot in now:
            raise ValueError(f"slot {slot} is free already")
        if slot in slots[:i]:
            raise ValueError(f"slot {slot} is given twice")
    ordered = sorted([*now, *slots])
    starts = [slot for slot in ordered if slot - 1 not in ordered]
    ends = [slot + 1 for slot in ordered if slot + 1 not in ordered]
    runs[:] = list(zip(starts, ends))
"""
AUDIT = """
def audit(pool, owners):
    count = np.zeros(pool.size, dtype=int)
    for slots in (pool.free_slots(), *owners.values()):
        for slot in slots.tolist():
            count[slot] += 1
    return np.flatnonzero(count == 0).tolist(), np.flatnonzero(count > 1).tolist()
"""
ANSWERS = {"5.1": ALLOC, "5.2": SLOTS_OF, "5.3": SHARE, "5.4": CONTIGUOUS, "5.5": FREE, "5.6": AUDIT}

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("5.1", "    if need_size > sum(end - start for start, end in runs):\n        return None\n    slots = []\n    while",
     "    slots = []\n    while runs and", "all or nothing"),
    ("5.1", "    if need_size > sum(end - start for start, end in runs):\n        return None\n    slots = []\n"
     "    while len(slots) < need_size:\n", "    slots = []\n    while len(slots) < need_size:\n"
     "        if not runs:\n            return None\n", "the slots that it took are lost"),
    ("5.1", "runs[0]", "runs[-1]", "take the lowest free slots"),
    ("5.1", "    slots = []\n", "    slots, runs = [], list(runs)\n", "still in `runs`"),
    ("5.1", "    return slots", "    return slots[::-1]", "ascending order"),
    ("5.2", "block_table[positions // page_size]", "block_table[positions]", "used the position itself|IndexError"),
    ("5.2", "block_table[positions // page_size]", "block_table[positions % len(block_table)]", "used the position itself"),
    ("5.2", " + positions % page_size", "", "at offset n % P"),
    ("5.2", "return ", "", "Is a `return` missing"),
    ("5.3", "alloc(total - length)", "alloc(total)[length:]", "already have K/V"),
    ("5.3", "    table[new, :length] = table[old, :length]\n", "", "must have the same slots"),
    ("5.3", "table[new, length:total] = fresh", "table[new, length:total] = table[old, length:total]",
     "slots of the old request|the new slots"),
    ("5.3", "    if fresh is None:\n        return None\n    table = req_to_token_pool.req_to_token\n",
     "    table = req_to_token_pool.req_to_token\n    table[new, :length] = table[old, :length]\n"
     "    if fresh is None:\n        return None\n", "changed a row"),
    ("5.3", "    return len(fresh)", "    return total", "how many slots you took"),
    ("5.4", ">= need_size", "> need_size", "first run that is long enough|Is a `return` missing|\\*first fit\\*"),
    ("5.4", "enumerate(runs)", "list(enumerate(runs))[::-1]", "\\*first fit\\* takes the first"),
    ("5.4", "return start, taken_to", "return start, taken_to - 1", "`end` is exclusive"),
    ("5.4", "            runs[i : i + 1] = [(taken_to, end)] if taken_to < end else []\n", "", "the wrong slots are left"),
    ("5.4", "end - start >= need_size", "sum(e - s for s, e in runs) >= need_size", "no run is long enough|first run|left"),
    ("5.5", "        if not 0 <= slot < size:\n            raise ValueError(f\"slot {slot} is outside the pool\")\n", "",
     "is outside 0..31"),
    ("5.5", "not 0 <= slot < size", "slot >= size", "negative index would count from the end"),
    ("5.5", "        if slot in now:\n            raise ValueError(f\"slot {slot} is free already\")\n", "",
     "two requests would get it"),
    ("5.5", "slot in slots[:i]", "False", "is given twice"),
    ("5.5", "        if slot in slots[:i]:\n", "        runs.append((slot, slot + 1))\n        if slot in slots[:i]:\n",
     "Errors before effects"),
    ("5.6", "    return np.flatnonzero(count == 0).tolist(), np", "    return [], np", "neither free nor held"),
    ("5.6", "count[slot] += 1", "count[slot] = 1", "more than one owner|an owner"),
    ("5.6", "    return", "    count[pool.free_slots()] = 1\n    return", "the free list is an owner"),
    ("5.6", "np.flatnonzero(count > 1).tolist()", "[s for s in range(pool.size) for _ in range(count[s] - 1)] * 2",
     "contested slot once|more than one owner"),
]  # fmt: skip


@pytest.mark.parametrize("id", ANSWERS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, ANSWERS[id], capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, ANSWERS[id], right, wrong, hint)
