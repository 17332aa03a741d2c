"""`viz.input_metadata`: the fields of a pass and the slots it reads and writes."""

from typing import Any

import pytest

pytest.importorskip("matplotlib")


from nanoinfer import viz
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.viz.palette import REQUESTS, ROLES
from tests.helpers.pictures import (
    assert_readable,
    faces,
    make_metadata,
    named,
    texts,
    worked_example,
)

NO_FACT = "model_runner"  # says whose pass it is, and nothing about the pass
PUBLIC_FIELDS = [name for name in InputMetadata.__dataclass_fields__ if name != NO_FACT]


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


@pytest.mark.slow
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
