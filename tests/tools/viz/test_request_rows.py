"""`viz.request_rows`: slots of the tree, of the request, shared, empty and left over."""

from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex

from nanoinfer import viz
from nanoinfer.viz.palette import REQUESTS, ROLES
from tests.helpers.engines import greedy, make_engine, serve
from tests.helpers.pictures import (
    assert_readable,
    faces,
    make_pool,
    make_rows,
    named,
    take,
    texts,
)
from tests.helpers.storeys import storey_of


def test_rows_show_the_slots_of_the_tree_those_of_the_request_and_what_is_left_over() -> None:
    picture = viz.request_rows(make_rows(), {0: 9, 1: 14}, prefix_lens={1: 4}, labels=["request 1", "request 2"])
    assert picture.alt == (
        "2 rows of 4; row 0: request 1: 9 tokens in slots 0-8; "
        "row 1: request 2: 14 tokens (4 of them the tree's) in slots 0-3, 20-28, 40."
    )
    assert faces(picture, "row 0 8") == [REQUESTS[1].face]
    assert faces(picture, "row 0 9") == [ROLES["leftover"].face]
    assert faces(picture, "row 1 3") == [ROLES["tree_locked"].face]
    assert faces(picture, "row 1 13") == [REQUESTS[2].face]
    assert faces(picture, "row 1 14") == [ROLES["leftover"].face]
    assert {"7", "8", "40", "slots of the request, each row's in its colour", "– not in use"} <= set(texts(picture))
    assert "slots of its tokens" in texts(viz.request_rows(make_rows(), {0: 9}))
    assert_readable(picture)


def test_slots_of_a_page_that_are_still_empty_are_not_left_over() -> None:
    picture = viz.request_rows(make_rows(), {0: 6, 1: 14}, allocated_lens={0: 8, 1: 14})
    assert picture.alt == (
        "2 rows of 4; row 0: 6 tokens in slots 0-5, 6-7 empty; row 1: 14 tokens in slots 0-3, 20-28, 40; "
        "named by several rows: slots 0-3."
    )
    assert faces(picture, "row 0 7") == [ROLES["padding"].face]
    assert faces(picture, "row 0 8") == faces(picture, "row 1 14") == [ROLES["leftover"].face]
    assert {"slots of its tokens, each row's in its colour", "given to the row, still empty"} <= set(texts(picture))
    assert "given to the row, still empty" not in texts(viz.request_rows(make_rows(), {0: 6}))


def test_an_entry_that_is_not_in_use_is_a_dash_and_never_a_slot() -> None:
    picture = viz.request_rows(make_rows(), {0: 9, 1: 14}, labels=["a", "b"])
    places = {patch.get_gid(): patch for patch in named(picture, "row ")}
    unused = [name for name, patch in places.items() if to_hex(patch.get_facecolor()) == ROLES["leftover"].face]
    assert {"row 0 9", "row 0 15", "row 1 14", "row 1 15"} <= set(unused)
    assert texts(picture).count("–") == len(unused)
    assert texts(picture).count("0") == 3  # a position, and the slot in two rows
    slots = texts(viz.request_rows(make_rows(), {2: 177}))
    assert slots.count("–") == 1


def test_a_slot_that_several_rows_name_looks_the_same_in_each_of_them() -> None:
    picture = viz.request_rows(make_rows(), {0: 9, 1: 14})
    for position in range(4):
        for row in (0, 1):
            assert faces(picture, f"row {row} {position}") == [REQUESTS[0].face]
            assert faces(picture, f"row {row} {position} and 1") == [REQUESTS[1].face]
    assert faces(picture, "row 0 4") == [REQUESTS[0].face]
    assert faces(picture, "row 1 4") == [REQUESTS[1].face]
    assert not named(picture, "row 0 4 and") + named(picture, "row 1 4 and")
    assert "slots of several rows: the colours of all of them" in texts(picture)
    assert_readable(picture)


def test_a_slot_of_the_tree_has_its_colour_in_every_row() -> None:
    picture = viz.request_rows(make_rows(), {0: 9, 1: 14}, prefix_lens={1: 4})
    assert [faces(picture, f"row {row} {i}") for row in (0, 1) for i in range(4)] == 8 * [[ROLES["tree_locked"].face]]
    assert "several" not in picture.alt


