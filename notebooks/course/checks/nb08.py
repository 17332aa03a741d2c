"""Checks of notebook 08, match, split, insert and evict: the student's methods inside the package's tree."""

import numpy as np

from nanoinfer.cache.radix_cache import MatchResult, RadixCache
from nanoinfer.cache.tree_node import TreeNode
from notebooks.course.checks.nb08_trees import (
    SIZE,
    Prefixes,
    empty_tree,
    expect_match,
    expect_owned,
    expect_sizes,
    expect_tree,
    filled,
    given_tree,
    ids,
    node_of,
    nodes_of,
    put,
    shape,
    text_of,
)
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal


@exercise("8.1", "Match a prefix", points=2)
def _(given: Given) -> str | None:
    tree = given_tree(given, "MatchCache")
    match = tree.match_prefix([1, 2, 3])
    expect(isinstance(match, MatchResult), "match_prefix must return a MatchResult(slots, last node)")
    expect_equal(match.indices.tolist(), [], "an empty tree matches nothing, so there are no slots")
    expect(match.last_node is tree.root, "without a match, last_node must be the root, which the request then locks")

    known = filled(tree, ["ABCD", "ABEF", "ABEFGH", "X"])
    for text, why in (
        ("ABCD", "the whole prompt is in the tree, in a node and its child"),
        ("ABEFGHI", "there are three nodes on this path: go on to a child below each node that matches in full"),
        ("XYZ", "the prompt is longer than the path, so the match is the tokens of the path"),
        ("QRS", "no child begins with this token, so nothing matches"),
        ("", "the empty prompt matches nothing"),
    ):
        expect_match(tree, known, ids(text), why)
    nodes = len(nodes_of(tree))
    expect_match(tree, known, ids("ABEFGQ"), "only the first token of the last node matches")
    split = "a match that ends inside a node must split this node once: call self._split(child, length)"
    expect_equal(len(nodes_of(tree)), nodes + 1, split)

    rng = np.random.default_rng(7)
    for _ in range(200):
        expect_match(tree, known, rng.integers(65, 73, rng.integers(0, 8)).tolist(), "a random prompt")
    random_tree = given_tree(given, "MatchCache")
    texts = ["".join(rng.choice(list("AB"), rng.integers(1, 9))) for _ in range(40)]
    known = filled(random_tree, texts)
    for _ in range(200):
        expect_match(random_tree, known, rng.integers(65, 67, rng.integers(0, 10)).tolist(), "a random prompt")
    return "412 prompts on two trees match as a dictionary of all prefixes says"


@exercise("8.2", "Split a node", points=2)
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


@exercise("8.3", "Insert", points=2)
def _(given: Given) -> str | None:
    tree = given_tree(given, "InsertCache")
    pool = tree.token_to_kv_pool
    known: Prefixes = {}

    for text, want, why in (
        ("ABCD", 0, "the tree was empty"),
        ("ABEF", 2, "'AB' was in the tree"),
        ("ABEF", 4, "all of it was in the tree, so don't add a leaf (not even an empty one)"),
        ("AB", 2, "it is a prefix of a sequence in the tree"),
        ("ABEFGH", 4, "'ABEF' was in the tree, and a new leaf continues its path"),
        ("X", 0, "no child begins with 'X'"),
        ("", 0, "the empty sequence has no tokens"),
    ):
        slots, known_before = pool.alloc(len(text)), "must return how many of these tokens were already in the tree"
        expect_equal(tree.insert(ids(text), slots), want, f"insert({text!r}) {known_before}: {why}")
        pool.free(slots[:want])
        known |= {tuple(ids(text[: end + 1])): int(slots[end]) for end in range(want, len(text))}
        expect_tree(tree, known, f"after insert({text!r})")
    expect_sizes(tree, len(known), 0, "no request has locked the new tokens, so count them in self._evictable_size")
    queue = "everything can be evicted, but only leaves in the queue are found: call self._eviction_queue.offer(leaf)"
    expect_equal(tree.evict(SIZE), len(known), queue)
    return "prefixes, slots and sizes are right after every insert"


@exercise("8.4", "Evict the least recently used leaves", points=2)
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
