"""DraftLengths: drafts where they pay by the costs that were measured, and no more than a request can use."""

import pytest

from nanoinfer.drafting.draft_lengths import FEW_ROWS, DraftLengths, Turn
from tests.helpers.draft_lengths import (
    ENOUGH_PASSES,
    Silent,
    accept,
    asked,
    flat,
    make_lengths,
    make_req,
    measured,
    most_of,
    plan_of,
    settled_plan_of,
    steep,
)

# --- how many drafts -------------------------------------------------------------------------------------------------


def test_with_nothing_known_few_rows_are_tried_at_once_and_then_twice_the_rows() -> None:
    lengths = DraftLengths([Silent()], 7, True)
    reqs = [accept(lengths, make_req(), 1.0) for _ in range(28)]
    assert plan_of(lengths, reqs[0]) == [0], "first, a pass without drafts is measured"
    measured(lengths, flat, [1])
    assert settled_plan_of(lengths, reqs[0]) == [7]
    assert plan_of(lengths, *reqs[:4]) == [0] * 4
    measured(lengths, flat, [4])
    assert sum(settled_plan_of(lengths, *reqs[:4])) == FEW_ROWS - 4
    measured(lengths, flat, [30])
    assert sum(settled_plan_of(lengths, *reqs)) == 2 * 30 - 28


def test_drafts_grow_with_acceptance() -> None:
    def costs(rows: int) -> float:
        return 1 + 0.25 * rows

    counts = []
    for rate in (0.0, 0.3, 0.5, 0.7, 0.9, 1.0):
        lengths = make_lengths(costs)
        counts.append(*plan_of(lengths, accept(lengths, make_req(), rate)))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 7)
    assert len(set(counts)) >= 4, "not all or nothing"


def test_drafts_that_are_never_right_are_left_out_even_if_rows_are_free() -> None:
    lengths = make_lengths(flat)
    assert plan_of(lengths, accept(lengths, make_req(), 0.0)) == [0]
    assert settled_plan_of(lengths, accept(lengths, make_req(), 1.0)) == [7]


def test_drafts_stop_as_the_batch_grows_where_rows_begin_to_cost() -> None:
    def costs(rows: int) -> float:
        return 8 + max(rows - 8, 0)  # eight rows are free

    per_request = []
    for batch in (1, 4, 8, 16, 32):
        lengths = make_lengths(costs)
        reqs = [accept(lengths, make_req(), 0.8) for _ in range(batch)]
        per_request.append(sum(plan_of(lengths, *reqs)) / batch)
    assert per_request == sorted(per_request, reverse=True)
    assert per_request[0] >= 4
    assert per_request[-1] == 0


def test_rows_that_cost_as_much_as_a_pass_are_never_worth_it() -> None:
    lengths = make_lengths(steep)
    for batch in (1, 2, 8):
        assert not any(plan_of(lengths, *(accept(lengths, make_req(), 1.0) for _ in range(batch))))


def test_the_time_of_the_drafter_counts() -> None:
    for step_seconds, drafts in ((0.0, 7), (0.3, 7), (1.0, 0)):
        lengths = make_lengths(flat, step_seconds=step_seconds)
        assert plan_of(lengths, accept(lengths, make_req(), 1.0)) == [drafts]


def test_requests_that_accept_more_get_more_of_a_pass() -> None:
    def costs(rows: int) -> float:
        return 1 + 0.1 * rows

    lengths = make_lengths(costs)
    rates = (0.9, 0.1, 0.5, 0.7)
    counts = plan_of(lengths, *(accept(lengths, make_req(), rate) for rate in rates))
    assert counts[0] > counts[3] >= counts[2] > counts[1] == 0


def test_greedy_passes_and_others_have_costs_of_their_own() -> None:
    lengths = make_lengths(flat)
    for rows in (1, 2, 4, 8):
        for _ in range(ENOUGH_PASSES):
            lengths.count_pass(rows, False, steep(rows))
    req = accept(lengths, make_req(), 0.9)
    assert most_of(lengths.choose([req], True)) == [7]
    assert lengths.choose([req], False) == []


def test_the_drafter_that_is_right_more_often_is_asked_first_and_the_first_of_equal_ones() -> None:
    lengths = make_lengths(flat, num_drafters=3)
    req = make_req()
    assert asked(lengths.choose([make_req()], True)) == [0, 1, 2]
    accept(lengths, req, 0.5, drafter=0)
    accept(lengths, req, 0.9, drafter=1)
    accept(lengths, req, 0.0, drafter=2)
    turns = lengths.choose([req], True)
    assert asked(turns) == [1, 0], "the last one is not worth a row"
    assert [turn.most for turn in turns] == [[7], [7]]


