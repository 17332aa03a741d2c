"""What the pictures show: cells, counts, labels and sentences, on ordinary states and at the edges."""

import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from PIL import Image

from nanoinfer import LLM, SamplingParams, viz
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.engine import Engine
from nanoinfer.model.input_metadata import ForwardMode, InputMetadata
from nanoinfer.sessions import InferenceEngine, InferenceSession
from nanoinfer.viz.palette import REQUESTS, ROLES
from tests.helpers.pictures import (
    assert_readable,
    faces,
    insert,
    make_metadata,
    make_pool,
    make_tree,
    named,
    take,
    texts,
    worked_example,
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The bundled model after seven steps: four run, two wait."""
    engine = LLM("story", max_total_tokens=128, max_running_requests=4, max_context_len=64).engine
    for end in ("dog", "cat", "girl named Lily", "red ball", "fish", "bear"):
        params = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
        engine.add_request(f"Once upon a time there was a little {end}", params)
    for _ in range(7):
        engine.step()
    return engine


# --- Picture --------------------------------------------------------------------------------------------------------


def test_the_same_objects_give_the_same_bytes_without_a_version_or_a_date(tmp_path: Path) -> None:
    pool = make_pool(64)
    owners = {"request 1": take(pool, 7)}
    pictures = [viz.slot_map(pool, owners) for _ in range(2)]
    pictures[0].save(tmp_path / "a.png")
    written = (tmp_path / "a.png").read_bytes()
    assert written == pictures[0].png() == pictures[1].png()
    image = Image.open(tmp_path / "a.png")
    image.load()
    assert set(image.info) <= {"dpi", "transparency"}
    assert not any(word in written for word in (b"matplotlib", b"Software", b"tEXt", b"tIME"))


def test_flat_colours_survive_in_the_file(tmp_path: Path) -> None:
    owners = {f"request {i}": [i] for i in range(8)}
    pool = make_pool(16)
    take(pool, 8)
    viz.slot_map(pool, owners).save(tmp_path / "a.png")
    colours = {colour for _, colour in Image.open(tmp_path / "a.png").convert("RGB").getcolors(100_000) or []}
    for style in (ROLES["free"], *REQUESTS):
        assert tuple(int(style.face[i : i + 2], 16) for i in (1, 3, 5)) in colours


def test_a_notebook_shows_the_png_and_folds_the_numbers_away_beneath() -> None:
    display = pytest.importorskip("IPython.display")
    shown: list[Any] = []
    picture = viz.slot_map(make_pool(16), {"<b>": [15]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(display, "display", lambda *args, **kwargs: shown.append((args, kwargs)))
        picture._ipython_display_()
    ((data,), options), ((folded,), _) = shown
    assert set(data) == {"image/png", "text/plain"}
    assert data["text/plain"] == picture.alt
    assert options["raw"]
    assert options["metadata"]["image/png"] == {"width": 900, "alt": picture.alt}
    assert folded["text/plain"] == picture.alt
    assert folded["text/html"].startswith("<details><summary>the picture in words</summary>\n16 slots:")
    assert "<b>" not in folded["text/html"]


def test_sanitizers_let_the_folded_words_through() -> None:
    """GitHub and JupyterLab keep details and summary; bleach, which nbconvert uses, does so when it is told to."""
    bleach = pytest.importorskip("bleach")
    folded = viz.slot_map(make_pool(16))._alt_folded()
    assert bleach.clean(folded, tags={"details", "summary"}) == folded


def test_a_caption_is_beneath_the_picture_and_first_in_its_words() -> None:
    caption = "The first slot is taken."
    pictures = [
        viz.slot_map(make_pool(16), caption=caption),
        viz.bars({"a": 1}, unit="ms", caption=caption),
        viz.lines({"a": ([1], [2])}, x="x", y="y", caption=caption),
        viz.padded_batch([1, 2], caption=caption),
        viz.request_rows(make_rows(), {0: 9}, caption=caption),
        viz.input_metadata(worked_example(), caption=caption),
        viz.radix_tree(make_tree(), caption=caption),
    ]
    for picture in pictures:
        assert caption in texts(picture)
        assert picture.alt.startswith(caption + " ")


def test_no_global_state_of_matplotlib_is_touched() -> None:
    code = (
        "import sys, nanoinfer; assert 'matplotlib' not in sys.modules\n"
        "import matplotlib\n"
        "def settings(): return {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'}\n"
        "before = settings()\n"
        "from nanoinfer import viz; viz.bars({'a': 1}, unit='ms').png()\n"
        "viz.lines({'a': ([1], [2])}, x='x', y='y').png()\n"
        "assert settings() == before and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['matplotlib'] = None\nfrom nanoinfer import viz"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "nanoinfer.viz draws with matplotlib: pip install" in run.stderr.splitlines()[-1]


def test_pictures_are_saved_as_png_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path='.*a\.jpg': must end in \.png"):
        viz.slot_map(make_pool(16)).save(tmp_path / "a.jpg")


def test_what_the_font_cannot_draw_is_a_box_and_signs_of_mathematics_are_signs() -> None:
    picture = viz.bars({"$x_1$ 中文": 1}, unit="$")
    assert "$x_1$ ▯▯" in texts(picture)
    picture.png()


# --- slot_map -------------------------------------------------------------------------------------------------------


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


# --- request_rows ---------------------------------------------------------------------------------------------------


def make_rows() -> ReqToTokenPool:
    pool = ReqToTokenPool(4, 512)
    pool.req_to_token[0, :9] = torch.arange(9)
    pool.req_to_token[1, :14] = torch.tensor([0, 1, 2, 3, *range(20, 29), 40])
    pool.req_to_token[1, 14:16] = torch.tensor([7, 8])
    pool.req_to_token[2, :177] = torch.arange(177)
    pool.req_to_token[3, :40] = torch.arange(40) * 2
    return pool


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


# --- input_metadata -------------------------------------------------------------------------------------------------


PUBLIC_FIELDS = [name for name in InputMetadata.__dataclass_fields__ if not name.startswith("_")]


@pytest.mark.parametrize("mode", ForwardMode)
def test_every_field_of_the_metadata_appears_by_its_name(mode: ForwardMode) -> None:
    extend = mode is not ForwardMode.DECODE
    metadata = make_metadata([4, 6, 2], [5, 2, 3] if extend else [1, 1, 1], mode)
    shown = " ".join(texts(viz.input_metadata(metadata, fields="all")))
    for field in PUBLIC_FIELDS:
        assert field in shown


def test_only_the_fields_of_the_lesson_are_drawn_and_the_others_counted() -> None:
    metadata = make_metadata([8, 5], [1, 1], ForwardMode.DECODE)
    usual = viz.input_metadata(metadata)
    drawn = {"positions", "out_cache_loc", "qo_indptr", "kv_indices", "kv_indptr", "req_pool_indices", "seq_lens"}
    every = set(PUBLIC_FIELDS)
    assert every & set(texts(usual)) == drawn
    assert usual.alt.endswith(f"; {len(every) - len(drawn)} other fields not drawn.")
    few = viz.input_metadata(metadata, fields=["kv_indices", "max_seq_len", "prefix_lens"])  # which is None
    assert every & set(texts(few)) == {"kv_indices", "max_seq_len"}
    assert "max_seq_len=9" in few.alt
    assert "None" not in texts(few)
    assert "not drawn" not in viz.input_metadata(metadata, fields="all").alt
    for picture in (usual, few):
        assert_readable(picture)


@pytest.mark.parametrize("fields", [["kv_indices", "slots"], "slots", 3])
def test_fields_that_there_are_not_are_refused(fields: Any) -> None:
    with pytest.raises(ValueError, match="fields"):
        viz.input_metadata(worked_example(), fields=fields)


def test_a_slot_that_several_requests_read_looks_the_same_in_each_of_them() -> None:
    metadata = make_metadata([4, 4], [2, 1])
    metadata.kv_indices[6:8] = metadata.kv_indices[:2]
    picture = viz.input_metadata(metadata)
    for request in (0, 1):
        assert faces(picture, f"kv_indices {request} 1") == [REQUESTS[0].face]
        assert faces(picture, f"kv_indices {request} 1 and 1") == [REQUESTS[1].face]
    assert faces(picture, "kv_indices 1 2") == [REQUESTS[1].face]
    assert "several requests read slots 0-1" in picture.alt
    metadata.kv_indices[2] = -1
    assert "–" in texts(viz.input_metadata(metadata))


def test_the_worked_example_shows_its_numbers() -> None:
    tokens = ["<s>", " ", *"1234512345"]
    picture = viz.input_metadata(worked_example(), tokens=tokens, fields="all")
    assert "prefix_lens=[7]; positions=[7, 8, 9, 10, 11]; out_cache_loc=[16, 17, 18, 19, 20]" in picture.alt
    assert "kv_indices in slots 0-6, 16-20" in picture.alt
    assert [face for i in range(7) for face in faces(picture, f"kv_indices 0 {i}")] == 7 * [REQUESTS[0].face]
    assert [face for i in range(7, 12) for face in faces(picture, f"kv_indices 0 {i}")] == 5 * [ROLES["new"].face]
    assert {"<s>", "·", "out_cache_cont_start", "16", "21", "kv_indptr[0] = start_loc[0] = 0"} <= set(texts(picture))
    assert_readable(picture)


def test_decode_shows_one_new_token_each_and_no_prefix_lens() -> None:
    picture = viz.input_metadata(make_metadata([8, 599, 4], [1, 1, 1], ForwardMode.DECODE), fields="all")
    assert picture.alt.startswith("DECODE of 3 requests, 3 new tokens of 614 in all;")
    assert "prefix_lens=None; positions=[8, 599, 4]" in picture.alt
    assert "other_kv_index=20000" in picture.alt
    assert len(named(picture, "out_cache_loc ")) == 3
    assert texts(picture).count("None") >= 9
    assert_readable(picture)


@pytest.mark.parametrize("with_tokens", [False, True])
@pytest.mark.parametrize(
    ("prefix_lens", "new_lens"),
    [
        ([0], [7]),
        ([4, 600, 0], [5, 12, 5]),
        ([0] * 6, [10, 10, 12, 10, 11, 10]),
        ([10] * 12, [30] * 12),
        ([3, 0], [300, 1]),
    ],
)
def test_metadata_of_any_size_stays_readable(prefix_lens: list[int], new_lens: list[int], with_tokens: bool) -> None:
    metadata = make_metadata(prefix_lens, new_lens, page_size=4)
    tokens = [f" word{i}" for i in range(metadata.total_num_tokens)] if with_tokens else None
    assert_readable(viz.input_metadata(metadata, tokens=tokens))


def test_of_many_requests_the_first_eight_are_drawn_and_the_others_counted() -> None:
    picture = viz.input_metadata(make_metadata([10] * 12, [30] * 12))
    assert any("4 more requests" in text for text in texts(picture))
    assert "request 8" not in texts(picture)


def test_tokens_and_labels_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="tokens: 3 texts for total_num_tokens=12; must be as many"):
        viz.input_metadata(worked_example(), tokens=["a", "b", "c"])
    with pytest.raises(ValueError, match="labels: 2 texts for batch_size=1; must be as many"):
        viz.extend_mask(worked_example(), labels=["a", "b"])
    with pytest.raises(ValueError, match="metadata: must be InputMetadata, got NoneType"):
        viz.input_metadata(None)  # type: ignore[arg-type]


# --- extend_mask ----------------------------------------------------------------------------------------------------


def seen(picture: viz.Picture, request: int = 0) -> set[tuple[int, int]]:
    """(query's position, key) of the cells that are filled."""
    names = [
        patch.get_gid().split() for patch in named(picture, f"mask {request} ") if patch.get_gid().endswith("sees")
    ]
    return {(int(position), int(key)) for _, _, position, key, _ in names}


def test_a_new_token_sees_the_prefix_and_the_new_ones_up_to_itself() -> None:
    picture = viz.extend_mask(worked_example(), tokens=["<s>", " ", *"1234512345"])
    assert seen(picture) == {(p, k) for p in range(7, 12) for k in range(p + 1)}
    assert faces(picture, "mask 0 7 6 sees") == [REQUESTS[0].face]
    assert faces(picture, "mask 0 7 7 sees") == [ROLES["new"].face]
    assert faces(picture, "mask 0 7 8 hidden") == [ROLES["hidden"].face]
    assert picture.alt == "EXTEND mask; request 0: 5 queries × 12 keys (7 in the prefix), 50 of 60 pairs seen."
    assert {"queries ↓", "keys →"} <= set(texts(picture))
    assert any(text.endswith("· in a token is a space.") for text in texts(picture))
    assert_readable(picture)


def test_a_mask_s_legend_names_what_occurs() -> None:
    prefix, new, hidden = "sees, in request 0: K/V from earlier passes", "sees; K/V computed in this pass", "hidden"
    legends = {
        (0, 4): {new, hidden},
        (3, 1): {prefix, new},
        (3, 2): {prefix, new, hidden},
    }
    for (prefix_len, new_len), entries in legends.items():
        shown = set(texts(viz.extend_mask(make_metadata([prefix_len], [new_len]))))
        assert shown & {prefix, new, hidden} == entries
        assert "· in a token is a space." not in shown
    windowed = texts(viz.extend_mask(make_metadata([3], [1]), sliding_window=2))
    assert hidden in windowed


def test_a_sliding_window_hides_older_keys() -> None:
    picture = viz.extend_mask(make_metadata([5], [7]), sliding_window=4)
    assert seen(picture) == {(p, k) for p in range(5, 12) for k in range(p - 3, p + 1)}
    assert "sliding window 4" in picture.alt
    assert "28 of 84 pairs seen" in picture.alt


@pytest.mark.parametrize(
    ("prefix_lens", "new_lens", "window"),
    [
        ([4, 600, 0], [5, 12, 5], None),
        ([500, 0], [400, 300], None),
        ([1500], [100], 300),
        ([1999], [1], 7),
        ([0] * 9, [3] * 9, None),
    ],
)
def test_masks_of_any_size_stay_readable(prefix_lens: list[int], new_lens: list[int], window: int | None) -> None:
    picture = viz.extend_mask(make_metadata(prefix_lens, new_lens), sliding_window=window)
    assert_readable(picture)
    pairs = sum(min(p + 1, window or p + 1) for p in range(prefix_lens[0], prefix_lens[0] + new_lens[0]))
    assert f"{pairs:,} of" in picture.alt


def test_a_window_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sliding_window=0: must be an integer, at least 1, or None"):
        viz.extend_mask(worked_example(), sliding_window=0)


# --- radix_tree -----------------------------------------------------------------------------------------------------


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


# --- padded_batch ---------------------------------------------------------------------------------------------------


def test_lengths_are_padded_to_the_longest() -> None:
    picture = viz.padded_batch([5, 17, 9, 30])
    assert picture.alt == "4 rows padded to 30 tokens: 61 of 120 used, 59 padding (49 %)."
    padding = [patch for patch in named(picture, "row ") if to_hex(patch.get_facecolor()) == ROLES["padding"].face]
    assert len(padding) == 59
    assert_readable(picture)
    assert_readable(viz.padded_batch([1200, 3, 0, 400] * 8, labels=[f"a session with number {i}" for i in range(32)]))


def test_sessions_tell_their_bytes() -> None:
    sessions = []
    engine = InferenceEngine("story")
    for prompt in ("Once upon a time there was", "Tom"):
        session = InferenceSession(engine, 4, temperature=0)
        session.prefill(prompt)
        sessions.append(session)
    lens = [session.kv_len for session in sessions]
    used = sum(lens) * engine.kv_bytes_per_token
    assert used == sum(session.kv_bytes for session in sessions)
    picture = viz.padded_batch(sessions)
    assert picture.alt.startswith(
        f"2 rows padded to {max(lens)} tokens: {sum(lens)} of {2 * max(lens)} used = {used / 1024:.1f} KiB"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "sessions_or_lens: must have at least one row"),
        ([3, -1], r"sessions_or_lens\[1\]=-1: must not be negative"),
        ([3, "x"], r"sessions_or_lens\[1\]: must be all InferenceSessions or all integers, got 'x'"),
        ("abc", "sessions_or_lens: must be list, got str"),
    ],
)
def test_other_rows_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.padded_batch(given)


