"""Checks of notebook 08, split and evict: the student's methods inside the package's tree."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, expect, expect_equal

SIZE = 400
Prefixes = dict[tuple[int, ...], int]  # every prefix in the tree → the slot of its last token


@exercise("8.1", "Split a node", points=2)
def _(given: Given) -> str | None:
    tree = given_tree(given, "SplitCache")
    RadixCache.insert(tree, ids("ABCDEF"), tree.token_to_kv_pool.alloc(6))
    node = nodes_of(tree)[0]
    child = TreeNode(tree._edge(np.array(ids("GH")), None), np.array(ids("GH")), np.array([6, 7]), node, 0)
    tree.token_to_kv_pool.alloc(2)
    node.children[child.edge] = child
    node.lock_ref, node.hit_count, child.lock_ref = 3, 5, 1
    upper = tree._split(node, 2)
    expect(isinstance(upper, TreeNode), "_split must return the new upper part, a TreeNode")
    expect(
        upper is not node,
        "`node` must become the lower part: a request that locked it later walks from it up to the root, and must come "
        "through every node of its path",
    )
    AB, CDEF = (tree._edge(np.array(ids(text)), None) for text in ("AB", "CDEF"))
    for right, hint in (
        ((text_of(upper.key), text_of(node.key)) == ("AB", "CDEF"), "the upper part must have the first `length` tokens, "
         "and `node` keeps the tokens from `length` on"),
        ((list(map(int, upper.value)), list(map(int, node.value))) == ([0, 1], [2, 3, 4, 5]),
         "each token keeps its slot: split `value` at the same place as `key`"),
        (upper.parent is tree.root, "the upper part's parent must be the node's old parent"),
        (node.parent is upper, "the lower part's parent must be the upper part"),
        (upper.edge == AB, "the upper part begins with the same token as the node did, so it needs the node's old edge"),
        (node.edge == CDEF, "the lower part now begins with another token, so it needs a new edge: self._edge(node.key, "
         "...) of the shortened key"),
        (tree.root.children.get(upper.edge) is upper,
         "the parent still points to the lower part: its child under the old edge must now be the upper part"),
        (list(upper.children.values()) == [node], "the upper part must have exactly one child: the lower part"),
        (upper.children.get(node.edge) is node, "a child is looked up by its edge, so that is its key in `children`"),
        (node.children.get(child.edge) is child, "the node's children must stay children of the lower part"),
        ([upper.lock_ref, node.lock_ref] == [3, 3],
         "requests that locked the node use the upper part as well: with lock_ref=0, it could be evicted while they are "
         "running"),
        ([upper.hit_count, node.hit_count] == [5, 5], "both parts have been used as often as the node was"),
    ):  # fmt: skip
        expect(right, hint)
    tree = given_tree(given, "SplitCache")
    known = filled(tree, ["ABABAB", "ABABBB", "AA", "BABA", "BAA"])
    rng = np.random.default_rng(8)
    for _ in range(100):
        tokens = rng.integers(65, 67, rng.integers(1, 8)).tolist()
        expect_match(tree, known, tokens, "a match after your splits")
    return "links, slots and locks are right, and so are 100 matches that split nodes"


@exercise("8.2", "Evict the least recently used leaves", points=2)
def _(given: Given) -> str | None:
    tree = given_tree(given, "EvictCache")
    expect_equal(tree.evict(5), 0, "an empty tree has nothing to free, so evict must return 0")
    filled(tree, ["AB", "ABCD", "X"])
    tree.evict(1)
    parent = (
        "'AB' and its child 'CD' were used at the same time, before 'X'. 'AB' must not be evicted before its child: "
    )
    parent += "without it 'CD' could never be matched again, and its slots would be lost"
    expect_equal(shape(tree), {"AB", "X"}, parent)
    tree = given_tree(given, "EvictCache")
    filled(tree, ["ABCD", "ABEF", "XYZ"])
    tree.match_prefix(ids("ABCD"))  # used last; least recently used is 'EF', then 'XYZ'
    for wanted, freed, left, why in (
        (0, 0, {"AB", "ABCD", "ABEF", "XYZ"}, "evict(0) must free nothing"),
        (
            1,
            2,
            {"AB", "ABCD", "XYZ"},
            "'EF' is the leaf that was used longest ago: evict it as a whole, and nothing else",
        ),
        (4, 5, {"AB"}, "'XYZ' was used longest ago, then 'CD'. Together they free at least 4 tokens, so 'AB' stays"),
        (100, 2, set(), "a node whose last child was evicted is now a leaf and can be evicted too"),
    ):
        got, said = tree.evict(wanted), f"evict({wanted}): {why}"
        expect(got is not None, "evict must return how many tokens it freed")
        expect_equal(shape(tree), left, said)
        expect_equal(got, freed, f"{said}. Return how many tokens were freed")
        expect_owned(tree, f"after evict({wanted})", queue=False)
    expect_equal(tree.token_to_kv_pool.available_size(), SIZE, "everything is evicted, so every slot must be free")

    tree = given_tree(given, "EvictCache")
    filled(tree, ["ABCD", "ABEF", "X"])
    node = node_of(tree, "ABEF")
    tree.inc_lock_ref(node)
    got = tree.evict(100)
    expect_equal(shape(tree), {"AB", "ABEF"}, "a running request reads the K/V of 'ABEF', so only 'CD' and 'X' can go")
    expect_equal(got, 3, "'ABEF' is locked: stop after 'CD' and 'X', although 100 tokens were requested")
    expect_owned(tree, "with a locked path", queue=False)

    mine, package = given_tree(given, "EvictCache"), empty_tree(RadixCache)
    rng = np.random.default_rng(10)
    for _ in range(200):
        tokens = rng.integers(65, 68, rng.integers(1, 9)).tolist()
        action, count = rng.integers(3), int(rng.integers(1, 6))
        for tree in (mine, package):
            if action == 0:
                tree.match_prefix(tokens)
            elif action == 1 or tree.total_size() < 20:
                put(tree, tokens)
        if action == 2:
            got, want, said = mine.evict(count), package.evict(count), f"after random operations, evict({count})"
            expect_equal(got, want, f"{said} freed the wrong number of tokens")
            expect_equal(shape(mine), shape(package), f"{said} chose the wrong leaf")
            expect_owned(mine, said, queue=False)
    return "the same leaves as the package's heap, through 200 random operations"


def empty_tree(cls: Callable[..., RadixCache]) -> RadixCache:
    pool = TokenToKVPool(SIZE, torch.float32, head_num=1, head_dim=1, layer_num=1)
    return cls(ReqToTokenPool(1, SIZE), pool)


def given_class(given: Given, name: str, base: type) -> Any:
    cls = given[name]
    from_base = (
        f"`{name}` must be a class that inherits from the package's {base.__name__}: run the import cell above it"
    )
    expect(isinstance(cls, type) and issubclass(cls, base), from_base)
    return cls


def given_tree(given: Given, name: str) -> Any:
    return empty_tree(given_class(given, name, RadixCache))


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def text_of(tokens: Iterable[Any]) -> str:
    return "".join(chr(int(token)) for token in tokens)


def put(tree: RadixCache, tokens: Sequence[int]) -> tuple[int, list[int]]:
    """Insert by the package's insert and free duplicates; returns how many tokens were in the tree, and the slots."""
    slots = tree.token_to_kv_pool.alloc(len(tokens))
    assert slots is not None
    known = RadixCache.insert(tree, tokens, slots)
    tree.token_to_kv_pool.free(slots[:known])
    return known, slots.tolist()


