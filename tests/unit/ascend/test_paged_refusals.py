"""What forward_tensor refuses: by name, and before anything is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer.ascend.generator import GeneratorTorch
from tests.helpers.paged import Caller


@pytest.fixture(scope="module")
def generator(checkpoint: Callable[..., Path]) -> GeneratorTorch:
    return GeneratorTorch(checkpoint("llama"))


@pytest.fixture
def caller(generator: GeneratorTorch) -> Caller:
    """Request 0 has 6 tokens in two of 8 blocks of 4, request 1 has 3 in another."""
    caller = Caller(generator, 8, 4)
    caller.prefill({0: [1, 2, 3, 4, 5, 6], 1: [7, 8, 9]})
    return caller


def refuse(caller: Caller, arguments: dict[str, Any], message: str) -> None:
    before = caller.snapshot()
    with pytest.raises(ValueError, match=message):
        caller.generator.forward_tensor(**arguments)
    assert all(torch.equal(a, b) for a, b in zip(before, caller.snapshot(), strict=True)), "nothing is written"


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"input_ids": [5, 6]}, "input_ids"),
        ({"input_ids": ints(5.0, 6.0)}, "input_ids: dtype"),
        ({"input_ids": ints(320, 1)}, r"input_ids\[0\]=320"),
        ({"input_ids": ints(5, 6, 7)}, "position_ids: 2 for 3"),
        ({"position_ids": ints(6, 256)}, r"position_ids\[1\]=256"),
        ({"position_ids": ints(6, 4)}, r"position_ids\[1\]=4: must be 3"),
        ({"is_prefill": 0}, "is_prefill=0"),
        ({"slots": ints(6)}, "slots: 1 for 2"),
        ({"slots": ints(32, 1)}, r"slots\[0\]=32"),
        ({"block_tables": ints(0, 1)}, "block_tables: shape"),
        ({"block_tables": ints([0, 8], [2, -1])}, r"block_tables\[0, 1\]=8"),
        ({"input_lengths": ints(7, 0)}, r"input_lengths\[1\]=0: must include its 1"),
        ({"max_seq_len": 6}, "max_seq_len=6"),
        ({"max_out_len": 0}, "max_out_len=0"),
        ({"lm_head_indices": ints(0, 2)}, r"lm_head_indices\[1\]=2"),
        ({"q_lens": [1, 2]}, "q_lens: sum 3"),
        ({"spec_mask": torch.zeros(2, 6)}, r"spec_mask: shape \[2, 6\], must be \[2, 7\]"),
        ({"spec_mask": torch.full((2, 7), torch.nan)}, "spec_mask: holds NaN"),
        ({"atten_mask": torch.zeros(6, 6)}, r"atten_mask: shape \[6, 6\]"),
        ({"adapter_ids": [None, None, None]}, "The length of `adapter_ids` should not be larger than batch size."),
        ({"adapter_ids": ["fox", None]}, r"adapter_ids\[0\]='fox'"),
        ({"temperature": 1.0}, "'temperature'"),
    ],
)
def test_wrong_arguments_of_a_decode(changes: dict[str, Any], named: str, caller: Caller) -> None:
    refuse(caller, {**caller.arguments({0: [5], 1: [6]}, False), **changes}, named)


@pytest.mark.parametrize("adapter_ids", [None, [], [None], [None, "base"]])
def test_the_base_model_is_an_adapter_that_is_there(adapter_ids: list[str | None] | None, caller: Caller) -> None:
    assert caller.decode({0: [5], 1: [6]}, adapter_ids=adapter_ids, q_lens=[], max_out_len=1).shape == (2, 320)


@pytest.mark.parametrize(
    ("new", "changes", "named"),
    [
        ({2: [1, 2, 3]}, {"input_lengths": ints(0)}, r"input_lengths\[0\]=0"),
        ({2: [1, 2, 3]}, {"input_lengths": ints(4), "max_seq_len": 4}, "input_ids: 3 tokens"),
        ({2: [1], 3: [2]}, {"input_lengths": ints(2, 1), "max_seq_len": 2}, "input_ids: 2 tokens"),
        ({2: [1, 2], 3: [2]}, {"position_ids": ints(0, 1, 2)}, r"position_ids\[2\]=2: must be 0"),
        ({2: [1, 2]}, {"spec_mask": torch.zeros(2, 2)}, "spec_mask: is for decode"),
        ({2: [1, 2]}, {"q_lens": [2], "input_lengths": ints(1)}, r"input_lengths\[0\]=1"),
    ],
)
def test_wrong_arguments_of_a_prefill(
    new: dict[int, list[int]], changes: dict[str, Any], named: str, caller: Caller
) -> None:
    refuse(caller, {**caller.arguments(new, True), **changes}, named)


def test_an_empty_batch_is_refused(caller: Caller) -> None:
    empty = torch.empty(0, dtype=torch.int64)
    names = ("input_ids", "position_ids", "slots", "input_lengths")
    for is_prefill in (True, False):
        arguments = caller.arguments({0: [5]}, is_prefill) | dict.fromkeys(names, empty)
        refuse(caller, {**arguments, "block_tables": torch.empty(0, 1, dtype=torch.int64)}, "input_lengths: is empty")


# --- slots and blocks that contradict each other -----------------------------------------------------------------


def test_a_slot_that_is_not_where_the_block_table_puts_the_token_is_refused(caller: Caller) -> None:
    arguments = caller.arguments({0: [5], 1: [6]}, False)
    right = arguments["slots"].tolist()
    wrong = torch.tensor([right[0], caller.slot(0, 0)])
    refuse(caller, {**arguments, "slots": wrong}, rf"slots\[1\]={wrong[1]}: .* slot {right[1]}$")
    swapped = {**arguments, "block_tables": arguments["block_tables"].flip(0)}
    refuse(caller, swapped, r"block_tables\[0, 1\]: token 4 of request 0")


def test_a_token_without_a_block_is_refused(caller: Caller) -> None:
    arguments = caller.arguments({0: [5], 1: [6]}, False)
    for page, token in ((0, 0), (1, 4)):
        lost = arguments["block_tables"].clone()
        lost[0, page] = -1
        refuse(caller, {**arguments, "block_tables": lost}, rf"block_tables\[0, {page}\]: token {token} of request 0")
    lost = caller.arguments({2: [1]}, True) | {"block_tables": ints([-1])[None, 0]}
    refuse(caller, lost, r"slots\[0\].* block_tables, token 0 of request 0 has no block")
    narrow = {**arguments, "block_tables": arguments["block_tables"][:, :1]}
    for slots in (arguments["slots"], ints(-1, -1)):
        refuse(caller, {**narrow, "slots": slots}, r"block_tables\[0, 1\]: token 4 of request 0")


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


@pytest.mark.parametrize("tokens", [{2: [3], 1: [2], 0: [1]}, {0: [3, 4], 1: [5, 6]}])
def test_a_mask_that_could_be_read_in_two_ways_is_refused_unless_both_say_the_same(
    tokens: dict[int, list[int]], generator: GeneratorTorch
) -> None:
    """As many new tokens as the longest sequence is long: a square of tokens, or of indices."""
    caller, is_prefill = Caller(generator, 8, 4), len(tokens) == 2
    caller.prefill({0: [1, 2]} if is_prefill else {1: [5], 2: [6, 7]})
    arguments = caller.arguments(tokens, is_prefill)
    mask = torch.zeros(len(arguments["input_ids"]), len(arguments["input_ids"]))
    expected = generator.forward_tensor(**arguments)
    logits = generator.forward_tensor(**arguments, atten_mask=mask)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    mask[-1, 1] = -1e9
    refuse(caller, {**arguments, "atten_mask": mask}, "atten_mask: shape")


# --- the cache ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda kv: kv[:2], "kv_cache: 2"),
        (lambda kv: [kv[0], (kv[1][0].flatten(0, 1), kv[1][1]), kv[2]], r"kv_cache\[1\] K: shape \[32, 2, 16\]"),
        (lambda kv: [tuple(t.transpose(1, 2) for t in pair) for pair in kv], r"kv_cache\[0\] K: shape"),
        (lambda kv: [kv[0], (kv[1][0], kv[1][1].bfloat16()), kv[2]], r"kv_cache\[1\] V: torch.bfloat16"),
        (lambda kv: [tuple(t.to("meta") for t in pair) for pair in kv], r"kv_cache\[0\] K: .* on meta"),
    ],
)
def test_a_cache_that_does_not_fit_the_model(change: Callable[[Any], Any], named: str, caller: Caller) -> None:
    arguments = caller.arguments({0: [5], 1: [6]}, False)
    refuse(caller, {**arguments, "kv_cache": change(arguments["kv_cache"])}, named)


@pytest.mark.parametrize(("num_blocks", "block_size", "named"), [(0, 4, "num_blocks=0"), (4, -1, "block_size=-1")])
def test_a_cache_of_no_size(num_blocks: int, block_size: int, named: str, generator: GeneratorTorch) -> None:
    with pytest.raises(ValueError, match=named):
        generator.new_kv_cache(num_blocks, block_size)


def test_a_generator_wants_a_model(generator: GeneratorTorch) -> None:
    with pytest.raises(ValueError, match=r"model: must be .* loaded model"):
        GeneratorTorch(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a loaded model has both already"):
        GeneratorTorch(generator.model, dtype="bfloat16")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        GeneratorTorch("nowhere")
