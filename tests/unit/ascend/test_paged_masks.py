"""forward_tensor with masks: each token sees what it should, and has transformers' logits."""

from collections.abc import Callable

import pytest
import torch

from nanoinfer.ascend.generator import GeneratorTorch
from tests.helpers.paged import PROMPTS, Caller, close

# --- spec_mask ---------------------------------------------------------------------------------------------------


def test_a_spec_mask_without_q_lens_is_one_for_single_tokens(
    generator: GeneratorTorch, expected: Callable[..., torch.Tensor]
) -> None:
    caller = Caller(generator, 8, 4)
    caller.prefill({0: PROMPTS[0], 1: PROMPTS[1]})
    mask = torch.zeros(2, 8)
    mask[0, 2], mask[1, 1] = -torch.inf, -10000.0
    logits = caller.decode({0: [9], 1: [8]}, spec_mask=mask)
    for row, (tokens, hidden) in enumerate(((caller.tokens[0], 2), (caller.tokens[1], 1))):
        see = torch.ones(len(tokens), len(tokens), dtype=torch.bool)
        see[-1, hidden] = False
        close(logits[row], expected(tokens, see=see)[-1])


# --- atten_mask --------------------------------------------------------------------------------------------------


def hidden_columns(size: int, *columns: int) -> torch.Tensor:
    """Boolean [size, size]: no token sees these."""
    see = torch.ones(size, size, dtype=torch.bool)
    see[:, list(columns)] = False
    return see


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("shape", ["[T, S]", "[M, M]", "[B, M, M]"])
def test_an_atten_mask_hides_in_a_prefill(
    additive: bool, shape: str, generator: GeneratorTorch, expected: Callable[..., torch.Tensor]
) -> None:
    see = [hidden_columns(9, 2), hidden_columns(9, 2)]
    if shape != "[M, M]":
        see[1] = hidden_columns(9, 1)
    mask = {
        "[T, S]": torch.cat((see[0][:7, :7], see[1][:3, :7])),
        "[M, M]": see[0],
        "[B, M, M]": torch.stack(see),
    }[shape]
    if additive:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -1e9)
    logits = Caller(generator, 8, 4).prefill({0: PROMPTS[0], 1: PROMPTS[1]}, atten_mask=mask)
    close(logits, torch.cat([expected(p, see=s[: len(p), : len(p)]) for p, s in zip(PROMPTS[:2], see, strict=True)]))


@pytest.mark.parametrize("additive", [False, True])
def test_an_atten_mask_hides_in_a_decode(
    additive: bool, generator: GeneratorTorch, expected: Callable[..., torch.Tensor]
) -> None:
    """Also from drafts in a line, which stay a line: a mask only takes away."""
    for new, q_lens in (([9], None), ([9, 8, 7], [3])):
        caller = Caller(generator, 8, 4)
        caller.prefill({0: PROMPTS[0]})
        size = len(PROMPTS[0]) + len(new)
        see = hidden_columns(size, 3)
        see[: len(PROMPTS[0])] = True  # the prompt was computed without a mask
        mask = torch.zeros(see.shape).masked_fill(~see, -torch.inf) if additive else see
        logits = caller.decode({0: new}, q_lens=q_lens, atten_mask=mask)
        close(logits, expected(caller.tokens[0], see=see)[-len(new) :])


def test_a_mask_of_nothing_changes_nothing(
    generators: Callable[..., GeneratorTorch], expected: Callable[..., torch.Tensor]
) -> None:
    caller = Caller(generators("mistral"), 16, 4)
    see = torch.ones(21, 21, dtype=torch.bool)
    close(caller.prefill({0: PROMPTS[3]}, atten_mask=see), expected(PROMPTS[3], "mistral"))
    logits = caller.decode({0: [7, 8]}, q_lens=[2], spec_mask=torch.zeros(2, 23), atten_mask=torch.zeros(2, 23))
    close(logits, expected(caller.tokens[0], "mistral")[-2:])


def test_with_a_mask_positions_are_free(generator: GeneratorTorch, expected: Callable[..., torch.Tensor]) -> None:
    positions = [0, 0, 0, 3, 9, 10, 11]
    see = hidden_columns(7, 1)
    caller = Caller(generator, 8, 4)
    logits = caller.prefill({0: PROMPTS[0]}, atten_mask=see, position_ids=torch.tensor(positions))
    close(logits, expected(PROMPTS[0], see=see, positions=positions))


def test_a_token_that_sees_nothing_has_finite_logits(generator: GeneratorTorch) -> None:
    logits = Caller(generator, 8, 4).prefill({0: PROMPTS[0]}, atten_mask=hidden_columns(7, 0))
    assert logits.isfinite().all()
