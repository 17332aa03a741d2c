"""One colour means one thing: every colour of every picture is in the palette's table, with words of that meaning."""

import colorsys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from nanoinfer import LLM, SamplingParams, viz
from nanoinfer.cache.block_events import block_hashes
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.cache.slot_allocator import SlotAllocator
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.trace import Trace
from nanoinfer.trace.final import final_state
from nanoinfer.viz.palette import MEANINGS, NEUTRAL, PHASE_STYLES, REQUESTS, ROLES, Style, styles
from notebooks.course.regular_expression import Machine
from notebooks.course.replicas import ReplicaPass
from notebooks.course.states_picture import states_picture
from tests.helpers.pictures import insert, make_metadata, make_pool, make_tree, named, take
from tests.tools.trace.test_fetches import from_files

LEGEND = "legend "
EXAMPLE = Path(__file__).parents[3] / "data" / "trace" / "example.json"
FACES = {style.face: name for name, style in styles().items()}
TREE = {ROLES["tree"].face, ROLES["tree_locked"].face}
BLUE = REQUESTS[0].face
WITHOUT_A_TREE = (
    "rows",
    "shared slots",
    "metadata",
    "mask",
    "given mask",
    "decoder",
    "bars",
    "groups",
    "kernels",
    "padding",
    "marks",
    "states",
    "wire",
    "lanes",
    "split",
    "block rows",
)
WITHOUT_REQUEST_0 = (
    "decoder",
    "bars",
    "groups",
    "kernels",
    "timeline",
    "attention",
    "wrong mask",
    "tree",
    "other requests",
    "states",
    "wire",
    "lanes",
    "split",
    "replicas",
    "blocks",
    "storeys",
    "fetched, timeline",
)


def rows_picture() -> viz.Picture:
    pool = ReqToTokenPool(4, 24)
    pool.req_to_token[0, :9] = torch.arange(9)
    pool.req_to_token[1, :6] = torch.tensor([0, 1, 2, 9, 10, 11])
    return viz.request_rows(pool, {0: 9, 1: 5}, allocated_lens={1: 6})


def block_rows_picture() -> viz.Picture:
    pool, rows = make_pool(32, page_size=4), ReqToTokenPool(2, 16)
    take(pool, 12)
    rows.req_to_token[0, :6] = torch.tensor([8, 9, 10, 11, 0, 1])
    return viz.block_rows(rows, pool, 0, 6, new=1)


def tree_picture() -> viz.Picture:
    tree = make_tree()
    insert(tree, range(1, 17))
    match = tree.match_prefix(range(1, 8))  # type: ignore[arg-type]
    tree.inc_lock_ref(match.last_node)
    return viz.radix_tree(tree, highlight=match)


def slots_pictures() -> dict[str, viz.Picture]:
    pool = make_pool(32)
    take(pool, 20)
    owners = {f"request {i}": [i] for i in range(1, 8)} | {"set aside": [9, 10]}
    return {
        "slots": viz.slot_map(pool, {"request 0": [0, 1, 30], "request 1": [0]}, highlight=[4]),
        "shared slots": viz.slot_map(pool, {"row 0": [0, 1], "row 1": [0, 2]}, shared=True),
        "other requests": viz.slot_map(pool, owners),
        "unknown owners": viz.slot_map(pool),
    }


@pytest.fixture(scope="module")
def pictures() -> dict[str, viz.Picture]:
    """One of each kind."""
    llm = LLM("story", max_total_tokens=64, max_running_requests=2, max_context_len=32)
    engine, tokenizer = llm.engine, llm.tokenizer
    assert tokenizer is not None
    for end in ("fox", "bear"):
        params = SamplingParams(max_new_tokens=4, temperature=0)
        engine.add_request(f"Once upon a time, there was a little {end}", params)
    engine.step()
    trace = Trace.load(EXAMPLE)
    allocator = SlotAllocator(32)
    allocator.alloc(5)
    causal = torch.arange(6) <= torch.arange(2, 6)[:, None]
    stored = LLM("story", max_total_tokens=64, max_context_len=64, host_cache_tokens=32)
    for start in (100, 200):
        stored.generate(list(range(start, start + 40)), SamplingParams(max_new_tokens=1, temperature=0), use_tqdm=False)
    fetched, _, _ = from_files()
    return slots_pictures() | {
        "rows": rows_picture(),
        "tree": tree_picture(),
        "metadata": viz.input_metadata(make_metadata([4, 0], [2, 3]), fields="all"),
        "decode": viz.input_metadata(make_metadata([4, 7], [1, 1], ForwardMode.DECODE), tokens=["a"] * 13),
        "block rows": block_rows_picture(),
        "mask": viz.extend_mask(make_metadata([4, 0, 2, 2], [2, 3, 1, 1])),
        "long mask": viz.extend_mask(make_metadata([500], [300])),
        "given mask": viz.attention_mask(causal, prefix_len=2),
        "wrong mask": viz.attention_mask(torch.arange(4) > torch.arange(4)[:, None], prefix_len=0),
        "decoder": viz.decoder(ModelConfig.from_pretrained(resolve_model_path("story"))),
        "bars": viz.bars({"a": 1, "b": 2}, unit="ms", compare="a"),
        "groups": viz.bars({"x": {"a": 1, "b": 2}, "y": {"a": 1, "c": 2, "d": 2}}, unit="ms"),
        "padding": viz.padded_batch([3, 5]),
        "sessions": viz.session_steps([{0: 1, 1: 2}, {1: 3}], max_rows=3),
        "engine": viz.engine(engine),
        "timeline": viz.timeline(trace, occupancy=True, highlight=3),
        "final state": final_state(trace),
        "fetched, timeline": viz.timeline(fetched, occupancy=True),
        "fetched, final state": final_state(fetched),
        "map": viz.engine_map("scheduler"),
        "marks": viz.allocator_marks(allocator, 3),
        "states": states_picture(Machine("(a|b)*abb"), ["ab", "ac"]),
        "kernels": viz.kernel_times({"a pass": ([("linear", "lm_head", 0.1, 0.8), ("attention", "", 0.8, 0.9)], 1.0)}),
        "wire": viz.wire([("head", b"GET /"), ("end", b"\r\n")]),
        "lanes": viz.lanes([("a", "waiting", 0, 1), ("a", "served", 1, 2), ("b", "served", 0, 1)], unit="ms"),
        "storeys": viz.storeys(stored.engine.cache, {"a": range(100, 140), "b": range(200, 240)}),
        "replicas": viz.replicas({"A": [ReplicaPass(0, 1, 30, 10, 1, 2)]}),
        "blocks": viz.hashed_blocks({"a": range(9), "b": range(8)}, 4, tokenizer, held=block_hashes(range(4), 4)),
        "split": viz.split_product([1, 2], [[1, 2, 3, 4]] * 2, [[1, 2]] * 4, 4),
        "split layer": viz.split_layer(ModelConfig.from_pretrained(resolve_model_path("story")), 4),
        "attention": viz.attention_steps([1, 0], [[1, 0], [0, 1]], [[1, 0], [0, 1]], newest=True),
    }  # fmt: skip