# --- engine ---------------------------------------------------------------------------------------------------------


def test_a_running_engine_shows_slots_rows_tree_and_waiting_requests(engine: Engine) -> None:
    picture = viz.engine(engine)
    stats = engine.stats()
    assert f"{stats.running} running, {stats.waiting} waiting. 128 slots: {stats.free_slots} free" in picture.alt
    assert {f"free: {stats.free_slots}", f"tree, locked: {stats.protected_slots}", "row 0: request 0"} <= set(
        texts(picture)
    )
    assert any(text.startswith("Waiting: request 4 (10 tokens), request 5") for text in texts(picture))
    assert "leaked" not in picture.alt
    assert_readable(picture)


def test_owners_are_the_slots_that_requests_alone_hold(engine: Engine) -> None:
    owners = viz.owners(engine)
    assert list(owners) == [f"request {req.request_id}" for req in engine.scheduler.running]
    assert sum(map(len, owners.values())) == engine.stats().request_slots
    assert "several" not in viz.slot_map(engine.cache.token_to_kv_pool, owners, radix_cache=engine.radix_cache).alt


def test_the_last_pass_can_be_looked_at_with_texts_and_names(engine: Engine) -> None:
    metadata, tokens = viz.last_input_metadata(engine), viz.last_tokens(engine)
    assert metadata.forward_mode is ForwardMode.DECODE
    assert metadata.out_cache_loc.tolist() == engine.last_batch.out_cache_loc.tolist()  # type: ignore[union-attr]
    assert tokens[:4] == ["<s>", "Once", " upon", " a"]
    picture = viz.input_metadata(metadata, tokens=tokens, labels=viz.last_labels(engine))
    assert "request 3" in texts(picture)
    assert_readable(picture)


