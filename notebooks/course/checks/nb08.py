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
    expect_match(tree, known, ids("ABCD"), "the whole prompt is in the tree, in a node and its child")
    expect_match(
        tree,
        known,
        ids("ABEFGHI"),
        "there are three nodes on this path: go on to a child below each node that matches in full",
    )
    expect_match(tree, known, ids("XYZ"), "the prompt is longer than the path, so the match is the tokens of the path")
    expect_match(tree, known, ids("QRS"), "no child begins with this token, so nothing matches")
    expect_match(tree, known, [], "the empty prompt matches nothing")
    nodes = len(nodes_of(tree))
    expect_match(tree, known, ids("ABEFGQ"), "only the first token of the last node matches")
    expect_equal(
        len(nodes_of(tree)),
        nodes + 1,
        "a match that ends inside a node must split this node once: call self._split(child, length)",
    )

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

    def insert(text: str, want: int, why: str) -> None:
        slots = pool.alloc(len(text))
        expect_equal(
            tree.insert(ids(text), slots),
            want,
            f"insert({text!r}) must return how many of these tokens were already in the tree: {why}",
        )
        pool.free(slots[:want])
        for end in range(want, len(text)):
            known[tuple(ids(text[: end + 1]))] = int(slots[end])
        expect_tree(tree, known, f"after insert({text!r})")

    insert("ABCD", 0, "the tree was empty")
    insert("ABEF", 2, "'AB' was in the tree")
    insert("ABEF", 4, "all of it was in the tree, so don't add a leaf (not even an empty one)")
    insert("AB", 2, "it is a prefix of a sequence in the tree")
    insert("ABEFGH", 4, "'ABEF' was in the tree, and a new leaf continues its path")
    insert("X", 0, "no child begins with 'X'")
    insert("", 0, "the empty sequence has no tokens")
    expect_equal(
        [tree.evictable_size(), tree.protected_size()],
        [len(known), 0],
        "no request has locked the new tokens, so count them in self._evictable_size",
    )
    expect_equal(
        tree.evict(SIZE),
        len(known),
        "everything can be evicted, but evict finds a leaf only in the queue: call self._eviction_queue.offer(leaf)",
    )

    return "prefixes, slots and sizes are right after every insert"


@exercise("8.4", "Evict the least recently used leaves", points=2)
def _(given: Given) -> str | None:
    tree = given_tree(given, "EvictCache")
    expect_equal(tree.evict(5), 0, "an empty tree has nothing to free, so evict must return 0")
    filled(tree, ["AB", "ABCD", "X"])
    tree.evict(1)
    expect_equal(
        shape(tree),
        {"AB", "X"},
        "'AB' and its child 'CD' were used at the same time, before 'X'. 'AB' must not be evicted before its child: "
        "without it 'CD' could never be matched again, and its slots would be lost",
    )
    tree = given_tree(given, "EvictCache")
    filled(tree, ["ABCD", "ABEF", "XYZ"])
    tree.match_prefix(ids("ABCD"))  # used last; least recently used is 'EF', then 'XYZ'
    expect_equal(tree.evict(0), 0, "evict(0) must free nothing")
    got = tree.evict(1)
    expect(got is not None, "evict must return how many tokens it freed")
    expect_equal(
        shape(tree),
        {"AB", "ABCD", "XYZ"},
        "'EF' is the leaf that was used longest ago, so evict it and nothing else",
    )
    expect_equal(got, 2, "a leaf is evicted as a whole, so this frees two tokens although one was requested")
    expect_owned(tree, "after evict(1)", queue=False)
    expect_sizes(tree, 7, 0, "there are two evictable tokens fewer now")
    expect_equal(tree.evict(4), 5, "'XYZ' alone isn't enough for 4: go on with the next leaf")
    expect_equal(
        shape(tree),
        {"AB"},
        "'XYZ' was used longest ago, then 'CD'. Together they free at least 4 tokens, so 'AB' stays",
    )
    expect_equal(tree.evict(100), 2, "a node whose last child was evicted is now a leaf and can be evicted too")
    expect_equal(tree.token_to_kv_pool.available_size(), SIZE, "everything is evicted, so every slot must be free")

    tree = given_tree(given, "EvictCache")
    filled(tree, ["ABCD", "ABEF", "X"])
    node = node_of(tree, "ABEF")
    tree.inc_lock_ref(node)
    expect_equal(
        tree.evict(100),
        3,
        "'ABEF' is locked, so only 'CD' and 'X' can be evicted. Then stop, although 100 tokens were requested",
    )
    expect_equal(
        shape(tree), {"AB", "ABEF"}, "a running request still reads the K/V of 'ABEF', so it must stay in the tree"
    )
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
            expect_equal(
                mine.evict(count),
                package.evict(count),
                f"after random operations, evict({count}) freed the wrong number of tokens",
            )
            expect_equal(shape(mine), shape(package), f"after random operations, evict({count}) chose the wrong leaf")
            expect_owned(mine, "after random operations", queue=False)
    return "the same leaves as the package's heap, through 200 random operations"