def test_a_new_request_is_expected_to_fare_between_hope_and_what_others_had() -> None:
    lengths = make_lengths(lambda rows: 1 + 0.4 * rows)
    assert any(plan_of(lengths, make_req()))
    accept(lengths, make_req(), 0.0, passes=2000)
    assert not any(plan_of(lengths, make_req()))
    for _ in range(20):
        accept(lengths, make_req(), 1.0, passes=100)
    assert any(settled_plan_of(lengths, make_req()))


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", [True, False])
def test_no_request_gets_more_drafts_than_it_can_still_use(adaptive: bool) -> None:
    """The token behind the last accepted draft comes with the pass, so one less than are missing."""
    lengths = DraftLengths([Silent()], 5, adaptive)
    if adaptive:
        measured(lengths, flat)
    for missing, most in ((1, 0), (2, 1), (4, 3), (6, 5), (30, 5)):
        req = make_req(missing + 1)
        req.append(7)
        assert settled_plan_of(lengths, accept(lengths, req, 1.0)) == [most]


@pytest.mark.parametrize("adaptive", [True, False])
def test_requests_with_logits_processors_get_no_drafts(adaptive: bool) -> None:
    lengths = DraftLengths([Silent()], 3, adaptive)
    if adaptive:
        measured(lengths, flat)
    own, plain = make_req(logits_processors=(lambda ids, scores: scores,)), make_req()
    assert plan_of(lengths, own, plain) == [0, 3]


def test_without_adaptation_every_request_gets_all_drafts_whatever_they_bring() -> None:
    lengths = measured(DraftLengths([Silent()] * 2, 4, False), steep)
    reqs = [accept(lengths, make_req(), 0.0) for _ in range(3)]
    assert lengths.choose(reqs, True) == [Turn(0, [4, 4, 4]), Turn(1, [4, 4, 4])]


@pytest.mark.parametrize(("step_seconds", "pays"), [(0.0, True), (0.02, True), (0.2, False)])
def test_another_drafter_is_asked_for_the_requests_that_are_left_only_if_it_pays_for_these(
    step_seconds: float, pays: bool
) -> None:
    """Three of four requests have two drafts of the first drafter. The other one always has an idea and is always right."""
    lengths = make_lengths(flat, most=2, num_drafters=2, step_seconds=step_seconds)
    reqs = [make_req() for _ in range(4)]
    for req in reqs:
        accept(lengths, req, 0.5, drafter=0)
        accept(lengths, req, 1.0, drafter=1)
    turns = lengths.choose(reqs, True)
    second = next(turn for turn in turns if turn.drafter == 1)
    assert second.most == [2] * 4  # for four, it pays in any case
    # 4 + 3 (0.5 + 0.25) tokens without it, and 2 more with it: 1.3 times as many, in 1, 1.04 or 1.4 times the seconds
    assert lengths.is_worth_asking(second, reqs, [2, 2, 2, 0], [0, 0, 0, None]) is pays


def test_passes_of_a_coarse_clock_that_took_no_time_do_not_count() -> None:
    lengths, req = measured(DraftLengths([Silent()], 3, True), lambda rows: 0.0), make_req()
    assert plan_of(lengths, req) == [0]
    measured(lengths, flat)
    lengths.count_pass(1, True, 0.0)
    assert settled_plan_of(lengths, req) == [3]


def test_of_drafters_that_are_right_as_often_the_faster_one_is_asked() -> None:
    lengths, req = measured(DraftLengths([Silent()] * 2, 7, True), flat), make_req()
    for drafter, seconds in ((0, 0.2), (1, 0.1)):
        accept(lengths, req, 0.8, drafter)
        for _ in range(10):
            lengths.count_proposal(drafter, [req], 7, seconds)
    assert asked(lengths.choose([req], True)) == [1, 0]


def test_what_a_drafter_takes_for_numbers_of_steps_that_were_not_measured_is_guessed() -> None:
    lengths = DraftLengths([Silent()], 5, True)
    assert lengths._proposal_seconds(0, 1, 3) == 0
    for _ in range(ENOUGH_PASSES):
        lengths.count_proposal(0, [make_req(), make_req()], 4, 2.0)
    assert [lengths._proposal_seconds(0, 2, steps) for steps in (1, 2, 4, 5)] == [0.5, 1.0, 2.0, 2.0]
