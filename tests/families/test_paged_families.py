"""forward_tensor with every family: its logits are those of transformers, whatever mix of chunks and drafts comes."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer.paged.generator import GeneratorTorch
from tests.helpers.checkpoints import FAMILIES
from tests.helpers.paged import Caller

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [300, 2, 17], [42], list(range(100, 121)))
OPTIONS: dict[str, dict[str, object]] = {
    "mistral": {"sliding_window": 5},
    "qwen3": {"head_dim": 24, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "phi3": {"sliding_window": 6},
}
OPTIONS_OF = {family: OPTIONS.get(family, {}) for family in FAMILIES}


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("family", "block_size"),
    [
        *(("llama", block_size) for block_size in (1, 4, 16, 128)),
        *((family, block_size) for i, family in enumerate(FAMILIES[1:]) for block_size in ((1, 16), (4, 128))[i % 2]),
    ],
)
def test_prefill_and_decode_have_the_logits_of_transformers(
    family: str, block_size: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint(family, **OPTIONS_OF[family])

    @torch.no_grad()
    def expected(tokens: Sequence[int]) -> torch.Tensor:
        return oracle(path)(torch.tensor([tokens])).logits[0]

    caller = Caller(GeneratorTorch(path), num_blocks=160 // block_size + 8, block_size=block_size)
    close(caller.prefill(dict(enumerate(PROMPTS))), torch.cat([expected(prompt) for prompt in PROMPTS]))
    for step in range(6):
        new = {i: [50 * i + step] for i in range(len(PROMPTS))}
        close(caller.decode(new), torch.stack([expected(caller.tokens[i])[-1] for i in new]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_any_mix_of_chunks_and_drafts_in_any_order(
    seed: int, family: str, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint(family, **OPTIONS_OF[family])
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
