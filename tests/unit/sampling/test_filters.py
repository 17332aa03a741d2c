"""Filters: each belongs to a field of SamplingParams, leaves nothing out by default, and is seen by what skips filters."""

from dataclasses import fields, replace

import pytest
import torch

from nanoinfer import SamplingParams
from nanoinfer.sampling.filters import FILTERS, Filter, keep_likely

NARROW = {"top_k": 2, "top_p": 0.5, "min_p": 0.9}  # a value of each with which some of SCORES are left out
SCORES = torch.tensor([[2.0, 1.9, 0.0, -1.0], [0.0, 3.0, 2.0, 2.99]])


def test_every_filter_has_a_narrow_value_here() -> None:
    assert {each.name for each in FILTERS} == set(NARROW)


@pytest.mark.parametrize("each", FILTERS, ids=lambda each: each.name)
def test_a_filter_is_off_by_default_and_seen_when_it_is_on(each: Filter) -> None:
    (field,) = [field for field in fields(SamplingParams) if field.name == each.name]
    assert not each.leaves_out(field.default, 4)
    off = SamplingParams()
    on = replace(off, **{each.name: NARROW[each.name]})
    assert off.draws_from_all
    assert not on.draws_from_all
    kept = keep_likely(SCORES, [off, on])
    assert kept[0].isfinite().all()
    assert not kept[1].isfinite().all()
    assert kept[1].argmax() == SCORES[1].argmax(), "the likeliest token always stays"


def test_filters_apply_in_the_order_of_the_table_to_what_the_one_before_has_left() -> None:
    params = SamplingParams(top_k=3, top_p=0.5, temperature=0.5)
    one = keep_likely(SCORES[1:], [params])
    by_hand = FILTERS[1].keep(FILTERS[0].keep((SCORES[1:] - 3.0) / 0.5, torch.tensor([[3.0]])), torch.tensor([[0.5]]))
    assert torch.equal(one, by_hand)
    assert [each.name for each in FILTERS] == ["top_k", "top_p", "min_p"]


@pytest.mark.parametrize("k", [4, 5, 2**40, 2**63 - 1, 10**400])
def test_a_top_k_beyond_the_vocabulary_leaves_nothing_out_and_concerns_nobody_else(k: int) -> None:
    kept = keep_likely(SCORES, [SamplingParams(top_k=k), SamplingParams(top_k=2)])
    assert kept[0].isfinite().all()
    assert kept[1].isfinite().sum() == 2