def test_an_engine_that_has_done_nothing_is_drawn_and_has_no_last_pass() -> None:
    engine = LLM("story", max_total_tokens=64, max_running_requests=2, max_context_len=32).engine
    assert viz.engine(engine).alt.startswith("0 running, 0 waiting. 64 slots: 64 free, 0 tree.")
    with pytest.raises(ValueError, match=r"engine\.last_batch=None: the last step made no pass"):
        viz.last_input_metadata(engine)


def test_an_engine_without_a_radix_cache_is_drawn() -> None:
    engine = LLM(
        "story", max_total_tokens=64, max_running_requests=2, max_context_len=32, disable_radix_cache=True
    ).engine
    engine.add_request("Once upon a time", SamplingParams(max_new_tokens=4, temperature=0))
    engine.step()
    assert "Radix tree: disabled." in viz.engine(engine).alt
    assert "leaked" not in viz.engine(engine).alt


# --- charts ---------------------------------------------------------------------------------------------------------


def test_bars_have_lengths_of_their_values_and_ratios() -> None:
    picture = viz.bars({"one by one": 812.5, "batch": 300, "paged": 150}, unit="ms", compare="paged")
    widths = [patch.get_width() for patch in named(picture, "bar ")]
    assert widths[0] / widths[2] == pytest.approx(812.5 / 150)
    assert picture.alt == "one by one: 812 ms (5.42×), batch: 300 ms (2.00×), paged: 150 ms, ratios to paged."
    assert_readable(picture)


