"""Checks of notebook 07, locks and eviction: the reader's methods inside the package's tree."""

import numpy as np

from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.teaching.checks.nb07_trees import (
    SIZE,
    empty_tree,
    expect_owned,
    expect_sizes,
    expect_sound,
    filled,
    given_tree,
    ids,
    locks,
    node_of,
    put,
    shape,
)
from nanoinfer.teaching.exercises import Given, exercise
from nanoinfer.teaching.expectations import expect, expect_equal


@exercise("7.4", "Lock a path", points=2)
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
    expect(tree.root.lock_ref == 0, "the root holds no tokens and cannot be evicted: leave its lock_ref alone")
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


@exercise("7.5", "Evict the least recently used leaves", points=2)
def _(given: Given) -> str | None:
    tree = given_tree(given, "EvictCache")
    expect_equal(tree.evict(5), 0, "an empty tree frees nothing, so evict returns 0")
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
    expect_equal(tree.evict(0), 0, "evict(0) frees nothing")
    got = tree.evict(1)
    expect(got is not None, "evict returns how many tokens it has freed")
    expect_equal(
        shape(tree),
        {"AB", "ABCD", "XYZ"},
        "'EF' was used longest ago",
    )
    expect_equal(got, 2, "a leaf is evicted as a whole: two tokens, though one was requested")
    expect_owned(tree, "after evict(1)", queue=False)
    expect_sizes(tree, 7, 0, "two evictable tokens fewer")
    expect_equal(tree.evict(4), 5, "'XYZ' alone is not enough for 4: go on with the next leaf")
    expect_equal(shape(tree), {"AB"}, "'XYZ' was used longest ago, then 'CD'; these free at least 4, so 'AB' stays")
    expect_equal(tree.evict(100), 2, "a node whose last child was evicted is a leaf itself and can be evicted")
    expect_equal(tree.token_to_kv_pool.available_size(), SIZE, "everything is evicted, so every slot must be free")

    tree = given_tree(given, "EvictCache")
    filled(tree, ["ABCD", "ABEF", "X"])
    node = node_of(tree, "ABEF")
    tree.inc_lock_ref(node)
    expect_equal(
        tree.evict(100),
        3,
        "'ABEF' is locked, so only 'CD' and 'X' can be evicted; then stop, though 100 were requested",
    )
    expect_equal(shape(tree), {"AB", "ABEF"}, "a running request reads 'ABEF': without it, it would read wrong K/V")
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
                mine.evict(count), package.evict(count), f"random operations: evict({count}) freed a wrong number"
            )
            expect_equal(shape(mine), shape(package), "random operations: another leaf was used less recently")
            expect_owned(mine, "after random operations", queue=False)
    return "the same leaves as the package's heap, through 200 random operations"
