"""`viz.slot_map`: which slot is whose, what is free, leaked or owned twice, and how many slots are drawn."""

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch, Rectangle

from nanoinfer import viz
from nanoinfer.viz.palette import REQUESTS, ROLES
from tests.helpers.pictures import (
    assert_readable,
    faces,
    insert,
    make_pool,
    make_tree,
    named,
    take,
    texts,
)


def test_an_empty_pool_is_all_free() -> None:
    picture = viz.slot_map(make_pool(16))
    assert picture.alt == "16 slots: 16 free."
    assert len(named(picture, "slot ")) == 16
    assert {face for i in range(16) for face in faces(picture, f"slot {i}")} == {ROLES["free"].face}
    assert_readable(picture)


def test_slots_are_coloured_by_owner_and_counted() -> None:
    pool = make_pool(64)
    owners = {"request 1": take(pool, 7), "request 2": take(pool, 12)}
    picture = viz.slot_map(pool, owners)
    assert picture.alt == "64 slots: 45 free, 7 request 1, 12 request 2."
    assert {"free: 45", "request 1: 7", "request 2: 12"} <= set(texts(picture))
    assert faces(picture, "slot 6") == [REQUESTS[1].face]
    assert faces(picture, "slot 7") == [REQUESTS[2].face]
    assert faces(picture, "slot 19") == [ROLES["free"].face]
    assert set(map(str, range(64))) <= set(texts(picture))
    assert_readable(picture)


def test_a_full_pool_of_eight_requests_has_no_free_slot() -> None:
    pool = make_pool(256)
    owners = {f"request {i}": take(pool, 32) for i in range(8)}
    picture = viz.slot_map(pool, owners)
    assert picture.alt.startswith("256 slots: 0 free, 32 request 0,")
    assert "free: 0" in texts(picture)
    assert_readable(picture)


def test_a_slot_without_an_owner_is_marked_as_leaked() -> None:
    pool = make_pool(16)
    slots = take(pool, 5)
    picture = viz.slot_map(pool, {"request 1": slots[:3]})
    assert picture.alt == "16 slots: 11 free, 2 no owner (leaked?), 3 request 1; no owner (leaked?): 3-4."
    assert faces(picture, "slot 3") == [ROLES["leaked"].face]


def test_a_slot_with_two_owners_is_marked() -> None:
    tree = make_tree(16)
    insert(tree, [1, 2, 3])
    slots = take(tree.token_to_kv_pool, 2).tolist()
    picture = viz.slot_map(tree.token_to_kv_pool, {"request 1": [*slots, 2, 9]}, radix_cache=tree)
    assert picture.alt == "16 slots: 10 free, 2 tree, 2 several owners, 2 request 1; several owners: 2, 9."
    assert faces(picture, "slot 9") == [ROLES["conflict"].face]


def test_the_tree_owns_evictable_and_locked_slots() -> None:
    tree = make_tree(32)
    tree.inc_lock_ref(insert(tree, [1, 2, 3]))
    insert(tree, [1, 2, 3, 4, 5])
    picture = viz.slot_map(tree.token_to_kv_pool, radix_cache=tree)
    assert picture.alt == "32 slots: 27 free, 2 tree, 3 tree, locked."
    assert {"tree, unlocked: 2", "tree, locked: 3"} <= set(texts(picture))
    assert faces(picture, "slot 0") == [ROLES["tree_locked"].face]


def test_with_no_owners_given_slots_are_in_use_and_not_leaked() -> None:
    pool = make_pool(16)
    take(pool, 3)
    assert viz.slot_map(pool).alt == "16 slots: 13 free, 3 in use."
    assert viz.slot_map(pool, {}).alt.startswith("16 slots: 13 free, 3 no owner (leaked?)")


def test_pages_are_framed_and_never_broken_at_the_end_of_a_line() -> None:
    pool = make_pool(96, page_size=3)
    picture = viz.slot_map(pool, {"request 0": take(pool, 6)})
    places = {patch.get_gid(): (patch.get_x(), patch.get_y()) for patch in named(picture, "slot ")}
    for start in range(0, 96, 3):
        assert len({places[f"slot {start + i}"][1] for i in range(3)}) == 1
    frames = [patch for patch in picture.findobj(Rectangle) if not patch.get_fill() and patch.get_linewidth() == 1.1]
    assert sorted((patch.get_x(), patch.get_y()) for patch in frames) == sorted(
        places[f"slot {i}"] for i in range(0, 96, 3)
    )
    assert_readable(picture)


def test_thousands_of_slots_are_drawn_fine_and_counted_exactly() -> None:
    pool = make_pool(5000)
    owners = {f"request {i}": take(pool, 400 + 77 * i) for i in range(6)}
    picture = viz.slot_map(pool, owners)
    assert picture.alt.startswith("5,000 slots: 1,445 free, 400 request 0, 477 request 1,")
    assert "4999" not in texts(picture)
    drawn = sum(patch.get_width() * patch.get_height() for patch in named(picture, "slots "))
    free = sum(
        patch.get_width() * patch.get_height()
        for patch in named(picture, "slots ")
        if to_hex(patch.get_facecolor()) == ROLES["free"].face
    )
    assert free / drawn == pytest.approx(1445 / 5000)
    assert_readable(picture)


def test_of_a_hundred_thousand_slots_one_cell_stands_for_several() -> None:
    pool = make_pool(100_000)
    picture = viz.slot_map(pool, {"request 0": take(pool, 60_000)})
    assert picture.alt == "100,000 slots: 40,000 free, 60,000 request 0."
    assert any("One cell stands for 16 slots" in text for text in texts(picture))
    assert_readable(picture)


def test_highlighted_slots_are_framed_and_named() -> None:
    picture = viz.slot_map(make_pool(16), highlight=[3, 4, 9])
    assert picture.alt.endswith("; marked 3-4, 9.")
    frames = [
        p
        for p in picture.findobj(Rectangle)
        if to_hex(p.get_edgecolor()) == ROLES["highlight"].face and not p.get_fill()
    ]
    assert len(frames) == 3 + 1  # and the legend's


def test_a_title_replaces_the_one_it_has() -> None:
    assert "mine" in texts(viz.slot_map(make_pool(4), title="mine"))
    assert not any("TokenToKVPool" in text for text in texts(viz.slot_map(make_pool(4), title="mine")))


def test_every_cell_of_a_hatched_request_shows_its_hatch_wherever_it_is() -> None:
    pool = make_pool(160)
    picture = viz.slot_map(pool, {f"request {i}": take(pool, 32) for i in (1, 3, 4, 5)})  # a line of cells each
    marks = [patch.get_path().get_extents() for patch in picture.findobj(PathPatch)]
    for slot in range(4 * 32):
        cell, *_ = named(picture, f"slot {slot}")
        left, right, top = cell.get_x(), cell.get_x() + cell.get_width(), cell.get_y()
        inside = [
            box for box in marks if left <= box.x0 <= box.x1 <= right and top <= box.y0 <= top + cell.get_height() + 1
        ]
        assert inside, slot
