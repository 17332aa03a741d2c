"""Checks of notebook 08: the notebook's solutions pass, and each typical mistake gets its hint."""

import pytest

from tests.solution_cells import gets_hint, passes, solutions

SOLUTIONS = solutions("08_radix_cache")
SPLIT = "            if length < len(child):\n                child = self._split(child, length)\n"

# exercise, what of the solution is replaced, by what, and what the hint must say
MISTAKES = [
    ("8.1", SPLIT, "", "Where a node matches only partly"),
    ("8.1", SPLIT, "            if length < len(child):\n                slots += child.value[:length].tolist()\n"
     "                node = child\n                break\n", "must hold exactly these"),
    ("8.1", "            child.last_access_time = self._clock\n", "", "or lru evicts it"),
    ("8.1", "node, tokens = child, tokens[length:]", "node, tokens = child, tokens[:0]", "the slots of these tokens"),
    ("8.1", "node, tokens = child, tokens[length:]", "tokens = tokens[length:]", "the slots of these tokens"),
    ("8.1", "child.value.tolist()", "child.key.tolist()", "the slots of these tokens"),
    ("8.1", "dtype=torch.int32", "dtype=torch.int64", "int32"),
    ("8.2", "        return upper\n", "        return node\n", "the lower part: a request that locked it later walks"),
    ("8.2", "        return upper\n", "", "must return the new upper part"),
    ("8.2", "upper.lock_ref, upper.hit_count = node.lock_ref, node.hit_count\n", "pass\n", "evicted while they are"),
    ("8.2", "        upper.parent.children[upper.edge] = upper\n", "", "still points to the lower part"),
    ("8.2", "        node.edge = self._edge(node.key, upper.edge[0])\n", "", "now begins with another token"),
    ("8.2", "        upper.children[node.edge] = node\n", "", "exactly one child"),
    ("8.2", "node.value[length:], upper", "node.value, upper", "split `value` at the same place as `key`"),
    ("8.2", "node.parent = node.key[length:], node.value[length:], upper",
     "upper.parent = node.key[length:], node.value[length:], upper.parent", "parent must be the upper part"),
    ("8.3", "        return known\n", "        return len(tokens)\n", "already in the tree: the tree was empty"),
    ("8.3", "            self._evictable_size += len(leaf)\n", "", "total_size|contradicts itself"),
    ("8.3", "            self._eviction_queue.offer(leaf)\n", "", "queue"),
    ("8.3", "        if known < len(tokens):", "        if True:", "a node has no tokens"),
    ("8.3", "slots[known:], parent", "slots[: len(tokens) - known], parent", "each prefix → the slot"),
    ("8.3", "            parent.children[leaf.edge] = leaf\n", "", "each prefix → the slot"),
    ("8.3", "self._edge(tokens[known:], extra_key)", "self._edge(tokens, extra_key)", "were in the tree|inconsistent"),
    ("8.4", " and not node.lock_ref]", "]", "a running request reads|is locked"),
    ("8.4", "if not node.children and not node.lock_ref]", "if not node.lock_ref]", "could never be matched again"),
    ("8.4", "node.last_access_time)", "-node.last_access_time)", "before 'X'"),
    ("8.4", "        return freed\n", "", "evict must return"),
    ("8.4", "            self._evictable_size -= len(leaf)\n", "", "two evictable tokens fewer|inconsistent"),
    ("8.4", "            self.token_to_kv_pool.free(leaf.value)\n", "", "lost for good"),
    ("8.4", "while freed < num_tokens:", "while not freed and num_tokens:", "go on with the next leaf"),
]  # fmt: skip


def test_every_exercise_has_mistakes_here() -> None:
    assert {id for id, *_ in MISTAKES} == set(SOLUTIONS)


@pytest.mark.parametrize("id", SOLUTIONS)
def test_the_notebooks_solution_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, SOLUTIONS[id], capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, SOLUTIONS[id], right, wrong, hint)
