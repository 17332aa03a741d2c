"""Pictures that explain: the map of the engine, the roofline, the allocator's marks, attention worked out, occupancy."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from nanoinfer import viz
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.cache.slot_allocator import BLOCK, SlotAllocator
from nanoinfer.trace import Trace, record
from nanoinfer.viz.palette import PHASE_STYLES, ROLES
from tests.helpers.engines import greedy, make_engine
from tests.helpers.pictures import assert_readable, faces, make_pool, named, take, texts

# --- engine_map -------------------------------------------------------------------------------------------------------


def here(picture: viz.Picture) -> set[str]:
    """The parts with a frame."""
    return {patch.get_gid().removeprefix("here ") for patch in named(picture, "here ")}


@pytest.mark.parametrize("notebook", range(2, 20))
def test_every_notebook_has_a_place_on_the_map(notebook: int) -> None:
    picture = viz.engine_map(notebook)
    assert f"{notebook:02}" in picture.alt
    assert " You are here: " in picture.alt
    assert len(named(picture, "you are here")) == 1
    assert picture.get_figheight() * 100 <= 260
    assert_readable(picture)


def test_the_first_notebook_is_about_the_whole_engine() -> None:
    picture = viz.engine_map(1)
    assert here(picture) == {"everywhere"}
    assert "you are here: the whole engine" in texts(picture)
    assert picture.alt.count("radix tree") == 2  # a part, and a place


@pytest.mark.parametrize(
    ("where", "parts"),
    [
        ((), set()),
        (0, set()),
        ("scheduler", {"scheduler"}),
        (["model", "attention"], {"model", "attention"}),
        ("Input_Metadata", {"input metadata"}),
        ("tree", {"radix tree"}),
        (5, {"rows", "slots"}),
        (19, {"radix tree", "slots"}),
        ("07", {"attention"}),
    ],
)
def test_parts_are_marked_by_name_and_by_notebook(where: Any, parts: set[str]) -> None:
    picture = viz.engine_map(where)
    assert here(picture) == parts
    assert ("you are here" in texts(picture)) == bool(parts)


def test_who_owns_a_slot_is_a_frame_around_tree_rows_and_slots() -> None:
    picture = viz.engine_map(9)
    (frame,) = [p for p in picture.findobj(Rectangle) if p.get_gid() == "part the life of a slot"]
    assert to_hex(frame.get_edgecolor()) == ROLES["highlight"].face
    for name in ("radix tree", "rows", "slots"):
        (part,) = named(picture, f"part {name}")
        assert frame.get_x() < part.get_x()
        assert part.get_x() + part.get_width() < frame.get_x() + frame.get_width()


@pytest.mark.parametrize("where", ["kernel", 20, -1, True, ["rows", "heads"]])
def test_places_that_are_not_on_the_map_are_refused(where: Any) -> None:
    with pytest.raises(ValueError, match="here="):
        viz.engine_map(where)


# --- roofline ---------------------------------------------------------------------------------------------------------

PASSES = [("DECODE, 1 request", 3e6, 6e6, 6e-4), ("EXTEND of 256 tokens", 8e8, 1e7, 1e-2)]


def test_decode_and_extend_are_below_the_roof_where_they_were_measured() -> None:
    picture = viz.roofline(PASSES, flop_per_second=160e9, bytes_per_second=10e9, machine="a laptop")
    (axes,) = picture.axes
    points = {line.get_gid(): line.get_xydata().tolist()[0] for line in axes.lines if line.get_gid()}
    assert points["pass DECODE, 1 request"] == pytest.approx([0.5, 5])
    assert points["pass EXTEND of 256 tokens"] == pytest.approx([80, 80])
    marks = {line.get_gid(): line.get_markerfacecolor() for line in axes.lines if line.get_gid()}
    assert list(marks.values()) == [PHASE_STYLES["decode"].face, PHASE_STYLES["extend"].face]
    roof = axes.lines[0].get_xydata().tolist()
    assert roof[1] == pytest.approx([16, 160])
    assert roof[2][1] == pytest.approx(160)
    assert "5 billion operations per second, 100 % of the roof (memory is the limit)" in picture.alt
    assert "80 billion operations per second, 50 % of the roof (arithmetic is the limit)" in picture.alt
    assert picture.alt.startswith("Roof of a laptop: 10 GB and 160 billion operations per second.")


def test_the_roofs_axes_and_sides_are_in_plain_words() -> None:
    picture = viz.roofline(PASSES, flop_per_second=160e9, bytes_per_second=10e9, caption="Look at the gap.")
    (axes,) = picture.axes
    assert axes.get_xlabel().startswith("arithmetic operations for each byte read  (each grid line: ")
    assert axes.get_ylabel().startswith("billion operations per second\n(each grid line: ")
    shown = " ".join(texts(picture))
    assert "memory is the limit: 10 GB per second" in shown
    assert "arithmetic is the limit: 160 billion operations per second" in shown
    assert "Look at the gap." in shown
    assert axes.get_title(loc="left") == "What limits a pass on this machine"
    picture.png()


@pytest.mark.parametrize(
    ("passes", "flops", "message"),
    [
        ([], 1, "passes: must have at least one"),
        ([("a", 1, 2)], 1, r"passes\[0\]: must be \(label, flop, bytes, seconds\)"),
        ([("a", 1, 0, 1)], 1, r"passes\[0\] bytes=0: must be above 0"),
        ([("a", 1, 1, "x")], 1, r"passes\[0\] seconds: must be a number, got 'x'"),
        (PASSES, 0, "flop_per_second=0: must be above 0"),
    ],
)
def test_a_roof_of_nonsense_is_refused(passes: Any, flops: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.roofline(passes, flop_per_second=flops, bytes_per_second=1)


# --- allocator_marks --------------------------------------------------------------------------------------------------


def scattered() -> SlotAllocator:
    """Three blocks, the first of them full: the lowest free slots are in the second."""
    allocator = SlotAllocator(3 * BLOCK)
    slots = allocator.alloc(2 * BLOCK + 10)
    assert slots is not None
    allocator.free(slots[[BLOCK + 4, BLOCK + 5, BLOCK + 8, BLOCK + 14]])
    return allocator


def test_the_search_goes_from_the_first_block_with_a_free_page_to_its_first_free_mark() -> None:
    allocator = scattered()
    picture = viz.allocator_marks(allocator)
    (block,) = [patch for patch in picture.findobj(Rectangle) if patch.get_gid() == "found block"]
    (mark,) = [patch for patch in picture.findobj(Rectangle) if patch.get_gid() == "found mark"]
    assert block.get_x() == pytest.approx(named(picture, "block 1")[0].get_x() + 1)
    assert mark.get_x() == pytest.approx(named(picture, f"mark {BLOCK + 4}")[0].get_x() + 1)
    assert faces(picture, f"mark {BLOCK + 5}") == [ROLES["free"].face]
    assert faces(picture, f"mark {BLOCK + 6}") == [ROLES["in_use"].face]
    assert f"first free mark {BLOCK + 4} in block 1" in picture.alt
    assert_readable(picture)


def test_what_an_alloc_takes_is_drawn_after_it_and_the_allocator_stays_as_it_was() -> None:
    allocator = scattered()
    before = allocator.free_slots().tolist()
    picture = viz.allocator_marks(allocator, 3)
    taken = [BLOCK + 4, BLOCK + 5, BLOCK + 8]
    assert f"alloc(3) takes slots {BLOCK + 4}-{BLOCK + 5}, {BLOCK + 8}; " in picture.alt
    assert allocator.free_slots().tolist() == before
    assert allocator.alloc(3).tolist() == taken  # type: ignore[union-attr]
    for slot in taken:
        was, now = faces(picture, f"mark {slot}")
        assert was == ROLES["free"].face != now
    assert {"before", "after alloc(3)"} <= set(texts(picture))
    assert_readable(picture)


def test_an_alloc_that_fails_takes_nothing() -> None:
    picture = viz.allocator_marks(SlotAllocator(8), 9)
    assert picture.alt.endswith("alloc(9) returns None.")
    full = SlotAllocator(8)
    full.alloc(8)
    assert "no page is free" in viz.allocator_marks(full).alt


def test_pools_show_the_marks_of_their_allocators() -> None:
    pool = make_pool(32, page_size=4)
    take(pool, 8)
    picture = viz.allocator_marks(pool)
    assert [faces(picture, f"mark {i}") for i in (1, 2)] == [[ROLES["in_use"].face], [ROLES["free"].face]]
    assert "One mark per block, one mark per page of 4 slots" in texts(picture)
    assert "4 rows, 4 free" in viz.allocator_marks(ReqToTokenPool(4, 8)).alt


# --- attention_steps --------------------------------------------------------------------------------------------------

Q, K, V = [1.0, 0.3], [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]


def test_attention_worked_out_is_torchs_attention() -> None:
    picture = viz.attention_steps(Q, K, V)
    q, k, v = (torch.tensor(x) for x in (Q, K, V))
    out = torch.nn.functional.scaled_dot_product_attention(q[None], k, v)[0].tolist()
    assert picture.alt.endswith(f"the result is [{out[0]:.3f}, {out[1]:.3f}].")
    weights = torch.softmax(k @ q / 2**0.5, 0).tolist()
    shown = texts(picture)
    for weight in weights:
        assert f"{weight:.3f}" in shown
    assert {"q · k", "÷ √2", "softmax", "weight × v", "token 2", "their sum: the result"} <= set(shown)
    assert_readable(picture)


def test_a_row_appended_is_computed_now_and_the_others_come_from_the_cache() -> None:
    picture = viz.attention_steps(Q, K, V, newest=True, tokens=["Once", " upon", " a"])
    for name in ("k", "v"):
        assert faces(picture, f"{name} 1 0") == [ROLES["in_use"].face]
        assert faces(picture, f"{name} 2 0") == [ROLES["new"].face]
    assert "has just been appended" in picture.alt
    whole = viz.attention_steps(Q, K, V)
    assert faces(whole, "k 2 0") == [ROLES["in_use"].face]
    assert whole.alt.split("the result is")[1] == picture.alt.split("the result is")[1]


def test_one_token_and_eight_of_width_four_are_readable() -> None:
    assert_readable(viz.attention_steps(torch.ones(1), torch.ones(1, 1), torch.ones(1, 1), newest=True))
    rng = np.random.default_rng(0)
    assert_readable(viz.attention_steps(*(rng.normal(size=shape) for shape in (4, (8, 4), (8, 4)))))


@pytest.mark.parametrize(
    ("q", "keys", "values", "message"),
    [
        ([[1.0]], K, V, r"q: shape \[1, 1\], must be \[D\]"),
        ([1.0] * 5, K, V, "q: shape"),
        (Q, [[1.0]], V, r"keys: shape \[1, 1\], must be \[S, 2\]"),
        (Q, K, V[:2], "values: shape"),
        (Q, K * 3, V * 3, "keys: shape"),
        ("x", K, V, "q: must be numbers"),
        ([1.0, float("inf")], K, V, "q: must be finite"),
    ],
)
def test_attention_over_shapes_that_do_not_fit_is_refused(q: Any, keys: Any, values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.attention_steps(q, keys, values)


# --- the pool above a timeline ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded() -> Trace:
    """Three requests in so few slots that one is retracted."""
    engine = make_engine(rows=3, slots=36, schedule_conservativeness=0.1)
    with record(engine) as trace:
        for first in (97, 98, 99):
            engine.add_request([first, *range(60, 66)], greedy(12))
        while engine.has_unfinished():
            engine.step()
    return trace


def tall(picture: viz.Picture, step: int) -> float:
    """What of the pool is in use after a step, as drawn."""
    (pool,) = named(picture, "pool")
    kinds = ("tree, locked", "requests' own", "tree, unlocked")
    used = [
        patch.get_height()
        for kind in kinds
        for patch in named(picture, f"{kind} step {step}")
        if patch.get_gid() == f"{kind} step {step}"
    ]
    return sum(used) / pool.get_height()


def test_the_pools_occupancy_is_drawn_over_the_same_steps(crowded: Trace) -> None:
    retracted = [event.step for event in crowded.events if event.retracted]
    assert retracted
    picture = viz.timeline(crowded, occupancy=True, caption="Where the white ends, a request is retracted.")
    for event, state in crowded.states():
        if event.is_step:
            assert tall(picture, event.step) == pytest.approx((state.size - state.free) / state.size)
            bars = named(picture, f"requests' own step {event.step}")
            (mode,) = [patch for patch in named(picture, "pass ") if patch.get_gid() == f"pass {event.step}"]
            assert all(
                bar.get_x() == pytest.approx(mode.get_x()) for bar in bars if bar.get_gid().endswith(f" {event.step}")
            )
    assert "retraction" in texts(picture)
    assert f"Retracted: request 2 in step {retracted[0]}" in picture.alt
    assert f"of {crowded.engine['max_total_tokens']} are in use, the most" in picture.alt
    assert_readable(picture)


def test_without_being_asked_a_timeline_has_no_pool_above_it(crowded: Trace) -> None:
    picture = viz.timeline(crowded)
    assert not named(picture, "pool")
    assert "in use" not in picture.alt


def test_occupancy_over_time_and_of_the_last_steps_is_drawn_too(crowded: Trace) -> None:
    for options in ({"by": "time"}, {"last": 4}, {"steps": len(crowded) + 10}):
        picture = viz.timeline(crowded, occupancy=True, **options)
        assert len({patch.get_gid().rsplit(" ", 1)[1] for patch in named(picture, "requests' own step")}) <= len(
            crowded
        )
        assert_readable(picture)
    assert not named(viz.timeline(crowded, occupancy=True, last=4), f"requests' own step {len(crowded) - 4}")
