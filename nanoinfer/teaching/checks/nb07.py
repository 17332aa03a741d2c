"""Checks of notebook 07, match, split and insert: the reader's methods inside the package's tree, against dictionaries."""

import numpy as np
import torch

from nanoinfer.cache.radix_cache import MatchResult, RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.teaching.checks.nb07_trees import (
    SIZE,
    Prefixes,
    expect_match,
    expect_owned,
    expect_tree,
    filled,
    finish,
    given_tree,
    ids,
    nodes_of,
    text_of,
)
from nanoinfer.teaching.exercises import Given, exercise
from nanoinfer.teaching.expectations import expect, expect_equal
from nanoinfer.teaching.several import several


@exercise("7.1", "Match a prefix", points=2)
def _(given: Given) -> str | None:
    tree = given_tree(given, "MatchCache")
    match = tree.match_prefix([1, 2, 3])
    expect(isinstance(match, MatchResult), "match_prefix returns a MatchResult(slots, last node)")
    expect_equal(match.indices.tolist(), [], "an empty tree matches nothing, so there are no slots")
    expect(match.last_node is tree.root, "without a match last_node is the root, which the request then locks")

    known = filled(tree, ["ABCD", "ABEF", "ABEFGH", "X"])
    expect_match(tree, known, ids("ABCD"), "the whole prompt is in the tree, in a node and its child")
    expect_match(tree, known, ids("ABEFGHI"), "three nodes lie on this path: descend below each that matches in full")
    expect_match(tree, known, ids("XYZ"), "the prompt is longer than the path; the tokens of the path are the match")
    expect_match(tree, known, ids("QRS"), "no child begins with this token, so nothing matches")
    expect_match(tree, known, [], "the empty prompt matches nothing")
    nodes = len(nodes_of(tree))
    expect_match(tree, known, ids("ABEFGQ"), "of the last node only the first token matches")
    expect_equal(
        len(nodes_of(tree)), nodes + 1, "a match inside a node splits it, once: call self._split(child, length)"
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


@exercise("7.2", "Split a node", points=2)
def _(given: Given) -> str | None:
    tree = given_tree(given, "SplitCache")
    RadixCache.insert(tree, ids("ABCDEF"), tree.token_to_kv_pool.alloc(6))
    node = nodes_of(tree)[0]
    child = TreeNode(tree._edge(np.array(ids("GH")), None), np.array(ids("GH")), np.array([6, 7]), node, 0)
    tree.token_to_kv_pool.alloc(2)
    node.children[child.edge] = child
    node.lock_ref, node.hit_count, child.lock_ref = 3, 5, 1
    upper = tree._split(node, 2)
    expect(isinstance(upper, TreeNode), "_split returns the new upper part, a TreeNode")
    expect(
        upper is not node,
        "`node` must become the lower part: a request that has locked it walks from it up to the root and must pass all "
        "nodes of its path",
    )
    with several() as part:
        with part("keys"):
            expect_equal(text_of(upper.key), "AB", "the upper part has the first `length` tokens")
            expect_equal(text_of(node.key), "CDEF", "`node` keeps the tokens from `length` on")
        with part("slots"):
            expect_equal(
                [list(map(int, upper.value)), list(map(int, node.value))],
                [[0, 1], [2, 3, 4, 5]],
                "each token keeps its slot: split `value` where `key` is split",
            )
        with part("parents"):
            expect(upper.parent is tree.root, "the upper part's parent is the node's old parent")
            expect(node.parent is upper, "the lower part's parent is the upper part")
        with part("upper edge", "keys"):
            expect(
                upper.edge == tree._edge(np.array(ids("AB")), None),
                "the upper part begins with the same token as the node did, so it has the node's old edge",
            )
        with part("lower edge", "keys"):
            expect(
                node.edge == tree._edge(np.array(ids("CDEF")), None),
                "the lower part begins with another token now: its edge is self._edge(node.key, ...) of the shortened key",
            )
        with part("parent's child"):
            expect(
                tree.root.children.get(upper.edge) is upper,
                "the parent still leads to the lower part: its child under the old edge must now be the upper part",
            )
        with part("children", "lower edge"):
            expect(list(upper.children.values()) == [node], "the upper part has exactly one child: the lower part")
            expect(
                upper.children.get(node.edge) is node, "a child is found by its edge: the edge is its key in `children`"
            )
            expect(node.children.get(child.edge) is child, "the node's children stay children of the lower part")
        with part("locks"):
            expect_equal(
                [upper.lock_ref, node.lock_ref],
                [3, 3],
                "requests that locked the node use the upper part as well: with lock_ref=0 it could be evicted while they "
                "run",
            )
        with part("hits"):
            expect_equal([upper.hit_count, node.hit_count], [5, 5], "both parts have been used as often as the node")

    tree = given_tree(given, "SplitCache")
    known = filled(tree, ["ABABAB", "ABABBB", "AA", "BABA", "BAA"])
    rng = np.random.default_rng(8)
    for _ in range(100):
        tokens = rng.integers(65, 67, rng.integers(1, 8)).tolist()
        expect_match(tree, known, tokens, "after your splits, a match of")
    return "links, slots and locks are right, and so are 100 matches that split nodes"


@exercise("7.3", "Insert, and free the duplicates", points=2)
def _(given: Given) -> str | None:
    tree = given_tree(given, "InsertCache")
    pool = tree.token_to_kv_pool
    known: Prefixes = {}

    def insert(text: str, want: int, why: str) -> None:
        slots = pool.alloc(len(text))
        expect_equal(
            tree.insert(ids(text), slots), want, f"insert({text!r}) returns how many tokens were in the tree: {why}"
        )
        pool.free(slots[:want])
        for end in range(want, len(text)):
            known[tuple(ids(text[: end + 1]))] = int(slots[end])
        expect_tree(tree, known, f"after insert({text!r})")

    insert("ABCD", 0, "the tree was empty")
    insert("ABEF", 2, "'AB' was in the tree")
    insert("ABEF", 4, "all of it was in the tree, so no leaf is added (not an empty one either)")
    insert("AB", 2, "it is a prefix of a sequence in the tree")
    insert("ABEFGH", 4, "it continues a path that ended in a leaf")
    insert("X", 0, "no child begins with 'X'")
    insert("", 0, "the empty sequence has no tokens")
    expect_equal(
        [tree.evictable_size(), tree.protected_size()],
        [len(known), 0],
        "no request has locked the new tokens: they count in self._evictable_size",
    )
    expect_equal(
        tree.evict(SIZE),
        len(known),
        "everything can be evicted, but a leaf that is not in the queue is never found: self._eviction_queue.offer(leaf)",
    )

    tree = given_tree(given, "InsertCache")
    pool = tree.token_to_kv_pool
    finish(tree, "ABCD", 0, "the first request")
    finish(tree, "ABEF", 0, "a request that computed 'AB' although it was in the tree: its copies have no owner now")
    twin = pool.alloc(6)
    held = torch.cat((tree.match_prefix(ids("AB")).indices, pool.alloc(4)))  # matched 2, computed 4
    tree.finish(ids("ABGHIJ"), twin, 0)
    tree.finish(ids("ABGHKL"), held, 2)
    expect_owned(tree, "a request that had matched 'AB', and whose 'GH' another request had inserted before it")
    expect_equal(tree.total_size(), 4 + 2 + 4 + 2, "the tree holds 'ABCD', 'EF', 'GHIJ' and 'KL'")
    finish(tree, "ABCD", 4, "a request that matched all of its tokens and computed none")
    return "free + tree == N after every request"