def filled(tree: RadixCache, texts: Sequence[str]) -> Prefixes:
    """Insert `texts`; returns the dictionary of all prefixes."""
    prefixes: Prefixes = {}
    for text in texts:
        slots = put(tree, ids(text))[1]
        for end in range(1, len(text) + 1):
            prefixes.setdefault(tuple(ids(text[:end])), slots[end - 1])
    return prefixes


def nodes_of(tree: RadixCache) -> list[TreeNode]:
    nodes = [node for _, node in islice(tree.nodes(), SIZE + 1)]
    expect(len(nodes) <= SIZE, "the tree has a cycle: a node is its own descendant")
    return nodes


def path_text(tree: RadixCache, node: TreeNode) -> str:
    text, steps = "", 0
    while node is not tree.root:
        parent, steps = node.parent, steps + 1
        if parent is None or steps > SIZE:
            raise Hint("the parents of a node don't lead up to the root: check `parent`")
        text = text_of(node.key) + text
        node = parent
    return text


def shape(tree: RadixCache) -> set[str]:
    """The text that each node's path spells."""
    return {path_text(tree, node) for node in nodes_of(tree)}


def node_of(tree: RadixCache, text: str) -> TreeNode:
    return next(node for node in nodes_of(tree) if path_text(tree, node) == text)