def test_bars_in_groups_have_one_scale_and_a_colour_a_label() -> None:
    values = {"chat": {"no cache": 800, "cache": 200}, "few-shot": {"no cache": 400, "cache": 40}}
    picture = viz.bars(values, unit="tokens")
    bars = named(picture, "bar ")
    assert [bar.get_width() / bars[0].get_width() for bar in bars] == pytest.approx([1, 0.25, 0.5, 0.05])
    faces = [bar.get_facecolor() for bar in bars]
    assert faces[0] == faces[2] != faces[1] == faces[3]
    assert picture.alt.startswith("chat, no cache: 800 tokens, chat, cache: 200 tokens, few-shot, no cache: 400 tokens")
    assert_readable(picture)


def test_a_line_across_the_bars_lies_at_its_value() -> None:
    picture = viz.bars({"fast": 4.0, "as before": 1.0}, unit="times as fast", line_at=1)
    bar = named(picture, "bar as before")[0]
    dashed = [line for line in picture.findobj(Line2D) if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in dashed] == pytest.approx([bar.get_x() + bar.get_width()])
    assert_readable(picture)


def test_axes_are_in_plain_words() -> None:
    series = {"a": ([1, 4000], [0.001, 300])}
    picture = viz.lines(series, x="tokens", y="ms", log=True)
    picture.canvas.draw()
    (axes,) = picture.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "10", "100", "1,000", "10,000"]
    assert axes.get_xlabel() == "tokens  (each grid line: 10 times as much)"
    assert axes.get_ylabel() == "ms\n(each grid line: 10 times as much)"
    near = viz.lines({"a": ([1, 2, 8], [5, 6, 7])}, x="tokens", y="ms", log=True)
    near.canvas.draw()
    assert [label.get_text() for label in near.axes[0].get_xticklabels()] == ["1", "2", "4", "8"]
    assert len(near.axes[0].get_yticks()) >= 2
    assert near.axes[0].get_ylabel().endswith("(each grid line: twice as much)")
    chosen = viz.lines({"a": ([1, 2, 8], [5, 6, 7])}, x="rank", y="ms", log=True, ticks=[1, 8])
    chosen.canvas.draw()
    assert [label.get_text() for label in chosen.axes[0].get_xticklabels()] == ["1", "8"]
    assert chosen.axes[0].get_xlabel() == "rank"
    assert chosen.axes[0].get_ylabel().endswith("(each grid line: twice as much)")


