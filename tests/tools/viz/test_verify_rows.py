"""The picture of a VERIFY pass: slots of drafts, what each row reads, what was sampled, and which drafts were right."""

from collections.abc import Sequence

import pytest

pytest.importorskip("matplotlib")

from nanoinfer import LLM, SamplingParams, viz
from nanoinfer.drafting.scheduler import DraftingScheduler
from nanoinfer.requests.req import Req
from nanoinfer.viz.palette import ROLES, request_style
from tests.helpers.pictures import assert_readable, faces, named, texts

PROMPTS = ([5, 6, 7, 8, 9], [20, 21, 22])
PARAMS = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)


class Told:
    """A drafter that proposes what it is told, by request."""

    def __init__(self, drafts: dict[int, list[int]]):
        self.drafts = drafts

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        return [self.drafts.get(req.request_id, [])[:n] for req, n in zip(reqs, most, strict=True)]


def verified(right: int, wrong: int, num_drafts: int = 6) -> LLM:
    """After a VERIFY pass: request 0 has `right` drafts that are right and then `wrong` others, request 1 has none."""
    llm = LLM("story", max_total_tokens=256, drafter="ngram", num_draft_tokens=num_drafts, adaptive_drafts=False)
    expected = LLM("story", max_total_tokens=256).generate(PROMPTS[0], PARAMS)[0].token_ids
    scheduler = llm.engine.scheduler
    assert isinstance(scheduler, DraftingScheduler)
    scheduler.drafters = [Told({0: [*expected[1 : 1 + right], *[expected[1 + right] + 1] * wrong]})]
    for prompt in PROMPTS:
        llm.engine.add_request(prompt, PARAMS)
    llm.engine.step()
    llm.engine.step()
    return llm


def test_right_drafts_are_kept_and_wrong_ones_are_not_in_use() -> None:
    llm = verified(2, 2)
    picture = viz.verify_rows(llm.engine)
    batch = llm.engine.last_batch
    assert batch is not None
    slots = batch.out_cache_loc.tolist()
    assert {"request 0: 2 of 4 drafts accepted", "request 1: no draft", "kv_len = 8", "kv_len = 4"} <= set(
        texts(picture)
    )
    assert {str(slot) for slot in slots} <= set(texts(picture))
    assert [faces(picture, f"token {position}")[0] for position in (5, 7, 8)] == [
        request_style(0).face,
        request_style(0).face,
        ROLES["leftover"].face,
    ]
    assert [faces(picture, f"slot {position}")[0] for position in range(2, 10)] == [
        *[ROLES["tree_locked"].face] * 3,
        *[ROLES["new"].face] * 5,
    ]
    said = [text for text in texts(picture) if text.startswith("gives")]
    assert said[0].endswith("= draft 1")
    assert said[1].endswith("= draft 2")
    assert said[2].endswith(": draft 3 is wrong")
    assert texts(picture).count("doesn't count") == 2
    assert picture.alt == (
        "A VERIFY pass of 6 rows: request 0 has 4 drafts, 2 accepted, gets 3 tokens, kv_len 8; "
        "request 1 has 0 drafts, 0 accepted, gets 1 token, kv_len 4."
    )
    assert_readable(picture)


def test_each_row_reads_the_drafts_before_it_and_none_behind() -> None:
    picture = viz.verify_rows(verified(1, 1).engine)
    read, computed = (ROLES[role].face for role in ("in_use", "new"))
    looks = [[face for position in range(2, 8) for face in faces(picture, f"row {row} {position}")] for row in range(3)]
    assert looks == [[*[read] * (3 + row), computed] for row in range(3)], "nothing is drawn behind a row's own token"
    assert len(named(picture, "row 3")) == 3 + 1, "request 1: two tokens of its prompt before its newest, no draft"


def test_without_a_wrong_draft_nothing_is_out_of_use() -> None:
    picture = viz.verify_rows(verified(3, 0).engine, title="T", caption="C.")
    assert {"T", "C.", "request 0: 3 of 3 drafts accepted"} <= set(texts(picture))
    assert not named(picture, "legend a wrong draft")
    assert_readable(picture)


def test_what_is_no_verify_or_too_large_is_refused() -> None:
    llm = verified(0, 0)
    with pytest.raises(ValueError, match="its last pass is no VERIFY"):
        viz.verify_rows(llm.engine)
    with pytest.raises(ValueError, match="request 0 has 7 drafts; at most 6 can be drawn"):
        viz.verify_rows(verified(7, 0, 8).engine)
    with pytest.raises(ValueError, match="its last pass has 63 rows; at most 24 can be drawn"):
        viz.verify_rows(verified_with_many_rows().engine)


def verified_with_many_rows() -> LLM:
    llm = LLM("story", max_total_tokens=512, drafter="ngram", num_draft_tokens=6, adaptive_drafts=False)
    scheduler = llm.engine.scheduler
    assert isinstance(scheduler, DraftingScheduler)
    scheduler.drafters = [Told({i: [3] * 8 for i in range(9)})]
    for prompt in range(9):
        llm.engine.add_request([10 + prompt, 11], PARAMS)
    llm.engine.step()
    llm.engine.step()
    return llm
