"""forward_tensor and shared memory: which slots, blocks and tensors may be used twice in one pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer.paged.generator import GeneratorTorch
from tests.helpers.paged import Caller

PROMPTS = ([1, 2, 3, 4, 5, 6], [7, 8, 9])


@pytest.fixture(scope="module")
def generator(checkpoint: Callable[..., Path]) -> GeneratorTorch:
    return GeneratorTorch(checkpoint("llama"))


@pytest.fixture
def caller(generator: GeneratorTorch) -> Caller:
    """Request 0 has 6 tokens in two of 8 blocks of 4, request 1 has 3 in another."""
    caller = Caller(generator, 8, 4)
    caller.prefill(dict(enumerate(PROMPTS)))
    return caller


def refuse(caller: Caller, arguments: dict[str, Any], message: str) -> None:
    before = caller.snapshot()
    with pytest.raises(ValueError, match=message):
        caller.generator.forward_tensor(**arguments)
    assert all(torch.equal(a, b) for a, b in zip(before, caller.snapshot(), strict=True)), "nothing is written"


# --- slots -------------------------------------------------------------------------------------------------------


def test_equal_tokens_of_two_requests_may_be_written_into_the_same_slots(caller: Caller) -> None:
    caller.slot(2, 3)
    caller.blocks[3] = list(caller.blocks[2])
    logits = caller.generator.forward_tensor(**caller.arguments({2: [1, 2, 3], 3: [1, 2, 3]}, True))
    torch.testing.assert_close(logits[:3], logits[3:])


@pytest.mark.parametrize("other", [[9, 2, 3], [1, 9, 3], [1, 2, 9]])
def test_different_tokens_in_one_slot_are_refused(other: list[int], caller: Caller) -> None:
    caller.slot(2, 3)
    caller.blocks[3] = list(caller.blocks[2])
    arguments = caller.arguments({2: [1, 2, 3], 3: other}, True)
    t = other.index(9)
    refuse(caller, arguments, f"slots: {arguments['slots'][t]} is given to tokens {t} and {3 + t}")


def test_a_block_of_two_requests_with_other_blocks_before_it_is_refused(caller: Caller) -> None:
    caller.prefill({2: [20, 21, 22, 23], 3: [30, 31, 32, 33]})
    caller.slot(2, 7)
    caller.blocks[3].append(caller.blocks[2][1])
    refuse(caller, caller.arguments({2: [1], 3: [1]}, False), f"slots: {caller.slot(2, 4)} is given to tokens 0 and 1")


def test_two_copies_of_a_request_may_decode_the_same_token_into_the_same_slot(caller: Caller) -> None:
    alone = caller.generator.forward_tensor(**caller.arguments({0: [60]}, False))
    caller.blocks[2], caller.tokens[2] = list(caller.blocks[0]), list(PROMPTS[0])
    logits = caller.decode({0: [60], 2: [60], 1: [3]})
    torch.testing.assert_close(logits[:2], alone.expand(2, -1), rtol=1e-4, atol=1e-4)


def test_padding_may_name_blocks_that_are_written(caller: Caller) -> None:
    arguments = caller.arguments({0: [60]}, False)
    alone = caller.generator.forward_tensor(**arguments)
    for name, padding in (("input_ids", 0), ("position_ids", 0), ("slots", -1), ("input_lengths", 0)):
        arguments[name] = torch.cat((arguments[name], torch.tensor([padding])))
    arguments["block_tables"] = arguments["block_tables"].flip(1).expand(2, -1).clone()
    arguments["block_tables"][0] = caller.tables([0])[0]
    arguments["block_tables"][1] = caller.blocks[0][1]
    torch.testing.assert_close(caller.generator.forward_tensor(**arguments)[:1], alone)


def heads_first(block: torch.Tensor) -> torch.Tensor:
    """[8, 128] as [8, 4, 2, 16], where the two heads come before the four tokens."""
    return block.unflatten(1, (2, 4, 16)).transpose(1, 2)


# --- K and V -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "views",
    [
        lambda: [(t[:, 0], t[:, 1]) for t in (torch.zeros(8, 2, 4, 2, 16) for _ in range(3))],
        lambda: [(t[..., 0], t[..., 1]) for t in torch.zeros(3, 8, 4, 2, 16, 2)],
        lambda: list(torch.zeros(3, 2, 8, 4, 2, 16)),
        lambda: [(t[0], t[1]) for t in torch.zeros(8, 3, 2, 4, 2, 16).permute(1, 2, 0, 3, 4, 5)],
        lambda: [(heads_first(t[:, 0]), t[:, 1].view(8, 4, 2, 16)) for t in torch.zeros(3, 8, 2, 128)],
        lambda: [
            (t[:, 0].view(8, 2, 16, 4).permute(0, 3, 1, 2), heads_first(t[:, 1])) for t in torch.zeros(3, 8, 2, 128)
        ],
        lambda: [(heads_first(t[..., 0]), t[..., 1].view(8, 4, 2, 16)) for t in torch.zeros(3, 8, 128, 2)],
    ],
)
def test_views_of_one_memory_that_share_no_element_are_a_cache(views: Callable[[], list[Any]], caller: Caller) -> None:
    expected = caller.decode({0: [5], 1: [6]})
    other = Caller(caller.generator, 8, 4)
    other.kv_cache = [(k, v) for k, v in views()]
    other.prefill(dict(enumerate(PROMPTS)))
    torch.testing.assert_close(other.decode({0: [5], 1: [6]}), expected, rtol=1e-4, atol=1e-4)


# --- masks -------------------------------------------------------------------------------------------------------


def square_case(generator: GeneratorTorch) -> tuple[Caller, dict[str, Any], torch.Tensor]:
    """Three requests of 1, 2 and 3 tokens after a decode pass, and a mask [3, 3] that hides index 1 from index 2."""
    caller = Caller(generator, 8, 4)
    caller.prefill({1: [5], 2: [6, 7]})
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[2, 1] = False
    return caller, caller.arguments({2: [3], 1: [2], 0: [1]}, False), mask


def test_a_mask_that_could_be_read_in_two_ways_is_refused(generator: GeneratorTorch) -> None:
    caller, arguments, mask = square_case(generator)
    refuse(caller, {**arguments, "atten_mask": mask}, r"atten_mask: shape \[3, 3\]")
    caller = Caller(generator, 8, 4)  # a prefill of 2 + 2 tokens after a prefix of 2
    caller.prefill({0: [1, 2]})
    arguments = caller.arguments({0: [3, 4], 1: [5, 6]}, True)
    mask = torch.zeros(4, 4)
    mask[3, 0] = -1e9
    refuse(caller, {**arguments, "atten_mask": mask}, r"atten_mask: shape \[4, 4\]")


def test_a_mask_that_says_the_same_in_both_ways_is_taken(generator: GeneratorTorch) -> None:
    _, arguments, mask = square_case(generator)
    expected = generator.forward_tensor(**arguments)
    for same in (torch.ones_like(mask), torch.zeros(3, 3)):
        logits = generator.forward_tensor(**arguments, atten_mask=same)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
