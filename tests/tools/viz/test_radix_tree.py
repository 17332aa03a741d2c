"""`viz.radix_tree`: nodes with tokens, slots and locks, and what is left out of large trees."""

from itertools import combinations
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from nanoinfer import viz
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.requests.adapter_key import AdapterKey
from nanoinfer.viz.palette import ROLES
from tests.helpers.pictures import (
    assert_readable,
    insert,
    make_pool,
    make_tree,
    named,
    texts,
)


def test_which_leaf_goes_next_can_be_left_to_the_reader() -> None:
    tree = make_tree()
    insert(tree, [1, 2])
    insert(tree, [3, 4])
    with_next, without = viz.radix_tree(tree), viz.radix_tree(tree, tell_next=False)
    assert "next to evict" in with_next.alt
    assert "next to evict" in texts(with_next)
    assert without.alt == with_next.alt.replace(", next to evict", "")
    assert "next to evict" not in texts(without)


def test_a_long_text_keeps_its_end_where_the_paths_part() -> None:
    tree = make_tree()
    text = "the beginning " * 20 + "and, at last, the end"
    insert(tree, [*text.encode()])
    picture = viz.radix_tree(tree, decode=lambda ids: bytes(ids).decode())
    drawn = next(text for text in texts(picture) if text.endswith("the end"))
    assert drawn.startswith("the beginning")
    assert drawn.endswith("at last, the end")
    assert_readable(picture)


def test_an_empty_tree_is_a_root() -> None:
    picture = viz.radix_tree(make_tree())
    assert picture.alt == "Radix tree: 0 nodes, depth 0, 0 tokens (0 evictable, 0 locked)."
    assert "root" in texts(picture)


def test_nodes_show_tokens_slots_locks_uses_and_which_one_goes_next() -> None:
    tree = make_tree()
    insert(tree, range(1, 17))
    match = tree.match_prefix(range(1, 8))  # type: ignore[arg-type]
    tree.inc_lock_ref(match.last_node)
    insert(tree, [5, 6], "adapter")
    picture = viz.radix_tree(tree, highlight=match)
    shown = set(texts(picture))
    assert {"1 2 3 4 5 6 7", "7 tokens · slots 0-6", "lock_ref 1 · last use 3 · hits 1"} <= shown
    assert {"9 tokens · slots 7-15", "extra_key='adapter'", "extra_key=None", "next to evict", "evictable: 11"} <= shown
    assert sorted(to_hex(patch.get_facecolor()) for patch in named(picture, "node")) == sorted(
        [ROLES["tree_locked"].face, ROLES["tree"].face, ROLES["tree"].face]
    )
    assert "next to evict" in picture.alt.split(";")[2]
    assert picture.alt.endswith("marked: 1 node of 7 tokens.")
    assert_readable(picture)


def test_the_namespace_of_an_adapter_is_named_after_it() -> None:
    tree = make_tree()
    insert(tree, [5, 6], AdapterKey(3, None, "rhymes"))
    insert(tree, [5, 7], AdapterKey(4, "customer 2", "sea"))
    shown = set(texts(viz.radix_tree(tree)))
    assert {"adapter rhymes, id 3", "adapter sea, id 4, extra_key='customer 2'"} <= shown


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


def test_decode_makes_text_of_the_tokens() -> None:
    tree = make_tree()
    insert(tree, [104, 105, 32, 111])
    picture = viz.radix_tree(tree, decode=lambda ids: bytes(ids).decode())
    assert "hi o" in texts(picture)
    assert '"hi o" in slots 0-3' in picture.alt


def test_a_long_text_of_words_is_cut_between_words() -> None:
    tree = make_tree()
    insert(tree, range(10_000, 10_060))
    picture = viz.radix_tree(tree, decode=lambda ids: " ".join(map(str, ids)))
    (label,) = (text for text in texts(picture) if text.startswith("10000 "))
    assert " … " in label
    assert label.endswith(" 10059")
    assert set(label.split()) - {"…"} <= {str(i) for i in range(10_000, 10_060)}


def test_a_node_without_text_shows_its_ids() -> None:
    tree = make_tree()
    insert(tree, [1])
    picture = viz.radix_tree(tree, decode=lambda ids: "")
    assert "1" in texts(picture)
    assert "[1] in slot 0" in picture.alt


@pytest.mark.parametrize("decode", [None, lambda ids: " " + " ".join(f"a{i}long·word" * 9 for i in ids)])
def test_a_deep_tree_shows_both_ends_and_counts_the_rest(decode: Any) -> None:
    tree = make_tree(6000)
    for i in range(50):
        insert(tree, [*range(3 * i + 3), 1000])
    picture = viz.radix_tree(tree, decode=decode)
    assert picture.alt.startswith("Radix tree: 99 nodes, depth 50, 200 tokens (200 evictable, 0 locked)")
    drawn, left_out = len(named(picture, "node")), next(text for text in texts(picture) if "more nodes" in text)
    assert drawn + int(left_out.split()[1]) == 99
    assert_readable(picture)


def test_a_wide_tree_counts_the_children_it_leaves_out_and_keeps_the_marked_one() -> None:
    tree = make_tree()
    nodes = [insert(tree, [1, 2, 3, 100 + i, 5]) for i in range(40)]
    picture = viz.radix_tree(tree, highlight=nodes[37])
    assert len(named(picture, "node")) == 10
    assert {"… 31 more nodes, 62 tokens", "137 5", "100 5"} <= set(texts(picture))
    assert_readable(picture)


def test_a_tree_of_many_branches_keeps_what_is_marked() -> None:
    tree = make_tree()
    nodes = [insert(tree, [1, 2, 3, 100 + i, 5, 6, 7, 200 + j, 8]) for i in range(5) for j in range(8)]
    picture = viz.radix_tree(tree, highlight=nodes[-1])
    left_out = [int(text.split()[1]) for text in texts(picture) if "more node" in text]
    assert len(named(picture, "node")) + sum(left_out) == 46
    assert any(to_hex(patch.get_edgecolor()) == ROLES["highlight"].face for patch in picture.findobj(Rectangle))
    assert_readable(picture)


def test_boxes_of_nodes_do_not_overlap() -> None:
    tree = make_tree()
    for tokens in ([1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 6], [1, 7], [8, 9], [8, 10], [1, 2, 4, 6, 11], [12]):
        insert(tree, tokens)
    boxes = named(viz.radix_tree(tree), "node")
    assert len(boxes) > 8
    for a, b in combinations(boxes, 2):
        apart = a.get_x() + a.get_width() <= b.get_x() or b.get_x() + b.get_width() <= a.get_x()
        assert apart or a.get_y() + a.get_height() <= b.get_y() or b.get_y() + b.get_height() <= a.get_y()


def test_what_is_no_node_cannot_be_marked() -> None:
    with pytest.raises(ValueError, match=r"highlight\[0\]: must be TreeNode, got int"):
        viz.radix_tree(make_tree(), highlight=[3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="highlight: must be TreeNode, MatchResult or some nodes, got int"):
        viz.radix_tree(make_tree(), highlight=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="decode: must be a function of token ids, got str"):
        viz.radix_tree(make_tree(), decode="x")  # type: ignore[arg-type]
