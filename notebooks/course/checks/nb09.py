"""Checks of notebook 09: an audit, locks, and how many slots are obtainable. nb09_moves.py has what changes hands."""

import numpy as np

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.requests.req import Req
from notebooks.course.checks.nb08 import SIZE as TREE_SIZE
from notebooks.course.checks.nb08 import expect_sizes, expect_sound, filled, given_tree, locks, node_of
from notebooks.course.checks.nb09_moves import (
    SIZE,
    admitted,
    empty_cache,
    given_cache,
    owners,
    request,
    run,
    take_slots,
)
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal


@exercise("9.1", "An audit", points=2)
def _(given: Given) -> str | None:
    audit = given["audit"]
    cache = empty_cache(size=12)
    expect_equal(audit(cache, []), [["free"]] * 12, "in a new pool every slot is free, and there is one entry per slot")
    req = admitted(cache, 7, "ABCD")
    early = "the pass of request 7 hasn't run (kv_len is 0), but its four slots are its own, up to allocated_len"
    expect_equal(audit(cache, [req]), [["request 7"]] * 4 + [["free"]] * 8, early)
    run(req)
    cache.cache_computed(req)
    req.append(ord("E"))
    take_slots(cache, req)
    begin = "the prompt is the tree's now, so the request's own slots begin at tree_len (prefix_len is still 0)"
    expect_equal(audit(cache, [req]), [["tree"]] * 4 + [["request 7"]] + [["free"]] * 7, begin)
    second = admitted(cache, 8, "ABX")
    want = [["tree"]] * 4 + [["request 7"], ["request 8"]] + [["free"]] * 6
    expect_equal(audit(cache, [req, second]), want, "request 8 reads two slots of the tree, and owns one")
    cache.token_to_kv_pool.free([4])
    want[4] = ["free", "request 7"]
    both = "slot 4 has been freed although request 7 still has it: an audit must name both owners"
    expect_equal([sorted(names) for names in audit(cache, [req, second])], want, both)
    cache.token_to_kv_pool.alloc(1)
    expect_equal(audit(cache, [second])[4], [], "nothing owns slot 4: its entry is an empty list")

    paged = empty_cache(size=16, page_size=4)
    req = admitted(paged, 3, "ABCDE")
    run(req)
    pages = "with pages of 4, five tokens take two pages: the request owns eight slots, filled or not"
    expect_equal(audit(paged, [req]), owners(paged, [req]), pages)
    rng = np.random.default_rng(1)
    cache, running = empty_cache(), list[Req]()
    for number in range(40):
        if len(running) == 4:
            cache.release(running.pop(rng.integers(4)))
        running.append(admitted(cache, number, "".join(rng.choice(list("AB"), rng.integers(2, 9)))))
        if rng.integers(2):
            run(running[-1])
            cache.cache_computed(running[-1])
        got, want = ([sorted(names) for names in each(cache, running)] for each in (audit, owners))
        expect_equal(got, want, f"after {number + 1} random requests")
    return "every owner of every slot is found, also in broken pools"


