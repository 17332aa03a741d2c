"""DraftingScheduler: slots and ends with drafts, on a model that counts, so that right drafts are known."""

from collections.abc import Sequence
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.registry import DRAFTERS
from nanoinfer.requests.req import Req
from nanoinfer.requests.request_group import PieceReader
from tests.helpers.engines import assert_all_free, finish, greedy, serve, step
from tests.helpers.foreseeing import WRONG, Foreseeing, engine_of, mode_of

# --- passes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", range(5))
def test_a_pass_gives_the_drafts_that_are_right_and_one_token_more(drafter: Foreseeing, right: int) -> None:
    drafter.right = right
    engine = engine_of(num_draft_tokens=4)
    engine.add_request([1, 2, 3], greedy(30))
    counts, before = [], 0
    while engine.has_unfinished():
        (output,) = step(engine).values()
        counts.append(len(output.token_ids) - before)
        before = len(output.token_ids)
    assert output.token_ids == list(range(4, 34))
    assert counts[0] == 1, "the prompt's pass"
    assert counts[1:-1] == [right + 1] * len(counts[1:-1])
    assert sum(counts) == 30
    assert_all_free(engine)


def test_wrong_drafts_leave_the_tree_as_it_would_be_without(drafter: Foreseeing) -> None:
    drafter.right = 1
    for page_size in (1, 4):
        trees = []
        for options in ({}, {"drafter": None}):
            engine = engine_of(page_size=page_size, **options)
            serve(engine, [1, 2, 3], [1, 2, 3, 9], [60, 61], max_new_tokens=11)
            trees.append(sorted((str(node.edge), node.key.tolist()) for _, node in engine.radix_cache.nodes()))
        assert trees[0] == trees[1]
        assert trees[0]


def test_requests_with_different_numbers_of_drafts_and_none_share_a_pass(drafter: Foreseeing) -> None:
    engine = engine_of(num_draft_tokens=5)
    plain = SamplingParams(max_new_tokens=20, temperature=0, logits_processors=(lambda ids, scores: scores,))
    for prompt, params in (([1], greedy(20)), ([30], greedy(4)), ([50], plain), ([70], greedy(2))):
        engine.add_request(prompt, params)
    step(engine)
    before = engine.scheduler.output_tokens
    outputs = step(engine)
    assert engine.last_batch is not None
    assert mode_of(engine) is ForwardMode.VERIFY
    assert engine.last_batch.new_lens.tolist() == [6, 3, 1, 1]
    assert [len(engine.last_batch.input_ids), len(engine.last_batch.choosing)] == [11, 11]
    assert [len(outputs[i].token_ids) for i in range(4)] == [7, 4, 2, 2]
    assert [outputs[i].finished for i in range(4)] == [False, True, False, True]
    assert engine.scheduler.output_tokens - before == 6 + 3 + 1 + 1
    last = finish(engine)
    assert last[0].token_ids == list(range(2, 22))
    assert last[2].token_ids == list(range(51, 71))


def test_where_nobody_has_an_idea_the_pass_is_a_decode(drafter: Foreseeing) -> None:
    class Nothing:
        def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
            return [[] for _ in reqs]

    DRAFTERS["foreseeing"] = lambda _: Nothing()  # the fixture puts the registry back
    engine = engine_of()
    engine.add_request([1], greedy(4))
    step(engine)
    while engine.has_unfinished():
        (output,) = step(engine).values()
        assert mode_of(engine) is ForwardMode.DECODE
    assert (output.token_ids, output.drafted_tokens) == ([2, 3, 4, 5], 0)


