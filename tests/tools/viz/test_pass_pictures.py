"""Pictures of an engine and of a pass show what was computed, where it was written, and what it sees."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.colors import to_hex

from nanoinfer import LLM, SamplingParams, viz
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.outputs import FinishReason
from nanoinfer.requests.req import Req
from nanoinfer.sessions.inference import InferenceEngine, InferenceSession
from nanoinfer.speculative.scheduler import SpeculativeScheduler
from nanoinfer.viz.palette import BARS, REQUESTS, ROLES, owner_style, request_style
from nanoinfer.viz.passes import KINDS
from tests.helpers.adapters import save_adapter
from tests.helpers.engines import greedy, make_engine
from tests.helpers.pictures import faces, make_metadata, named, texts, worked_example

NEW, HIDDEN, LEFTOVER, LOCKED = (ROLES[role].face for role in ("new", "hidden", "leftover", "tree_locked"))

# --- engines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4])
def test_an_engine_is_drawn_with_slots_rows_tree_and_what_waits_and_stays_as_it_was(page_size: int) -> None:
    engine = make_engine(rows=3, slots=32, chunked_prefill_size=5, schedule_conservativeness=0.1, page_size=page_size)
    for i in range(4):
        engine.add_request([97, 98, 99, 100, 101 + i, 5, 6], greedy(12))
    while not engine.stats().retractions:
        engine.step()

    def everything() -> Any:
        nodes = [(n.key.tolist(), n.lock_ref, n.last_access_time, n.hit_count) for _, n in engine.radix_cache.nodes()]
        reqs = [{k: str(v) for k, v in vars(req).items()} for req in engine.scheduler.running]
        return nodes, reqs, engine.stats(), engine.cache.rows.tolist()

    before, stats = everything(), engine.stats()
    picture = viz.engine(engine)
    assert f"{stats.running} running, {stats.waiting} waiting. 32 slots: {stats.free_slots} free" in picture.alt
    assert "leaked" not in picture.alt
    assert list(viz.owners(engine)) == [f"request {req.request_id}" for req in engine.scheduler.running]
    assert sum(map(len, viz.owners(engine).values())) == stats.request_slots
    assert "retracted" in picture.alt
    metadata = viz.last_input_metadata(engine)
    viz.input_metadata(metadata, tokens=viz.last_tokens(engine), labels=viz.last_labels(engine))
    viz.extend_mask(metadata)
    assert everything() == before


def test_completions_keep_their_names_when_another_one_has_ended() -> None:
    engine = make_engine(rows=3)
    engine.add_request([97, 98, 99], SamplingParams(max_new_tokens=30, n=3, temperature=1.0))
    engine.step()
    names = ["request 0", "request 0 (2)", "request 0 (3)"]
    assert list(viz.owners(engine)) == names
    engine.scheduler.end(engine.open_requests.groups[0].reqs[:1], FinishReason.ABORT)
    assert list(viz.owners(engine)) == names[1:]
    assert len({owner_style(name, 0) for name in names}) == 3


# --- the metadata of a pass ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ForwardMode)
def test_every_field_of_the_metadata_can_be_drawn(mode: ForwardMode) -> None:
    metadata = make_metadata([4, 6, 2], [5, 2, 3] if mode is not ForwardMode.DECODE else [1, 1, 1], mode)
    shown = " ".join(texts(viz.input_metadata(metadata, fields="all")))
    fields = set(InputMetadata.__dataclass_fields__) - {"model_runner"}
    assert all(field in shown for field in fields)
    assert fields & set(texts(viz.input_metadata(metadata, fields=["kv_indices", "max_seq_len"]))) == {
        "kv_indices",
        "max_seq_len",
    }


def test_the_worked_example_shows_its_numbers() -> None:
    picture = viz.input_metadata(worked_example(), tokens=["<s>", " ", *"1234512345"], fields="all")
    assert "prefix_lens=[7]; positions=[7, 8, 9, 10, 11]; out_cache_loc=[16, 17, 18, 19, 20]" in picture.alt
    looks = [face for i in range(12) for face in faces(picture, f"kv_indices 0 {i}")]
    assert looks == 7 * [REQUESTS[0].face] + 5 * [NEW]
    mask = viz.extend_mask(worked_example())
    cells = {(p, k): name for p in range(7, 12) for k in range(12) for name in seen(mask, p, k)}
    assert {cell for cell, (_, is_seen) in cells.items() if is_seen} == {(p, k) for p, k in cells if k <= p}
    assert {face for face, is_seen in cells.values() if not is_seen} == {HIDDEN}
    assert [cells[9, k][0] for k in (6, 7)] == [REQUESTS[0].face, NEW]


def seen(mask: viz.Picture, position: int, key: int) -> list[tuple[str, bool]]:
    """The look of a cell, and whether it says that the key is seen."""
    name = f"mask 0 {position} {key}"
    return [(face, word == "sees") for word in ("sees", "hidden") for face in faces(mask, f"{name} {word}")]


def test_a_slot_that_several_requests_read_looks_the_same_in_each_of_them() -> None:
    metadata = make_metadata([4, 4], [2, 1])
    metadata.kv_indices[6:8] = metadata.kv_indices[:2]
    picture = viz.input_metadata(metadata)
    for request in (0, 1):
        assert faces(picture, f"kv_indices {request} 1") == [REQUESTS[0].face]
        assert faces(picture, f"kv_indices {request} 1 and 1") == [REQUESTS[1].face]
    assert faces(picture, "kv_indices 1 2") == [REQUESTS[1].face]


def test_a_sliding_window_hides_older_keys() -> None:
    picture = viz.extend_mask(make_metadata([5], [7]), sliding_window=4)
    shown = {(p, k) for p in range(5, 12) for k in range(12) if any(yes for _, yes in seen(picture, p, k))}
    assert shown == {(p, k) for p in range(5, 12) for k in range(p - 3, p + 1)}


def test_the_last_pass_shows_its_drafts_even_those_that_were_wrong() -> None:
    engine = make_engine(drafter="ngram", adaptive_drafts=False)
    engine.add_request("abcdeab", greedy(9))
    engine.step()
    engine.step()
    assert "".join(viz.last_tokens(engine)) == "abcdeabcdea"
    metadata = viz.last_input_metadata(engine)
    assert (metadata.forward_mode, metadata.positions.tolist()) == (ForwardMode.VERIFY, [7, 8, 9, 10])
    picture = viz.input_metadata(metadata, tokens=viz.last_tokens(engine), labels=viz.last_labels(engine))
    assert "out_cache_loc=[7, 8, 9, 10]" in picture.alt


def test_wrong_cells_of_a_mask_are_counted() -> None:
    def causal(prefix: int, total: int) -> torch.Tensor:
        return torch.arange(total) <= torch.arange(prefix, total)[:, None]

    mask = causal(2, 5)
    mask[0, 4], mask[1, 0], mask[2, 0] = True, False, False
    siblings = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]).bool()
    cases: list[tuple[torch.Tensor, dict[str, Any], list[str]]] = [
        (causal(6, 10), {"prefix_len": 6}, []),
        (mask, {"prefix_len": 2}, ["1 seen too much", "2 seen too little"]),
        (causal(2, 5), {"prefix_len": 2, "sliding_window": 2}, ["6 seen too much"]),
        (siblings, {"prefix_len": 1, "wanted": siblings}, []),
        (siblings, {"prefix_len": 1}, ["1 seen too little"]),
    ]
    for given, options, wrong in cases:
        alt = viz.attention_mask(given, **options).alt
        assert ("as it should be" in alt) == (not wrong)
        assert all(words in alt for words in wrong)


# --- drafts ----------------------------------------------------------------------------------------------------------


class FixedDrafts:
    """A drafter that proposes given tokens, by request."""

    def __init__(self, drafts: dict[int, list[int]]):
        self.drafts = drafts

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        return [self.drafts.get(req.request_id, [])[:n] for req, n in zip(reqs, most, strict=True)]


def test_a_verify_shows_what_each_row_reads_and_which_drafts_were_right() -> None:
    params = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
    prompts = ([5, 6, 7, 8, 9], [20, 21, 22])
    llm = LLM("story", max_total_tokens=256, drafter="ngram", num_draft_tokens=6, adaptive_drafts=False)
    expected = LLM("story", max_total_tokens=256).generate(prompts[0], params)[0].token_ids
    scheduler = llm.engine.scheduler
    assert isinstance(scheduler, SpeculativeScheduler)
    scheduler.drafters = [
        FixedDrafts({0: [*expected[1:3], *[expected[3] + 1] * 2]})
    ]  # two that are right, and two others
    for prompt in prompts:
        llm.engine.add_request(prompt, params)
    llm.engine.step()
    llm.engine.step()
    picture = viz.verify_rows(llm.engine)
    batch = llm.engine.last_batch
    assert batch is not None
    assert {str(slot) for slot in batch.out_cache_loc.tolist()} <= set(texts(picture))
    assert "request 0 has 4 drafts, 2 accepted, gets 3 tokens, kv_len 8" in picture.alt
    own = request_style(0).face
    assert [faces(picture, f"token {position}")[0] for position in (5, 7, 8)] == [own, own, LEFTOVER]
    assert [faces(picture, f"slot {position}")[0] for position in range(2, 10)] == [LOCKED] * 3 + [NEW] * 5
    for row in range(5):
        reads = [face for position in range(2, 12) for face in faces(picture, f"row {row} {position}")]
        assert reads == [*[ROLES["in_use"].face] * (3 + row), NEW], "nothing behind its own token"


def test_each_token_of_a_drafted_text_has_the_look_of_where_it_comes_from() -> None:
    passes = [([], [5]), ([6, 7], [6, 7, 8]), ([9, 9, 9], [9, 10]), ([1], [11]), ([12, 13], [12])]
    picture = viz.drafted_text(passes)
    kinds = [["none"], ["accepted", "accepted", "last"], ["accepted", "instead"], ["instead"], ["accepted"]]
    for i, of_pass in enumerate(kinds):
        looks = [faces(picture, f"pass {i} token {j}") for j in range(len(of_pass))]
        assert looks == [[KINDS[kind][0].face] for kind in of_pass]
    assert "13" not in texts(picture), "a draft that came after the end is no token"


# --- adapters --------------------------------------------------------------------------------------------------------


def test_rows_of_adapters_are_in_tiles_and_what_is_added_is_coloured(tmp_path: Path) -> None:
    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    llm = LLM("story", max_total_tokens=256)
    network = llm.model.model
    llm.load_adapter("small", save_adapter(tmp_path / "small", network, 1, 2, ["q_proj", "v_proj"]))
    llm.load_adapter("large", save_adapter(tmp_path / "large", network, 2, 8))
    for name in ("small", "large"):
        llm.generate([5, 6], params, adapter=name)
    llm.engine.flush_cache()
    for i, (length, adapter) in enumerate([(1, "large"), (1, None), (8, "small"), (1, "large")]):
        llm.engine.add_request([9 + i] * length, params, adapter=adapter)
    llm.engine.step()
    picture = viz.adapter_rows(llm.engine, "model.layers.0.self_attn.qkv_proj")
    assert [len(named(picture, f"tile {tile} row")) for tile in range(3)] == [6, 2, 2]
    assert faces(picture, "tile 0 row 2") == faces(picture, "row 2") == [BARS[0].face]
    assert faces(picture, "tile 2 row 0") == faces(picture, "row 0") == [BARS[1].face]
    sizes = [text for text in texts(picture) if text.startswith(("q: A 2 ×", "v: A 2 ×"))]
    assert len(sizes) == 2 * 2, "small's, of q and v, in two tiles"
    assert faces(picture, "output 2 q") == faces(picture, "output 2 v") == [BARS[0].face]
    assert not named(picture, "output 2 k") + named(picture, "output 1 ")
    assert "adds nothing to this layer" in texts(viz.adapter_rows(llm.engine, "model.layers.1.mlp.down_proj"))


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_padded_batch_counts_what_is_used_and_sessions_tell_their_bytes() -> None:
    engine = InferenceEngine("story")
    sessions = [InferenceSession(engine, 4, temperature=0) for _ in range(2)]
    for session, prompt in zip(sessions, ("Once upon a time there was", "Tom"), strict=True):
        session.prefill(prompt)
    lens = [session.kv_len for session in sessions]
    picture = viz.padded_batch(sessions)
    looks = [to_hex(cell.get_facecolor()) for cell in named(picture, "row ")]
    assert looks.count(ROLES["padding"].face) == 2 * max(lens) - sum(lens)
    assert f"{sum(session.kv_bytes for session in sessions) / 1024:.1f} KiB" in picture.alt
    assert "61 of 120" in viz.padded_batch([5, 17, 9, 30]).alt


def test_passes_of_sessions_have_a_cell_where_a_request_had_a_row() -> None:
    picture = viz.session_steps([{0: 5}, {0: 6, 1: 9}, {1: 9}], max_rows=2)
    assert {str(cell.get_gid()) for cell in named(picture, "request ")} == {
        *("request 0 pass 1", "request 0 pass 2", "request 1 pass 2", "request 1 pass 3"),
    }
    heights = [named(picture, name)[0].get_height() for name in ("rows pass 1", "rows pass 2", "unused pass 1")]
    assert heights == pytest.approx([heights[0], 2 * heights[0], heights[0]])