@exercise("9.5", "Does it fit?", points=2)
def _(given: Given) -> str | None:
    cache = given_cache(given, "Room", 16)
    expect_equal(cache.obtainable_size(), 16, "in a new pool every slot is free")
    slots = cache.token_to_kv_pool.alloc(10)
    cache.radix_cache.insert([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], slots)
    expect_equal(cache.obtainable_size(), 16, "no request reads the tree's ten slots: they can be evicted")
    node = cache.radix_cache.match_prefix([1, 2, 3, 4, 5, 6]).last_node
    cache.radix_cache.inc_lock_ref(node)
    expect_equal(cache.obtainable_size(), 10, "six tokens are locked, four can be evicted, and six slots are free")
    cache.radix_cache.dec_lock_ref(node)

    cache = given_cache(given, "Room", 16)
    cache.radix_cache.insert([ord(letter) for letter in "ABCDEFGHIJKLMN"], cache.token_to_kv_pool.alloc(14))
    req = request(1, "ABCDEFGHIJKLMNOPQRS")
    got = cache.try_admit(req)
    expect(got is not None, "try_admit returns True or False")
    expect(
        not got,
        "19 tokens, 14 of them found, in a pool of 16 slots: 5 are needed, and 2 are free. Before the lock, the 14 slots "
        "of the prefix itself count as evictable. So lock first, then count",
    )
    before = (
        "the request isn't admitted, so nothing may be locked, and it must be as before: unlock_prefix sees to that"
    )
    expect_equal([cache.radix_cache.protected_size(), req.prefix_len], [0, 0], before)
    req = request(2, "ABCDEFGHIJKLMNOP")
    expect(cache.try_admit(req), "16 tokens, 14 of them found: 2 slots are needed, and 2 are free, which is enough")
    expect_equal(cache.radix_cache.protected_size(), 14, "an admitted request's prefix stays locked")
    expect(not cache.try_admit(request(3, "XYZ")), "3 slots are needed, 2 are free, and all the others are locked")

    mine, package = given_cache(given, "Room"), empty_cache()
    rng, held = np.random.default_rng(2), list[tuple[Req, Req]]()
    for number in range(200):
        text = "".join(rng.choice(list("AB"), rng.integers(2, 40)))
        if held and rng.integers(2):
            for cache, req in zip((mine, package), held.pop(rng.integers(len(held))), strict=True):
                cache.unlock_prefix(req)
        for cache in (mine, package):
            if cache.token_to_kv_pool.available_size() >= len(text) and number % 3 == 0:
                slots = cache.token_to_kv_pool.alloc(len(text))
                assert slots is not None
                tokens = [ord(letter) for letter in text]
                cache.token_to_kv_pool.free(slots[: cache.radix_cache.insert(tokens, slots)])
        expect_equal(mine.obtainable_size(), CacheManager.obtainable_size(package), f"after {number} random operations")
        pair = request(number, text), request(number, text)
        CacheManager.lock_prefix(package, pair[1])
        want = pair[1].num_tokens - pair[1].prefix_len <= CacheManager.obtainable_size(package)
        if not want:
            package.unlock_prefix(pair[1])
        said = f"a random prompt of {len(text)} tokens in a pool of {SIZE} slots"
        expect_equal(bool(mine.try_admit(pair[0])), want, said)
        if want:
            held.append(pair)
    return "the number is right after 200 random operations"


@exercise("9.2", "Lock a path", points=2)
def _(given: Given) -> str | None:
    tree = given_tree(given, "LockCache")
    filled(tree, ["ABCD", "ABEFG", "X"])
    leaf, upper = node_of(tree, "ABCD"), node_of(tree, "AB")
    root, take, give = tree.root, tree.inc_lock_ref, tree.dec_lock_ref
    for lock, node, of_upper, of_leaf, evictable, why in (
        (take, leaf, 1, 1, 4, "a request needs every node from the root down to its node, and no others"),
        (take, upper, 2, 1, 4, "two requests have locked 'AB'. A token counts once, however many have locked it"),
        (give, leaf, 1, 0, 6, "one request has unlocked 'ABCD', another still locks 'AB'"),
        (take, root, 1, 0, 6, "a request that matched nothing locks the root, which changes nothing"),
        (give, root, 1, 0, 6, "a request that matched nothing unlocks the root, which changes nothing"),
    ):
        lock(node)
        expect_equal(locks(tree), {"AB": of_upper, "ABCD": of_leaf, "ABEFG": 0, "X": 0}, why)
        expect_sizes(tree, evictable, 8 - evictable, why)
        expect(root.lock_ref == 0, "the root holds no tokens and can't be evicted: leave its lock_ref alone")
    queue = (
        "can be evicted again, but only what is in the queue: offer it to the queue, self._eviction_queue.offer(node)"
    )
    expect_equal(RadixCache.evict(tree, TREE_SIZE), 6, f"unlocked nodes {queue}")
    give(upper)
    expect_sizes(tree, 2, 0, "nothing is locked any more")
    expect_equal(RadixCache.evict(tree, TREE_SIZE), 2, f"'AB' is a leaf now and {queue}")

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
