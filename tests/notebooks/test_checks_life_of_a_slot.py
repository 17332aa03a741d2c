"""Checks of notebook 09: the notebook's solutions pass, and each typical mistake gets its hint."""

import pytest

from tests.solution_cells import gets_hint, passes, solutions

SOLUTIONS = solutions("09_the_life_of_a_slot")
UNLOCK = "        self.unlock_prefix(req)\n"

# exercise, what of the solution is replaced, by what, and what the hint must say
MISTAKES = [
    ("9.1", "req.tree_len : req.allocated_len", ": req.allocated_len", "begin at tree_len"),
    ("9.1", "req.tree_len : req.allocated_len", "req.prefix_len : req.allocated_len", "begin at tree_len"),
    ("9.1", "req.tree_len : req.allocated_len", "req.tree_len : req.kv_len", "up to allocated_len"),
    ("9.1", "req.tree_len : req.allocated_len", "req.tree_len : req.num_tokens", "two pages"),
    ("9.1", '            owners[slot].append(f"request {req.request_id}")\n',
     '            owners[slot] = [f"request {req.request_id}"]\n', "name both owners"),
    ("9.1", '        owners[slot].append("tree")\n', "        pass\n", "the tree has taken over"),
    ("9.1", "range(cache.token_to_kv_pool.size)", "range(cache.token_to_kv_pool.available_size())",
     "IndexError|list index|per slot"),
    ("9.2", "            node = node.parent\n", "            node = self.root\n", "every node from the root down"),
    ("9.2", "            if node.lock_ref == 0:\n                self._evictable_size -= len(node)\n"
     "                self._protected_size += len(node)\n",
     "            self._evictable_size -= len(node)\n            self._protected_size += len(node)\n", "counts once"),
    ("9.2", "                self._eviction_queue.offer(node)\n", "", "offer it to the queue"),
    ("9.2", "        while node is not self.root:", "        while node is not None:", "leave its lock_ref alone"),
    ("9.2", "                self._protected_size -= len(node)\n", "", "is unlocked now|inconsistent"),
    ("9.3", "        self.token_to_kv_pool.free(duplicates)\n", "", "lost for good"),
    ("9.3", "row[req.tree_len : known].copy()", "row[req.tree_len : known]", "both free and in the tree"),
    ("9.3", "row[req.tree_len : known]", "row[:known]", "both free and in the tree"),
    ("9.3", "        row[: len(tokens)] = match.indices.numpy()\n", "", "must name the tree's slots"),
    ("9.3", "req.last_node, req.tree_len = match.last_node, len(tokens)", "req.last_node = match.last_node",
     "tree_len is 4"),
    ("9.3", "req.last_node, req.tree_len = match.last_node, len(tokens)", "req.tree_len = len(tokens)", "locks the path"),
    ("9.3", "        self.radix_cache.inc_lock_ref(match.last_node)\n", "", "locks the path"),
    ("9.3", "        self.radix_cache.dec_lock_ref(req.last_node)\n", "", "locks the path|nothing is locked"),
    ("9.4", "        self.radix_cache.dec_lock_ref(req.last_node)\n", "", "locks the path|give the lock back"),
    ("9.4", "        self.req_to_token_pool.free([req.req_pool_idx])\n", "", "row must be free again"),
    ("9.4", "row[req.tree_len : known]", "row[:known]", "both free and in the tree"),
    ("9.4", "row[req.tree_len : known]", "row[:0]", "lost for good"),
    ("9.4", "row[len(tokens) : req.allocated_len]", "row[:0]", "hold nothing"),
    ("9.4", "        known = self.radix_cache.insert(tokens, row[: len(tokens)])\n", "        known = len(tokens)\n",
     "go to the tree"),
    ("9.4", "        self.radix_cache.dec_lock_ref(req.last_node)\n",
     "        self.radix_cache.dec_lock_ref(req.last_node)\n        tokens = req.token_ids[: req.num_tokens]\n",
     "hold nothing"),
    ("9.5", " if node.lock_ref == 0)", ")", "four can be evicted"),
    ("9.5", "return self.token_to_kv_pool.available_size() + evictable", "return evictable", "every slot is free"),
    ("9.5", "return self.token_to_kv_pool.available_size() + evictable", "return self.token_to_kv_pool.available_size()",
     "can be evicted"),
    ("9.5", "        self.lock_prefix(req)\n        if req.num_tokens - req.prefix_len <= self.obtainable_size():\n",
     "        before = self.obtainable_size()\n        self.lock_prefix(req)\n"
     "        if req.num_tokens - req.prefix_len <= before:\n", "lock first, then count"),
    ("9.5", UNLOCK, "", "must be unlocked"),
    ("9.5", "            return True\n", UNLOCK.replace("        self", "            self") + "            return True\n",
     "stays locked"),
    ("9.5", "req.num_tokens - req.prefix_len <= ", "req.num_tokens <= ", "only 2 slots are needed"),
    ("9.5", "req.num_tokens - req.prefix_len <= ", "req.num_tokens - req.prefix_len < ", "which is enough"),
    ("9.5", "        return False\n", "", "returns True or False"),
]  # fmt: skip


def test_every_exercise_has_mistakes_here() -> None:
    assert {id for id, *_ in MISTAKES} == set(SOLUTIONS)


@pytest.mark.parametrize("id", SOLUTIONS)
def test_the_notebooks_solution_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, SOLUTIONS[id], capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, SOLUTIONS[id], right, wrong, hint)
