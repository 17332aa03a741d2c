"""Draws of the Sampler, and what Hugging Face's logits processors make of the same logits."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from nanoinfer import SamplingParams
from nanoinfer.requests.req import Req
from nanoinfer.sampling.sampler import Sampler

V = 40
GRID = 500  # draws that a distribution is read from
STOPS = frozenset({2, 7})
PROMPT, OUTPUT = (3, 3, 9, 20), (9, 5, 9, 31)


def make_req(prompt: Sequence[int] = PROMPT, output: Sequence[int] = OUTPUT, seed: int = 0, **fields: Any) -> Req:
    """A request that has sampled `output`."""
    req = Req(0, np.array(prompt), SamplingParams(**fields), STOPS, seed)
    req.token_ids[req.prompt_len : req.prompt_len + len(output)] = output
    req.num_tokens = req.prompt_len + len(output)
    return req


def make_logits(rows: int = 1, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return spread * torch.randn(rows, V, generator=torch.Generator().manual_seed(seed))


def expected_scores(logits: torch.Tensor, req: Req) -> torch.Tensor:
    """What transformers makes of `logits` [V] for this request, in the order of its `generate`; OpenAI's two penalties,
    which it lacks, by their definition, one occurrence at a time."""
    p, ids = req.params, torch.from_numpy(req.token_ids[: req.num_tokens])[None]
    before = hf.LogitsProcessorList()
    if p.logit_bias:
        before.append(hf.SequenceBiasLogitsProcessor([[[token], bias] for token, bias in p.logit_bias.items()]))
    if p.repetition_penalty != 1.0:
        before.append(hf.RepetitionPenaltyLogitsProcessor(p.repetition_penalty))
    scores = before(ids, logits[None].clone())
    seen = set()
    for token in req.output_ids:
        scores[0, token] -= p.frequency_penalty
        if token not in seen:
            scores[0, token] -= p.presence_penalty
        seen.add(token)
    after = hf.LogitsProcessorList()
    if p.min_new_tokens:
        after.append(hf.MinNewTokensLengthLogitsProcessor(req.prompt_len, p.min_new_tokens, sorted(STOPS)))
    if not p.greedy:
        after.append(hf.TemperatureLogitsWarper(p.temperature))
        if p.top_k > 0:
            after.append(hf.TopKLogitsWarper(p.top_k))
        if p.top_p < 1.0:
            after.append(hf.TopPLogitsWarper(p.top_p))
        if p.min_p > 0.0:
            after.append(hf.MinPLogitsWarper(p.min_p))
    return after(ids, scores)[0]


def counts_of_draws(monkeypatch: pytest.MonkeyPatch, logits: torch.Tensor, req: Req) -> np.ndarray:
    """How often each token is drawn when the random numbers are evenly spaced: `GRID` times its probability, ±1."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "nanoinfer.sampling.sampler.uniform", lambda seeds, indices: (np.arange(len(seeds)) + 0.5) / len(seeds)
        )
        tokens = Sampler().sample(logits.expand(GRID, -1), [req] * GRID)
    return np.bincount(tokens.numpy(), minlength=V)


def assert_drawn_like(counts: np.ndarray, scores: torch.Tensor) -> None:
    wanted = GRID * scores.double().softmax(dim=-1).numpy()
    assert counts[scores.isneginf().numpy()].sum() == 0, "drawn, but should have been removed"
    np.testing.assert_allclose(counts, wanted, atol=1.001)


def random_fields(rng: np.random.Generator) -> dict[str, Any]:
    """Each parameter is left alone or set, at random."""
    choices = {
        "temperature": rng.uniform(0.2, 3.0),
        "top_k": int(rng.integers(1, V)),
        "top_p": rng.uniform(0.2, 1.0),
        "min_p": rng.uniform(0.0, 0.3),
        "repetition_penalty": rng.uniform(0.5, 2.0),
        "frequency_penalty": rng.uniform(-2, 2),
        "presence_penalty": rng.uniform(-2, 2),
        "min_new_tokens": int(rng.integers(1, 8)),
        "logit_bias": {int(token): float(rng.normal()) for token in rng.integers(0, V, 5)} | {11: -math.inf},
    }
    return {name: value for name, value in choices.items() if rng.random() < 0.6}
