"""Pictures of pools, rows and the radix tree show what these objects hold."""

import pytest
from matplotlib.colors import to_hex

from nanoinfer import viz
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.viz.palette import REQUESTS, ROLES
from tests.helpers.pictures import faces, insert, make_pool, make_rows, make_tree, named, take, texts

FREE, TREE, LOCKED, LEAKED, CONFLICT, IN_USE, PADDING, LEFTOVER, NEW, HIGHLIGHT = (
    ROLES[role].face
    for role in (
        *("free", "tree", "tree_locked", "leaked", "conflict", "in_use", "padding", "leftover", "new", "highlight"),
    )
)


# --- slots -----------------------------------------------------------------------------------------------------------


def test_slots_have_the_look_of_their_owner_and_are_counted() -> None:
    pool = make_pool(64)
    picture = viz.slot_map(pool, {"request 1": take(pool, 7), "request 2": take(pool, 12)})
    assert [faces(picture, f"slot {i}")[0] for i in range(64)] == (
        [REQUESTS[1].face] * 7 + [REQUESTS[2].face] * 12 + [FREE] * 45
    )
    assert picture.alt == "64 slots: 45 free, 7 request 1, 12 request 2."


def test_mistakes_are_seen_slots_without_an_owner_and_slots_of_several() -> None:
    tree = make_tree(16)
    insert(tree, [1, 2, 3])
    pool = tree.token_to_kv_pool
    a, b, leaked = take(pool, 3).tolist()
    picture = viz.slot_map(pool, {"request 1": [a, b, b, 2, 9]}, radix_cache=tree)
    looks = {slot: faces(picture, f"slot {slot}")[0] for slot in range(10)}
    assert {slot for slot, face in looks.items() if face == CONFLICT} == {2, b, 9}, "one is free, one the tree's"
    assert [slot for slot, face in looks.items() if face == LEAKED] == [leaked]


def test_slots_of_a_tree_are_locked_or_not_and_slots_without_given_owners_are_in_use() -> None:
    tree = make_tree(32)
    tree.inc_lock_ref(insert(tree, [1, 2, 3]))
    insert(tree, [1, 2, 3, 4, 5])
    picture = viz.slot_map(tree.token_to_kv_pool, radix_cache=tree)
    assert [faces(picture, f"slot {i}")[0] for i in range(8)] == [LOCKED] * 3 + [FREE] * 3 + [TREE] * 2
    pool = make_pool(16)
    take(pool, 3)
    assert faces(viz.slot_map(pool), "slot 2") == [IN_USE]


# --- rows ------------------------------------------------------------------------------------------------------------


def test_rows_show_slots_of_the_tree_of_the_request_and_entries_that_are_not_in_use() -> None:
    picture = viz.request_rows(make_rows(), {0: 6, 1: 14}, prefix_lens={1: 4}, allocated_lens={0: 8, 1: 14})
    rows = [[faces(picture, f"row {row} {i}")[0] for i in range(16)] for row in (0, 1)]
    assert rows == [
        [LOCKED] * 4 + [REQUESTS[0].face] * 2 + [PADDING] * 2 + [LEFTOVER] * 8,
        [LOCKED] * 4 + [REQUESTS[1].face] * 10 + [LEFTOVER] * 2,
    ]
    assert texts(picture).count("–") == 10, "an entry that is not in use is no slot 0"


def test_a_slot_that_several_rows_name_looks_the_same_in_each_of_them() -> None:
    picture = viz.request_rows(make_rows(), {0: 9, 1: 14})
    for row, position in ((row, position) for row in (0, 1) for position in range(4)):
        assert faces(picture, f"row {row} {position}") == [REQUESTS[0].face]
        assert faces(picture, f"row {row} {position} and 1") == [REQUESTS[1].face]
    assert not named(picture, "row 0 4 and")


# --- the tree --------------------------------------------------------------------------------------------------------


def test_nodes_show_tokens_slots_and_locks() -> None:
    tree = make_tree()
    insert(tree, range(1, 17))
    match = tree.match_prefix(range(1, 8))
    tree.inc_lock_ref(match.last_node)
    insert(tree, [104, 105], "adapter")
    picture = viz.radix_tree(tree, highlight=match)
    assert {"1 2 3 4 5 6 7", "7 tokens · slots 0-6", "9 tokens · slots 7-15", "extra_key='adapter'"} <= set(
        texts(picture)
    )
    assert sorted(to_hex(node.get_facecolor()) for node in named(picture, "node")) == sorted([LOCKED, TREE, TREE])
    assert picture.alt.endswith("marked: 1 node of 7 tokens.")
    assert "hi" in texts(viz.radix_tree(tree, decode=lambda ids: bytes(ids).decode()))
    assert "root" in texts(viz.radix_tree(make_tree()))


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
def test_the_node_marked_to_go_next_is_the_one_that_goes(policy: str) -> None:
    tree = RadixCache(ReqToTokenPool(1, 8), make_pool(64), policy=policy)
    for first in (1, 2, 3):
        insert(tree, [first, 7])
    for first in (1, 1, 2, 3, 3):
        tree.match_prefix([first, 7])
    said = next(part for part in viz.radix_tree(tree).alt.split(";") if "next to evict" in part)
    first = int(said.split("[")[1].split()[0])
    tree.evict(1)
    assert tree.match_prefix([first, 7]).indices.tolist() == []
    assert "next to evict" not in viz.radix_tree(tree, tell_next=False).alt
