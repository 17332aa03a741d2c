"""Two routers follow real trees that evict, are reset and start again, while messages are lost, repeated and late: each
router knows what the trees hold, and how far they match a prompt."""

from random import Random

import pytest

from nanoinfer.cache.block_events import Snapshot, block_hashes
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cluster import PassCosts, PrefixRouter, RoutedRequest
from nanoinfer.cluster.block_index import matched_blocks
from nanoinfer.requests.request import AdapterKey
from tests.helpers.block_mirror import blocks_of_tree
from tests.helpers.trees import make_cache, put

KEYS = (None, "tenant", AdapterKey(1, None, "sea"), AdapterKey(2, "tenant", "sea"), AdapterKey(3, None, "rhymes"))
NAMES = ("a", "b", "c")


class Tree:
    """A replica without an engine. `place`: for each router, the source and number of the batch that it gets next."""

    def __init__(self, name: str, page_size: int, block_size: int, routers: int):
        self.name, self.page_size, self.block_size, self.starts = name, page_size, block_size, 0
        self.start([("", 0)] * routers)

    def start(self, places: list[tuple[str, int]]) -> None:
        self.cache = make_cache(60 * self.page_size, self.page_size)
        self.starts += 1
        source = f"{self.name}{self.starts}"
        self.feed = BlockFeed(self.cache, self.block_size, keep_blocks=40, clock=lambda: 0.0, source=source)
        self.places = places

    def change(self, rng: Random) -> None:
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 14)) for _ in range(self.page_size)]
        if rng.random() < 0.02:
            self.cache.reset()
        elif rng.random() < 0.2:
            self.cache.evict(rng.randrange(1, 30))
        elif len(tokens) <= self.cache.token_to_kv_pool.available_size():
            put(self.cache, tokens, rng.choice(KEYS))
        if rng.random() < 0.7:
            self.feed.cut()


def tell(tree: Tree, number: int, router: PrefixRouter, rng: Random, may_lose: bool) -> None:
    """Deliver what is new, perhaps twice or with gaps; changes may happen while a snapshot is on its way."""
    source, seq = tree.places[number]
    batches = tree.feed.since(seq) if source == tree.feed.source else None
    if batches is not None:
        for batch in batches:
            if may_lose and rng.random() < 0.1:
                continue
            for _ in range(1 + (rng.random() < 0.1)):
                if not router.note_events(tree.name, batch):
                    batches = None
                    break
            if batches is None:
                break
            tree.places[number] = source, batch.seq + 1
    if batches is None:
        snapshot: Snapshot = tree.feed.snapshot()
        if may_lose:
            tree.change(rng)
        router.note_snapshot(tree.name, snapshot)
        tree.places[number] = snapshot.source, snapshot.seq


@pytest.mark.parametrize(("page_size", "block_size"), [(1, 4), (2, 3), (4, 4), (4, 6), (4, 2)])
def test_routers_know_what_the_trees_hold(page_size: int, block_size: int) -> None:
    rng, checked = Random(f"trees {page_size} {block_size}"), 0
    routers = [PrefixRouter(PassCosts(0.1, 1.0, 0.0, 0.0), block_size=block_size, clock=lambda: 0.0) for _ in "12"]
    trees = {name: Tree(name, page_size, block_size, len(routers)) for name in NAMES}
    for router in routers:
        for name in NAMES:
            router.add_replica(name)
    for step in range(400):
        name = rng.choice(NAMES)
        trees[name].change(rng)
        if rng.random() < 0.01:
            trees[name].start(trees[name].places)
        if rng.random() < 0.01:
            for router in routers:
                router.remove_replica(name)
                router.add_replica(name)
            trees[name].places = [("", 0)] * len(routers)  # who has forgotten a replica begins anew with it
        for number, router in enumerate(routers):
            if rng.random() < 0.3:
                tell(trees[name], number, router, rng, may_lose=True)
        if step % 20:
            continue
        for number, router in enumerate(routers):
            for tree in trees.values():
                for _ in range(3):  # the end of what is lost is noticed with the next batch only
                    tell(tree, number, router, rng, may_lose=False)
            held = {tree.name: set(blocks_of_tree(tree.cache, block_size)) for tree in trees.values()}
            known = {name: router._bits[name] for name in NAMES}
            masks = router.index.sets.masks
            assert {name: {block for block in masks if masks[block] & bit} for name, bit in known.items()} == held
            for key in KEYS * 4:
                tokens = [rng.randrange(2) for _ in range(12) for _ in range(page_size)]
                extra, adapter = (key.extra_key, key.name) if isinstance(key, AdapterKey) else (key, None)
                found = matched_blocks(block_hashes(tokens, block_size, extra, adapter), router.index.sets)
                for name, tree in trees.items():
                    matched = len(tree.cache.match_prefix(tokens, key).indices)
                    blocks = next((blocks for blocks, bits in found if bits & known[name]), 0)
                    assert blocks >= matched // block_size
                    assert (
                        blocks * block_size - matched < page_size
                    )  # a tree matches whole pages; blocks may end in one
                    checked += blocks > 0
            assert router.choose(RoutedRequest(f"{step}", tokens, 1, extra, adapter)) in NAMES
            router.note_end(f"{step}")
    assert checked > 5
