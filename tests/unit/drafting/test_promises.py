"""Promises: plans are believed until they bring less than they said."""

import pytest

from nanoinfer.drafting.draft_lengths import SAME_PLAN
from nanoinfer.drafting.promises import BELIEF, FORGIVENESS, Promises
from tests.helpers.draft_lengths import accept, make_lengths, make_req, plan_of


def follow(promises: Promises, batch: int, promised: float, made: float, plans: int, drafts: bool = True) -> None:
    """Plans of eight passes that make so many tokens per second, in place of those that were promised."""
    for _ in range(plans):
        now, tokens = promises._end
        promises.begin(batch, promised, drafts, now, tokens)
        for _ in range(8):
            now, tokens = now + batch / made, tokens + batch
            promises.note(now, tokens)
    promises.begin(batch, 0.0, False, now, tokens)


def test_promises_are_believed_until_they_are_broken() -> None:
    promises = Promises()
    assert promises.trust(4) == 1.0
    follow(promises, 4, 100.0, 50.0, plans=1)
    assert promises.trust(4) == pytest.approx((8 + BELIEF) / (16 + BELIEF)), "8 tokens of each request, in place of 16"
    follow(promises, 4, 100.0, 50.0, plans=100)
    assert promises.trust(4) == pytest.approx(0.5, abs=0.06)
    assert promises.trust(7) == promises.trust(4), "batches of about the same size"
    assert promises.trust(8) == promises.trust(3) == 1.0


def test_a_prompt_that_is_computed_between_two_passes_breaks_no_promise() -> None:
    lengths, req = make_lengths(lambda rows: 1 + 0.1 * rows), make_req(10**6)
    accept(lengths, req, 0.9)
    now, tokens = 0.0, 0
    for _ in range(20 * SAME_PLAN):
        lengths.rests([req], now, tokens)
        assert plan_of(lengths, req)[0] >= 5
        now, tokens = now + 1.8, tokens + 5
        lengths.interrupt()
        now += 1000.0
    assert lengths._promises.trust(1) == 1.0


def test_plans_that_keep_their_promises_together_are_believed_even_if_none_does_by_itself() -> None:
    promises, now, tokens = Promises(), 0.0, 0
    for made in (1, 5) * 100:  # 3 tokens were promised
        promises.begin(1, 3.0, True, now, tokens)
        now, tokens = now + 1.0, tokens + made
        promises.note(now, tokens)
    assert promises.trust(1) > 0.97


def test_what_slows_passes_without_drafts_as_well_breaks_no_promise() -> None:
    promises = Promises()
    for _ in range(50):
        follow(promises, 4, 100.0, 50.0, plans=1)
        follow(promises, 4, 40.0, 20.0, plans=4, drafts=False)
    assert promises.trust(4) > 0.9


def test_a_promise_that_was_too_modest_is_not_made_larger() -> None:
    promises = Promises()
    follow(promises, 2, 100.0, 150.0, plans=20)
    assert promises.trust(2) == 1.0


def test_after_many_plans_without_drafts_broken_promises_are_forgiven() -> None:
    promises = Promises()
    follow(promises, 1, 100.0, 60.0, plans=50)
    trust = [promises.trust(1)]
    for _ in range(4):
        follow(promises, 1, 0.0, 60.0, plans=round(FORGIVENESS / 8), drafts=False)
        trust.append(promises.trust(1))
    assert trust == sorted(trust)
    assert trust[0] < 0.7
    assert trust[-1] > 0.9


def test_a_request_whose_drafts_bring_less_than_their_costs_tell_gets_no_more_of_them() -> None:
    """The first VERIFY passes look cheap, but what is between the passes is dear: it is in no measurement."""
    lengths, req = make_lengths(lambda rows: 1 + 0.1 * rows), make_req(10**6)
    accept(lengths, req, 0.9)
    now, tokens, drafted = 0.0, 0, []
    for _ in range(40 * SAME_PLAN):
        if not lengths.rests([req], now, tokens):
            drafts = plan_of(lengths, req)[0]
            lengths.count_pass(1 + drafts, True, 1 + 0.1 * (1 + drafts))
        else:
            drafts = 0
        drafted.append(drafts > 0)
        now, tokens = now + (6.0 if drafts else 1.1), tokens + (4 if drafts else 1)
    assert drafted[0]
    assert sum(drafted) <= 10 * SAME_PLAN, "of 40"
