"""The Llama in numpy that tests under load take their tokens from is transformers' Llama."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.helpers.oracles import TINY_MODEL
from tests.helpers.plain_llama import PlainLlama
from tests.helpers.rows import all_logits


@pytest.mark.parametrize(
    "changes",
    [
        {**TINY_MODEL, "seed": 3},
        {**TINY_MODEL, "seed": 4, "num_hidden_layers": 1, "hidden_size": 8},
        {"tie_word_embeddings": True, "head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    ],
    ids=["tiny", "draft", "larger"],
)
def test_logits_are_those_of_transformers_at_once_and_one_by_one(
    changes: dict[str, Any],
    checkpoint: Callable[..., Path],
    oracle: Callable[[Path], transformers.PreTrainedModel],
) -> None:
    path = checkpoint("llama", **changes)
    plain, model, rng = PlainLlama(path), oracle(path), np.random.default_rng(0)
    for length in (1, 2, 17, 60):
        ids = rng.integers(0, 32, length).tolist()
        wanted = all_logits(model, ids)
        at_once, _ = plain(ids, None)
        torch.testing.assert_close(torch.from_numpy(at_once).float(), wanted, rtol=1e-4, atol=1e-4)
        start, past = plain(ids[: length // 2 + 1], None)
        rows = [start]
        for token in ids[length // 2 + 1 :]:
            row, past = plain([token], past)
            rows.append(row)
        np.testing.assert_allclose(np.concatenate(rows), at_once, atol=1e-9)
