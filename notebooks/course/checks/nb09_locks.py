"""Checks of notebook 09, locks: the student's methods inside the package's tree."""

import numpy as np

from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from notebooks.course.checks.nb08_trees import (
    SIZE,
    expect_sizes,
    expect_sound,
    filled,
    given_tree,
    locks,
    node_of,
)
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal


@exercise("9.2", "Lock a path", points=2)
def _(given: Given) -> str | None:
    tree = given_tree(given, "LockCache")
    filled(tree, ["ABCD", "ABEFG", "X"])
    leaf, upper = node_of(tree, "ABCD"), node_of(tree, "AB")
    tree.inc_lock_ref(leaf)
    expect_equal(
        locks(tree),
        {"AB": 1, "ABCD": 1, "ABEFG": 0, "X": 0},
        "a request needs every node from the root down to its node, and no others",
    )
    expect(tree.root.lock_ref == 0, "the root holds no tokens and can't be evicted: leave its lock_ref alone")
    expect_sizes(tree, 4, 4, "the four tokens of 'ABCD' are protected now")
    tree.inc_lock_ref(upper)
    expect_equal(locks(tree)["AB"], 2, "two requests have locked 'AB'")
    expect_sizes(tree, 4, 4, "'AB' was protected already: a token counts once, however many requests have locked it")
    tree.dec_lock_ref(leaf)
    expect_equal(
        locks(tree),
        {"AB": 1, "ABCD": 0, "ABEFG": 0, "X": 0},
        "one request has unlocked 'ABCD', another still locks 'AB'",
    )
    expect_sizes(tree, 6, 2, "'CD' is unlocked now, 'AB' is still locked")
    tree.inc_lock_ref(tree.root)
    tree.dec_lock_ref(tree.root)
    expect_sizes(tree, 6, 2, "a request that matched nothing locks the root, which changes no sizes")
    expect_equal(
        RadixCache.evict(tree, SIZE),
        6,
        "unlocked nodes can be evicted again, but only if they are in the queue: self._eviction_queue.offer(node)",
    )
    tree.dec_lock_ref(upper)
    expect_sizes(tree, 2, 0, "nothing is locked any more")
    expect_equal(
        RadixCache.evict(tree, SIZE), 2, "'AB' is a leaf now and can be evicted as well: offer it to the queue"
    )

    tree, rng = given_tree(given, "LockCache"), np.random.default_rng(9)
    held: list[TreeNode] = []
    filled(tree, ["".join(rng.choice(list("AB"), rng.integers(1, 9))) for _ in range(30)])
    for _ in range(300):
        if held and rng.integers(2):
            tree.dec_lock_ref(held.pop(rng.integers(len(held))))
        else:
            held.append(tree.match_prefix(rng.integers(65, 67, rng.integers(0, 9)).tolist()).last_node)
            tree.inc_lock_ref(held[-1])
        expect_sound(tree, "after 300 random locks and unlocks")
    return "counts and sizes stay right through 300 random locks and unlocks"
