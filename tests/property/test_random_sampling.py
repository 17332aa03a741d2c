"""Sampler: any combination of parameters leaves what Hugging Face's processors leave."""

import numpy as np
import pytest

from tests.helpers.draws import (
    assert_drawn_like,
    counts_of_draws,
    expected_scores,
    make_logits,
    make_req,
    random_fields,
)


def test_parameters_combine_in_the_order_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for seed in range(40):
        logits, req = make_logits(seed=seed)[0], make_req(**random_fields(rng))
        assert_drawn_like(counts_of_draws(monkeypatch, logits, req), expected_scores(logits, req))