def test_ratios_are_said_as_one_says_them() -> None:
    picture = viz.lines({"a": ([1, 2, 3], [1, 2, 2.5])}, x="page size", y="", times="as long")
    picture.canvas.draw()
    shown = [label.get_text() for label in picture.axes[0].get_yticklabels()]
    assert {"0", "half as long", "just as long", "1.5 times as long", "twice as long"} <= set(shown)
    assert "from just as long at 1 to 2.5 times as long at 3" in picture.alt


def test_lines_go_through_their_points() -> None:
    series = {"without cache": ([16, 32, 64], [1, 4, 17]), "with cache": ([16, 32, 64], [1, 2, 4])}
    picture = viz.lines(series, x="tokens", y="ms", title="Time", log=True)
    (axes,) = picture.axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[1, 4, 17], [1, 2, 4]]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert picture.alt.startswith("ms over tokens: without cache, 3 points, from 1 at 16 to 17 at 64; with cache")


@pytest.mark.parametrize(
    ("values", "compare", "message"),
    [
        ({}, None, "values: must have at least one"),
        ({"a": -1}, None, r"values\['a'\]=-1.0: must be finite and not negative"),
        ({"a": 1}, "b", "compare='b': must be one of a, with a value above 0"),
        ({"a": {"b": 1}}, "a, b", "compare='a, b'"),
        ({"a": {"b": 1}, "c": 2}, None, "values: some are groups and some numbers; must be either"),
        ({"a": {}}, None, "values: must have at least one"),
    ],
)
def test_bars_of_nonsense_are_refused(values: Any, compare: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.bars(values, unit="ms", compare=compare)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ({}, "series: must have at least one"),
        ({"a": ([1, 2], [1])}, r"series\['a'\]: 2 xs and 1 ys; must be as many, at least 1"),
        ({"a": ([0, 2], [1, 1])}, r"series\['a'\]: 0: with log, numbers must be above 0"),
    ],
)
def test_lines_of_nonsense_are_refused(series: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.lines(series, x="x", y="y", log=True)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: viz.slot_map(3), "token_to_kv_pool: must be TokenToKVPool, got int"),
        (lambda: viz.slot_map(make_pool(4), {"a": [4]}), r"owners\['a'\]: slot 4 is outside 0..3"),
        (lambda: viz.slot_map(make_pool(4), highlight=[-1]), "highlight: slot -1 is outside 0..3"),
        (lambda: viz.slot_map(make_pool(4), [1]), "owners: must be Mapping, got list"),
        (lambda: viz.request_rows(3, {}), "req_to_token_pool: must be ReqToTokenPool, got int"),
        (lambda: viz.radix_tree(3), "radix_cache: must be RadixCache, got int"),
        (lambda: viz.engine(3), "engine: must be Engine, got int"),
        (lambda: viz.owners(3), "engine: must be Engine, got int"),
        (lambda: viz.lines({"a": ([1], [1])}, x="x", y="y", times=2), "times: must be str, got int"),
        (
            lambda: viz.allocator_marks(3),
            "allocator: must be SlotAllocator or TokenToKVPool or ReqToTokenPool, got int",
        ),
    ],
)
def test_wrong_things_are_refused_by_name(draw: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