def colours(picture: viz.Picture) -> Iterator[tuple[str, str]]:
    """Name and colour of every filled shape."""
    for patch in picture.findobj(Rectangle):
        if patch.get_fill() and patch is not picture.patch and patch is not picture.axes[0].patch:
            yield str(patch.get_gid() or ""), to_hex(patch.get_facecolor())


def test_every_role_has_a_look_and_a_meaning_and_no_two_share_one() -> None:
    assert set(styles()) == set(MEANINGS)
    for (a, one), (b, other) in combinations(styles().items(), 2):
        assert (one.face, one.hatch) != (other.face, other.hatch), (a, b)
    assert set(PHASE_STYLES.values()) <= set(styles().values())
    words = [meaning.words for name, meaning in MEANINGS.items() if not name.startswith("chart")]
    assert len(set(words)) == len(words)


@pytest.mark.slow
def test_every_colour_of_every_picture_is_in_the_table(pictures: dict[str, viz.Picture]) -> None:
    unknown = {
        (kind, name, face)
        for kind, picture in pictures.items()
        for name, face in colours(picture)
        if face not in FACES and face not in NEUTRAL
    }
    assert not unknown


def test_every_legend_says_what_the_table_says(pictures: dict[str, viz.Picture]) -> None:
    entries = [
        (kind, patch.get_gid().removeprefix(LEGEND), to_hex(patch.get_facecolor()))
        for kind, picture in pictures.items()
        for patch in named(picture, LEGEND)
    ]
    assert len(entries) > 60
    wrong = []
    for kind, label, face in entries:
        meanings = [MEANINGS[name] for name, style in styles().items() if style.face == face]
        if not any(word in label for meaning in meanings for word in meaning.said):
            wrong.append((kind, label, FACES.get(face)))
    assert not wrong


def test_green_is_the_trees_and_nothing_elses(pictures: dict[str, viz.Picture]) -> None:
    for kind in WITHOUT_A_TREE:
        assert TREE.isdisjoint(face for _, face in colours(pictures[kind])), kind
    assert TREE & {face for _, face in colours(pictures["engine"])}


def test_blue_is_request_0_and_nothing_else(pictures: dict[str, viz.Picture]) -> None:
    for kind in WITHOUT_REQUEST_0:
        assert BLUE not in {face for _, face in colours(pictures[kind])}, kind
    assert BLUE in {face for _, face in colours(pictures["rows"])}


def test_no_other_role_is_blue() -> None:
    """By hue: from cyan to the blue side of violet."""

    def hue(style: Style) -> float:
        red, green, blue = (int(style.face[i : i + 2], 16) / 255 for i in (1, 3, 5))
        angle, strength, _ = colorsys.rgb_to_hsv(red, green, blue)
        return 360 * angle if strength > 0.2 else -1

    assert [name for name, style in styles().items() if 180 <= hue(style) <= 250] == ["request 0"]


def test_orange_is_computed_in_this_pass(pictures: dict[str, viz.Picture]) -> None:
    orange = ROLES["new"].face
    where = {
        kind: {name.split()[0] for name, face in colours(picture) if face == orange}
        for kind, picture in pictures.items()
    }
    assert {kind for kind, names in where.items() if names} == {
        "metadata", "decode", "mask", "long mask", "given mask", "decoder", "timeline", "final state", "attention",
        "replicas", "block rows", "fetched, timeline", "fetched, final state",
    }  # fmt: skip
    assert where["metadata"] <= {"legend", "out_cache_loc", "kv_indices"}
    assert where["timeline"] <= {"legend", "extend", "pass"}
