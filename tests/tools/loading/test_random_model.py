"""A model with random weights, made in memory for timing."""

import pytest
import torch

from nanoinfer import UnsupportedModelError
from nanoinfer.model.random_model import random_model
from nanoinfer.sessions.inference import InferenceEngine, InferenceSession

TINY = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def first_logits(seed: int, kernels: str = "torch") -> torch.Tensor:
    model = random_model(kernels=kernels, seed=seed, **TINY)
    return InferenceEngine(model).extend(torch.arange(10).numpy())[0]


def test_the_same_seed_gives_the_same_model() -> None:
    first, again, other = first_logits(1), first_logits(1), first_logits(2)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert torch.allclose(first_logits(1, kernels="auto"), first, atol=1e-4)


def test_sessions_run_it_on_token_ids_to_their_last_token() -> None:
    model = random_model(**TINY)
    session = InferenceSession(InferenceEngine(model), 5, temperature=0.0)
    session.prefill([1, 2, 3])
    while session.step_once() is not None:
        pass
    assert (len(session.generated_ids), model.tokenizer, model.end_token_ids) == (5, None, ())


def test_a_shape_that_no_llama_has_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="num_key_value_heads=3: must divide num_attention_heads=4"):
        random_model(**{**TINY, "num_key_value_heads": 3})
