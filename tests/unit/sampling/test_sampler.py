"""Sampler: Hugging Face's logits processors are the oracle for what may be drawn and how often."""

import copy
import dataclasses
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import SamplingParams
from nanoinfer.sampling.filters import FILTERS, Filter, keep_likely
from nanoinfer.sampling.sampler import Sampler
from tests.helpers.draws import (
    GRID,
    OUTPUT,
    V,
    assert_drawn_like,
    counts_of_draws,
    expected_scores,
    make_logits,
    make_req,
    random_fields,
)

SINGLE = [
    {"temperature": 0.4},
    {"temperature": 5.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": V},
    {"top_k": V + 1},
    {"top_p": 0.05},
    {"top_p": 0.7},
    {"top_p": 0.999},
    {"min_p": 0.02},
    {"min_p": 0.5},
    {"min_p": 1.0},
    {"repetition_penalty": 3.0},
    {"repetition_penalty": 0.3},
    {"frequency_penalty": 1.5},
    {"frequency_penalty": -2.0},
    {"presence_penalty": 2.0},
    {"presence_penalty": -1.5},
    {"min_new_tokens": len(OUTPUT) + 1},
    {"min_new_tokens": len(OUTPUT)},
    {"logit_bias": {4: 3.0, 9: -2.0, 38: -math.inf}},
    {"logit_bias": {token: -math.inf for token in range(V) if token % 3}},
]


@pytest.mark.parametrize("fields", SINGLE, ids=lambda fields: " ".join(f"{k}={str(v)[:12]}" for k, v in fields.items()))
def test_each_parameter_leaves_what_transformers_leaves(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    for seed in range(3):
        logits, req = make_logits(seed=seed)[0], make_req(**fields)
        assert_drawn_like(counts_of_draws(monkeypatch, logits, req), expected_scores(logits, req))


def test_greedy_takes_the_best_token_after_bias_and_penalties() -> None:
    rng = np.random.default_rng(1)
    logits = make_logits(64, seed=5)
    reqs = [make_req(**{**random_fields(rng), "temperature": 0.0}) for _ in range(64)]
    wanted = [int(expected_scores(row, req).argmax()) for row, req in zip(logits, reqs, strict=True)]
    assert Sampler().sample(logits, reqs).tolist() == wanted
    assert wanted != logits.argmax(dim=-1).tolist()  # or the parameters had no say


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(2)
    logits = make_logits(24, seed=6).to(dtype)
    reqs = []
    for i in range(24):
        fields = random_fields(rng) | ({"temperature": 0.0} if i % 4 == 0 else {})
        output = rng.integers(0, V, i % 6).tolist()
        reqs.append(make_req(rng.integers(0, V, 1 + i % 5).tolist(), output, seed=i * 1000003, **fields))
    sampler = Sampler()
    alone = [int(sampler.sample(logits[i : i + 1], [req])[0]) for i, req in enumerate(reqs)]
    for _ in range(5):
        order = rng.permutation(24)[: rng.integers(2, 25)]
        mixed = sampler.sample(logits[order], [reqs[i] for i in order]).tolist()
        assert mixed == [alone[i] for i in order]


def test_logits_are_not_changed() -> None:
    rng = np.random.default_rng(3)
    logits = make_logits(16)
    before, reqs = logits.clone(), [make_req(**random_fields(rng), logprobs=2) for _ in range(16)]
    tokens = Sampler().sample(logits, reqs)
    Sampler().logprobs(logits, tokens, reqs)
    assert torch.equal(logits, before)


# --- numbers at the edge ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1e-6, 1e-20, 1e-30])
def test_a_tiny_temperature_is_greedy_and_ties_share(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    logits = make_logits()[0]
    logits[[4, 30]] = logits.max() + 0.01
    counts = counts_of_draws(monkeypatch, logits, make_req(temperature=temperature))
    assert counts[[4, 30]].tolist() == [GRID // 2, GRID // 2]


@pytest.mark.parametrize("fields", [{"top_p": 1e-9}, {"top_p": 1e-30}, {"top_p": 1e-9, "min_p": 1.0}])
def test_the_likeliest_token_stays_however_little_is_to_stay(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, float]
) -> None:
    """1 - 1e-9 is 1 in float32."""
    logits = make_logits()[0]
    assert counts_of_draws(monkeypatch, logits, make_req(**fields))[int(logits.argmax())] == GRID


@pytest.mark.parametrize("temperature", [1e10, 1e30])
def test_a_huge_temperature_is_uniform_over_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    forbidden = dict.fromkeys(range(0, V, 2), -math.inf)
    counts = counts_of_draws(monkeypatch, make_logits()[0], make_req(temperature=temperature, logit_bias=forbidden))
    assert counts[::2].tolist() == [0] * (V // 2)
    assert set(counts[1::2].tolist()) == {GRID // (V // 2)}


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_random_numbers_stay_within_the_allowed_tokens(
    monkeypatch: pytest.MonkeyPatch, number: float
) -> None:
    monkeypatch.setattr("nanoinfer.sampling.sampler.uniform", lambda seeds, indices: np.full(len(seeds), number))
    sampler = Sampler()
    ends = dict.fromkeys((0, 1, V - 2, V - 1), -math.inf)
    for seed in range(50):
        logits = make_logits(1, seed, spread=8.0)
        for fields in ({"logit_bias": ends}, {"top_k": 1}, {"top_p": 0.3}, {"temperature": 1e-30}):
            req = make_req(**fields)
            token = int(sampler.sample(logits, [req])[0])
            assert expected_scores(logits[0], make_req(**fields | {"temperature": 1.0}))[token] > -math.inf


def test_a_forbidden_token_is_neither_drawn_nor_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = make_logits()[0]
    best = int(logits.argmax())
    for fields in ({}, {"repetition_penalty": 1e-9}, {"repetition_penalty": 1e9}, {"presence_penalty": -2.0}):
        req = make_req(output=[best], logit_bias={best: -math.inf}, **fields)
        counts = counts_of_draws(monkeypatch, logits, req)
        assert counts[best] == 0
        assert counts.sum() == GRID
        greedy = make_req(output=[best], logit_bias={best: -math.inf}, temperature=0, **fields)
        assert int(Sampler().sample(logits[None], [greedy])[0]) != best


@pytest.mark.parametrize("penalty", [1e-9, 1e9])
def test_an_extreme_repetition_penalty_still_draws_a_token(monkeypatch: pytest.MonkeyPatch, penalty: float) -> None:
    for prompt in ((3,), range(V)):  # some tokens penalised, all tokens penalised
        counts = counts_of_draws(monkeypatch, make_logits()[0], make_req(prompt=prompt, repetition_penalty=penalty))
        assert counts.sum() == GRID
        assert counts.size == V


# --- random numbers --------------------------------------------------------------------------------------------------


def chi_square(counts: np.ndarray, wanted: np.ndarray) -> float:
    return float(((counts - wanted) ** 2 / wanted).sum())


def test_the_steps_of_one_seed_follow_the_distribution() -> None:
    logits = make_logits(spread=1.0)[0]
    template = make_req(seed=1234, max_new_tokens=4000, output=())
    reqs = []
    for index in range(4000):
        req = copy.copy(template)
        req.num_tokens = req.prompt_len + index
        reqs.append(req)
    counts = np.bincount(Sampler().sample(logits.expand(4000, -1), reqs).numpy(), minlength=V)
    assert chi_square(counts, 4000 * logits.double().softmax(-1).numpy()) < 90  # 39 degrees of freedom: p < 1e-5


# --- log-probabilities -----------------------------------------------------------------------------------------------


def test_logprobs_are_the_sampled_token_and_the_likeliest_in_order() -> None:
    logits = make_logits(6, seed=9)
    reqs = [make_req(logprobs=k) for k in (None, 0, 1, 3, V, None)]
    tokens = torch.tensor([1, 2, int(logits[2].argmax()), int(logits[3].argmin()), 8, 9])
    result = Sampler().logprobs(logits, tokens, reqs)
    assert result[0] is None
    assert result[5] is None
    for row in range(1, 5):
        table = logits[row].double() - logits[row].double().logsumexp(0)
        likeliest = np.argsort(-logits[row].numpy(), kind="stable")[: reqs[row].params.logprobs].tolist()
        entry = result[row]
        assert entry is not None
        wanted = [int(tokens[row]), *(token for token in likeliest if token != int(tokens[row]))]
        assert list(entry) == wanted
        np.testing.assert_allclose(list(entry.values()), table[wanted], atol=1e-5)
        assert all(type(token) is int and type(value) is float for token, value in entry.items())


def test_which_of_equal_logprobs_are_listed_does_not_depend_on_what_others_want() -> None:
    logits = torch.zeros(2, 200)
    logits[:, ::3] = 1.0
    reqs = [make_req(logprobs=2), make_req(logprobs=150)]
    both = Sampler().logprobs(logits, torch.tensor([0, 0]), reqs)
    assert both == [Sampler().logprobs(logits[:1], torch.tensor([0]), [req])[0] for req in reqs]


def test_logprobs_are_the_models_own_whatever_shapes_the_draw() -> None:
    logits, tokens = make_logits(), torch.tensor([9])
    plain = make_req(logprobs=4)
    shaped = make_req(logprobs=4, temperature=3.0, top_k=1, logit_bias={9: -math.inf}, repetition_penalty=2.0)
    assert Sampler().logprobs(logits, tokens, [shaped]) == Sampler().logprobs(logits, tokens, [plain])


def test_parameters_combine_in_the_order_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for seed in range(40):
        logits, req = make_logits(seed=seed)[0], make_req(**random_fields(rng))
        assert_drawn_like(counts_of_draws(monkeypatch, logits, req), expected_scores(logits, req))


NARROW = {"top_k": 2, "top_p": 0.5, "min_p": 0.9}  # a value of each with which some of SCORES are left out
SCORES = torch.tensor([[2.0, 1.9, 0.0, -1.0], [0.0, 3.0, 2.0, 2.99]])


@pytest.mark.parametrize("each", FILTERS, ids=lambda each: each.name)
def test_a_filter_is_off_by_default_and_seen_when_it_is_on(each: Filter) -> None:
    (field,) = [field for field in dataclasses.fields(SamplingParams) if field.name == each.name]
    assert not each.leaves_out(field.default, 4)
    off = SamplingParams()
    on = replace(off, **{each.name: NARROW[each.name]})
    assert off.draws_from_all
    assert not on.draws_from_all
    kept = keep_likely(SCORES, [off, on])
    assert kept[0].isfinite().all()
    assert not kept[1].isfinite().all()
    assert kept[1].argmax() == SCORES[1].argmax(), "the likeliest token always stays"


@pytest.mark.parametrize("k", [4, 5, 2**40, 2**63 - 1, 10**400])
def test_a_top_k_beyond_the_vocabulary_leaves_nothing_out_and_concerns_nobody_else(k: int) -> None:
    kept = keep_likely(SCORES, [SamplingParams(top_k=k), SamplingParams(top_k=2)])
    assert kept[0].isfinite().all()
    assert kept[1].isfinite().sum() == 2
