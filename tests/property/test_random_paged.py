"""forward_tensor on any mix of prompts in chunks and drafts."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer.paged.generator import GeneratorTorch
from tests.helpers.paged import Caller

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
FAMILIES: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen3": {"head_dim": 24, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
}


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", FAMILIES)
def test_any_mix_of_chunks_and_drafts_in_any_order(
    seed: int, family: str, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint(family, **FAMILIES[family])
    rng = random.Random(seed)
    block_size = rng.choice([1, 3, 4, 16])
    caller = Caller(GeneratorTorch(path), 5 * (60 // block_size + 1), block_size, seed)
    for _ in range(10):
        requests = rng.sample(range(5), rng.randint(1, 5))
        new = {i: [rng.randrange(320) for _ in range(rng.choice([1, 1, 2, 5]))] for i in requests}
        is_prefill = rng.random() < 0.4
        q_lens = [len(tokens) for tokens in new.values()]
        logits = caller.run(new, is_prefill, q_lens=q_lens if max(q_lens) > 1 or rng.random() < 0.5 else None)
        with torch.no_grad():
            expected = {i: oracle(path)(torch.tensor([caller.tokens[i]])).logits[0] for i in new}
        close(logits, torch.cat([expected[i][-len(new[i]) :] for i in new]))
