"""Callers of forward_tensor, and transformers' logits to compare with."""

from collections.abc import Callable, Sequence

import pytest
import torch

from nanoinfer.ascend.generator import GeneratorTorch
from tests.helpers.paged import FAMILIES, Checkpoint, Oracle


@pytest.fixture(scope="session")
def generators(checkpoint: Checkpoint) -> Callable[..., GeneratorTorch]:
    made: dict[tuple[str, object], GeneratorTorch] = {}

    def make(family: str = "llama", dtype: str | None = None) -> GeneratorTorch:
        if (family, dtype) not in made:
            made[family, dtype] = GeneratorTorch(checkpoint(family, **FAMILIES[family]), dtype=dtype)
        return made[family, dtype]

    return make


@pytest.fixture
def generator(generators: Callable[..., GeneratorTorch]) -> GeneratorTorch:
    return generators()


@pytest.fixture(scope="session")
def expected(checkpoint: Checkpoint, oracle: Oracle) -> Callable[..., torch.Tensor]:
    """`expected(tokens)`: transformers' logits [len(tokens), V]; `see` [S, S] boolean hides more, `positions` replace."""

    @torch.no_grad()
    def logits(
        tokens: Sequence[int],
        family: str = "llama",
        see: torch.Tensor | None = None,
        positions: Sequence[int] | None = None,
    ) -> torch.Tensor:
        model = oracle(checkpoint(family, **FAMILIES[family]))
        mask = None
        if see is not None:
            causal = torch.ones_like(see).tril()
            mask = torch.zeros(see.shape).masked_fill(~(see & causal), torch.finfo(torch.float32).min)[None, None]
        where = None if positions is None else torch.tensor([list(positions)])
        return model(torch.tensor([list(tokens)]), attention_mask=mask, position_ids=where).logits[0]

    return logits
