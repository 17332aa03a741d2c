"""Pictures of an engine and of a pass show what was computed, where it was written, and what it sees."""

from typing import Any

import pytest
import torch

from nanoinfer import viz
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.viz.palette import REQUESTS, ROLES
from tests.helpers.engines import greedy, make_engine
from tests.helpers.pictures import faces, make_metadata, texts, worked_example

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