def test_long_rows_show_shared_slots_too() -> None:
    picture = viz.request_rows(make_rows(), {0: 9, 2: 177})
    assert faces(picture, "row 2 run and 1") == faces(picture, "row 0 run and 1") == [REQUESTS[2].face]
    assert {"0-8", "9-176"} <= set(texts(picture))


def test_slots_of_several_owners_may_be_shared() -> None:
    pool = make_pool(16)
    take(pool, 6)
    owners = {"row 0": [0, 1, 2, 3], "row 1": [0, 1, 4, 5]}
    picture = viz.slot_map(pool, owners, shared=True)
    assert picture.alt == "16 slots: 10 free, 2 row 0, 2 row 1, 2 of row 0 and row 1."
    assert (faces(picture, "slot 1"), faces(picture, "slot 1 and 1")) == ([REQUESTS[0].face], [REQUESTS[1].face])
    assert "2 several owners" in viz.slot_map(pool, owners).alt
    wrong = viz.slot_map(pool, owners | {"row 2": [3, 9]}, shared=True)
    assert "1 several owners" in wrong.alt
    assert wrong.alt.endswith("several owners: 9.")  # it is free as well


def test_a_row_with_fewer_slots_than_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"allocated_lens\[0\]=8: must be at least seq_lens\[0\]=9"):
        viz.request_rows(make_rows(), {0: 9}, allocated_lens={0: 8})


def test_long_rows_are_drawn_as_runs() -> None:
    picture = viz.request_rows(make_rows(), {2: 177, 3: 40}, prefix_lens={2: 100})
    assert {"0-99", "100-176", "78", "29 runs"} <= set(texts(picture))
    assert "177 tokens (100 of them the tree's) in slots 0-176" in picture.alt
    assert_readable(picture)


def test_no_rows_are_a_picture_too() -> None:
    picture = viz.request_rows(make_rows(), {})
    assert picture.alt == "0 rows of 4."
    assert "No row is in use." in texts(picture)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({4: 1},), "seq_lens: row 4 is outside 0..3"),
        (({0: 513},), r"seq_lens\[0\]=513: must be an integer in 0..512"),
        (({0: 1.5},), r"seq_lens\[0\]=1.5: must be an integer in 0..512"),
        (([3],), "seq_lens: must be Mapping, got list"),
    ],
)
def test_rows_out_of_range_are_refused(arguments: tuple[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.request_rows(make_rows(), *arguments)


def test_a_prefix_longer_than_its_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"prefix_lens\[0\]=10: must be at most seq_lens\[0\]=9"):
        viz.request_rows(make_rows(), {0: 9}, prefix_lens={0: 10})


def test_slots_whose_k_v_came_back_from_a_storey_are_hatched() -> None:
    came = {1: {"host": (1, 3), "disk": (3, 4)}}
    picture = viz.request_rows(make_rows(), {0: 9, 1: 14}, prefix_lens={1: 4}, fetched=came)
    assert "14 tokens (4 of them the tree's) (2 came back from host memory) (1 came back from files)" in picture.alt
    assert faces(picture, "row 1 2") == faces(picture, "row 1 0") == [ROLES["tree_locked"].face]
    assert {
        f"of the tree, locked: came back from {where} for this request" for where in ("host memory", "files")
    } <= set(texts(picture))
    assert_readable(picture)
    assert not any("came back" in text for text in texts(viz.request_rows(make_rows(), {1: 14}, prefix_lens={1: 4})))


@pytest.mark.parametrize("parts", [{"host": (0, 5)}, {"host": (3, 2)}, {"disk": (-1, 2)}, {"tape": (0, 1)}])
def test_what_was_fetched_must_be_slots_of_the_tree(parts: dict[str, tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match=r"fetched\[1\]=.* must be host or disk, in 0\.\.4"):
        viz.request_rows(make_rows(), {1: 14}, prefix_lens={1: 4}, fetched={1: parts})


def test_the_picture_of_an_engine_hatches_what_its_requests_fetched() -> None:
    engine = make_engine(slots=56, host_cache_tokens=64)
    storey_of(engine)
    serve(engine, [*range(40)], [*range(60, 100)], max_new_tokens=1)
    engine.add_request([*range(40), 3], greedy(5))
    engine.step()
    assert "(32 came back from host memory)" in viz.engine(engine).alt