def test_the_next_drafter_is_asked_for_those_whose_first_has_no_idea(
    drafter: Foreseeing, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OddOnly:
        asked: list[int] = []  # noqa: RUF012

        def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
            self.asked += [req.request_id for req in reqs]
            return [[WRONG] if req.request_id % 2 else [] for req in reqs]

    monkeypatch.setitem(DRAFTERS, "odd", lambda _: OddOnly())
    engine = engine_of(drafter=("odd", "foreseeing"))
    outputs = serve(engine, [1], [30], [60], max_new_tokens=9)
    assert OddOnly.asked[:3] == [0, 1, 2]
    assert all(1 not in ids for ids, _ in drafter.asked)
    assert drafter.asked[0] == ([0, 2], [3, 3])
    assert [output.accepted_tokens for output in outputs] == [6, 0, 6]
    assert [output.token_ids for output in outputs] == [list(range(n, n + 9)) for n in (2, 31, 61)]


# --- slots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4])
def test_drafts_take_no_slots_that_others_need_in_the_pass(drafter: Foreseeing, page_size: int) -> None:
    """Three requests of 12 slots in a pool of 36: each can finish, and there is never room for all drafts."""
    engine = engine_of(
        slots=36, page_size=page_size, num_draft_tokens=8, schedule_conservativeness=1e-3, disable_radix_cache=True
    )
    drafter.right = 2
    outputs = serve(engine, [1, 2, 3, 4], [40, 41, 42, 43], [80, 81, 82, 83], max_new_tokens=9)
    assert [output.token_ids for output in outputs] == [list(range(n, n + 9)) for n in (5, 44, 84)]
    assert engine.stats().retractions == 0
    assert engine.stats().accepted_tokens > 0
    assert_all_free(engine)


def test_with_no_slot_left_over_there_are_fewer_drafts_and_then_none(drafter: Foreseeing) -> None:
    engine = engine_of(slots=24, num_draft_tokens=8, disable_radix_cache=True, schedule_conservativeness=1e-3)
    for start in (1, 40, 80):
        engine.add_request([start, start + 1], greedy(20))
    drafter.right = 0
    step(engine)
    step(engine)  # 6 of 24 slots are filled, 3 are needed for the newest tokens: 15 are left over
    assert engine.last_batch is not None
    drafts = (engine.last_batch.seq_lens - engine.last_batch.prefix_lens - 1).tolist()
    assert drafts == [8, 7, 0]
    assert engine.stats().free_slots == 0
    outputs = finish(engine)
    assert [outputs[i].token_ids for i in range(3)] == [list(range(n, n + 20)) for n in (3, 42, 82)]
    assert_all_free(engine)


def test_slots_beyond_what_a_request_can_ever_fill_are_not_allocated(drafter: Foreseeing) -> None:
    engine = engine_of(num_draft_tokens=64)
    engine.add_request([1, 2, 3], greedy(10))
    step(engine)
    step(engine)
    assert drafter.asked == [([0], [8])]
    assert engine.stats().finished == 1


# --- ends ------------------------------------------------------------------------------------------------------------

ENDS = [
    {},
    {"stop_token_ids": [70]},
    {"stop_token_ids": [70], "min_new_tokens": 8},
    {"stop": ["FG"]},
    {"stop": ["FG"], "include_stop_str_in_output": True},
    {"stop": ["F", "Fx"], "logprobs": 1},
    {"max_new_tokens": 1},
    {"max_new_tokens": 5},
    {"max_new_tokens": 4, "stop_token_ids": [69]},
]


@pytest.mark.parametrize("fields", ENDS, ids=str)
@pytest.mark.parametrize("eos", [(), (71,)])
@pytest.mark.parametrize("right", [2, 7])
def test_requests_end_inside_drafts_where_they_would_end_without(
    drafter: Foreseeing, fields: dict[str, Any], eos: Sequence[int], right: int
) -> None:
    drafter.right = right
    told = []
    for options in ({"drafter": None}, {"num_draft_tokens": 7}):
        engine = engine_of(eos=eos, **options)
        (output,) = serve(engine, [65], **{"max_new_tokens": 12, **fields})
        (end,) = output.outputs
        told.append((end.token_ids, end.text, end.finish_reason, end.stop_reason, end.logprobs))
        tree = [node.key.tolist() for _, node in engine.radix_cache.nodes()]
        assert tree == [[65, *end.token_ids][: len(end.token_ids)]], "no K/V of what came behind the end"
        assert output.accepted_tokens <= len(end.token_ids) - 1
        assert_all_free(engine)
    assert told[0] == told[1]


def test_drafts_behind_the_end_are_drafted_but_not_accepted(drafter: Foreseeing) -> None:
    engine = engine_of(num_draft_tokens=6)
    (output,) = serve(engine, [65], max_new_tokens=20, stop_token_ids=[69])
    assert output.token_ids == [66, 67, 68, 69]
    assert (output.drafted_tokens, output.accepted_tokens) == (6, 3)
    assert (engine.stats().drafted_tokens, engine.stats().accepted_tokens) == (6, 3)


# --- streams, aborts, pauses -----------------------------------------------------------------------------------------


def test_pieces_of_a_stream_have_all_tokens_of_a_pass(drafter: Foreseeing) -> None:
    engine = engine_of(num_draft_tokens=3)
    request_id = engine.add_request([65], greedy(10, stop=["never"]))
    reader, pieces = PieceReader(engine.open_requests.groups[request_id]), []
    while engine.has_unfinished():
        step(engine)
        pieces += reader.read()
    assert [len(piece.token_ids) for piece in pieces] == [1, 4, 4, 1]
    assert [token for piece in pieces for token in piece.token_ids] == list(range(66, 76))
    assert "".join(piece.text for piece in pieces) == "BCDEFGHIJK"
    assert [piece.finish_reason for piece in pieces] == [None, None, None, "length"]


def test_aborts_and_pauses_between_passes_keep_what_was_accepted(drafter: Foreseeing) -> None:
    drafter.right = 2
    engine = engine_of(page_size=4)
    for start in (1, 30, 60):
        engine.add_request([start, start + 1], greedy(20))
    step(engine)
    step(engine)
    aborted = engine.abort(0)
    assert aborted is not None
    assert aborted.token_ids == [3, 4, 5, 6]
    assert (aborted.finish_reason, aborted.drafted_tokens, aborted.accepted_tokens) == ("abort", 3, 2)
    engine.check_integrity()
    engine.pause(1)
    engine.check_integrity()
    for _ in range(2):
        assert list(step(engine)) == [2]
    engine.resume(1)
    last = finish(engine)
    assert [last[i].token_ids for i in (1, 2)] == [list(range(n, n + 20)) for n in (32, 62)]
    assert_all_free(engine)