def expect_match(tree: RadixCache, known: Prefixes, tokens: list[int], what: str) -> None:
    k = max((end for end in range(1, len(tokens) + 1) if tuple(tokens[:end]) in known), default=0)
    want = [known[tuple(tokens[:end])] for end in range(1, k + 1)]
    sizes = (tree.evictable_size(), tree.protected_size())
    match = tree.match_prefix(tokens)
    prompt = f"{what} (the prompt is {text_of(tokens)!r}, and {k} of its tokens are in the tree)"
    got = match.indices.tolist()
    partly = "Where a node matches only partly, leave out the slots of its other tokens"
    expect(len(got) <= k or got[:k] != want, f"{prompt}: you return {len(got)} slots. {partly}")
    expect_equal(got, want, f"{prompt}: return the slots of these tokens, in order")
    expect_equal(match.indices.dtype, torch.int32, "slots must be int32")
    path = f"{prompt}: the path to last_node must hold exactly these tokens, because the request locks that path"
    expect_equal(path_text(tree, match.last_node), text_of(tokens[:k]), path)
    used = f"{prompt}: mark every node on the path as used now (last_access_time = self._clock), or lru evicts it early"
    node: TreeNode | None = match.last_node
    while node is not tree.root and node is not None:
        expect(node.last_access_time == tree._clock, used)
        node = node.parent
    expect_equal((tree.evictable_size(), tree.protected_size()), sizes, "a match must not change the sizes")
    expect_sound(tree, prompt)


def expect_owned(tree: RadixCache, what: str, queue: bool = True) -> None:
    """Every slot is either free or in the tree. `queue=False`: leaves need not be in the eviction queue."""
    free = set(tree.token_to_kv_pool.free_slots().tolist())
    owned = [int(slot) for node in nodes_of(tree) for slot in node.value]
    both = sorted(free & set(owned))
    expect(
        not both,
        f"{what}: slots {both} are both free and in the tree. You freed slots that belong to the tree: the first tree_len, "
        "which the request only used, or those that the tree has just taken over",
    )
    expect_equal(len(set(owned)), len(owned), f"{what}: a slot is in the tree twice")
    lost = sorted(set(range(tree.token_to_kv_pool.size)) - free - set(owned))
    expect(not lost, f"{what}: slots {lost} are neither free nor in the tree: they are lost for good")
    if not queue:
        for node in nodes_of(tree):
            tree._eviction_queue.offer(node)
    expect_sound(tree, what)


def expect_sound(tree: RadixCache, when: str) -> None:
    nodes_of(tree)
    try:
        tree.check_integrity()
    except RuntimeError as error:
        raise Hint(f"{when}: the tree is inconsistent: {error}") from None
