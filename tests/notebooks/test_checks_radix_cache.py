"""Checks of notebook 07: the notebook's solutions pass, and each typical mistake gets its hint."""

import pytest

from tests.solution_cells import gets_hint, passes, solutions

SOLUTIONS = solutions("07_radix_cache")
SPLIT = "            if length < len(child):\n                child = self._split(child, length)\n"

# exercise, what of the solution is replaced, by what, and what the hint must say
MISTAKES = [
    ("7.1", SPLIT, "", "of a node that matches only in part, the"),
    ("7.1", SPLIT, "            if length < len(child):\n                slots += child.value[:length].tolist()\n"
     "                node = child\n                break\n", "must hold exactly these"),
    ("7.1", "            child.last_access_time = self._clock\n", "", "else lru evicts it"),
    ("7.1", "node, tokens = child, tokens[length:]", "node, tokens = child, tokens[:0]", "return their slots, in order"),
    ("7.1", "node, tokens = child, tokens[length:]", "tokens = tokens[length:]", "return their slots, in order"),
    ("7.1", "child.value.tolist()", "child.key.tolist()", "return their slots, in order"),
    ("7.1", "dtype=torch.int32", "dtype=torch.int64", "int32"),
    ("7.2", "        return upper\n", "        return node\n", "the lower part: a request that has locked it walks"),
    ("7.2", "        return upper\n", "", "returns the new upper part"),
    ("7.2", "upper.lock_ref, upper.hit_count = node.lock_ref, node.hit_count\n", "pass\n", "evicted while they run"),
    ("7.2", "        upper.parent.children[upper.edge] = upper\n", "", "still leads to the lower part"),
    ("7.2", "        node.edge = self._edge(node.key, upper.edge[0])\n", "", "begins with another token now"),
    ("7.2", "        upper.children[node.edge] = node\n", "", "exactly one child"),
    ("7.2", "node.value[length:], upper", "node.value, upper", "split `value` where `key` is split"),
    ("7.2", "node.parent = node.key[length:], node.value[length:], upper",
     "upper.parent = node.key[length:], node.value[length:], upper.parent", "parent is the upper part"),
    ("7.3", "        return known\n", "        return len(tokens)\n", "were in the tree: the tree was empty"),
    ("7.3", "slots[tree_len:known]", "slots[:known]", "slots .* are both free and in the tree|already free"),
    ("7.3", "slots[tree_len:known]", "slots[known:]", "are both free and in the tree"),
    ("7.3", "        self.token_to_kv_pool.free(slots[tree_len:known])\n", "", "lost for good"),
    ("7.3", "            self._evictable_size += len(leaf)\n", "", "total_size|contradicts itself"),
    ("7.3", "            self._eviction_queue.offer(leaf)\n", "", "queue"),
    ("7.3", "        if known < len(tokens):", "        if True:", "a node has no tokens"),
    ("7.3", "slots[known:], parent", "slots[: len(tokens) - known], parent", "prefix → slot"),
    ("7.4", "            node = node.parent\n", "            node = self.root\n", "every node from the root down"),
    ("7.4", "            if node.lock_ref == 0:\n                self._evictable_size -= len(node)\n"
     "                self._protected_size += len(node)\n",
     "            self._evictable_size -= len(node)\n            self._protected_size += len(node)\n", "counts once"),
    ("7.4", "                self._eviction_queue.offer(node)\n", "", "offer it to the queue"),
    ("7.4", "        while node is not self.root:", "        while node is not None:", "leave its lock_ref alone"),
    ("7.4", "                self._protected_size -= len(node)\n", "", "is unlocked now|inconsistent"),
    ("7.5", " and not node.lock_ref]", "]", "a running request reads|is locked"),
    ("7.5", "if not node.children and not node.lock_ref]", "if not node.lock_ref]", "could never be matched again"),
    ("7.5", "node.last_access_time)", "-node.last_access_time)", "before 'X'"),
    ("7.5", "        return freed\n", "", "returns how many|so evict returns 0"),
    ("7.5", "            self._evictable_size -= len(leaf)\n", "", "two evictable tokens fewer|inconsistent"),
    ("7.5", "            self.token_to_kv_pool.free(leaf.value)\n", "", "lost for good"),
    ("7.5", "while freed < num_tokens:", "while not freed and num_tokens:", "go on with the next leaf"),
]  # fmt: skip


def test_every_exercise_has_mistakes_here() -> None:
    assert {id for id, *_ in MISTAKES} == set(SOLUTIONS)


@pytest.mark.parametrize("id", SOLUTIONS)
def test_the_notebooks_solution_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, SOLUTIONS[id], capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_hint_what_it_is(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, SOLUTIONS[id], right, wrong, hint)
