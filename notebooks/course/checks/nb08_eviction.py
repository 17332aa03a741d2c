"""Checks of notebook 08, eviction: the student's method inside the package's tree."""

import numpy as np

from nanoinfer.cache.radix_cache import RadixCache
from notebooks.course.checks.nb08_trees import (
    SIZE,
    empty_tree,
    expect_owned,
    expect_sizes,
    filled,
    given_tree,
    ids,
    node_of,
    put,
    shape,
)
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal


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
