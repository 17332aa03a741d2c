"""What forward_tensor refuses: by name, and before anything is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer.paged.generator import GeneratorTorch
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
    ("changes", "message"),
    [
        ({"input_ids": [5, 6]}, "input_ids: must be a tensor, got list"),
        ({"input_ids": ints(5.0, 6.0)}, "input_ids: dtype torch.float32"),
        ({"input_ids": ints(True, False)}, "input_ids: dtype torch.bool"),
        ({"input_ids": ints([5], [6])}, r"input_ids: shape \[2, 1\], must have 1 dimension$"),
        ({"input_ids": ints(5, -1)}, r"input_ids\[1\]=-1: must be in 0..319"),
        ({"input_ids": ints(320, 1)}, r"input_ids\[0\]=320: must be in 0..319"),
        ({"input_ids": ints(5, 6, 7)}, "position_ids: 2 for 3 tokens of input_ids"),
        ({"position_ids": ints(6)}, "position_ids: 1 for 2 tokens of input_ids"),
        ({"position_ids": ints(6, 256)}, r"position_ids\[1\]=256: must be in 0..255"),
        ({"position_ids": ints(6, 4)}, r"position_ids\[1\]=4: must be 3, its index in request 1"),
        ({"position_ids": ints(0, 3)}, r"position_ids\[0\]=0: must be 6"),
        ({"is_prefill": 0}, "is_prefill=0"),
        ({"is_prefill": None}, "is_prefill=None"),
        ({"slots": ints(6)}, "slots: 1 for 2 tokens of input_ids"),
        ({"slots": ints(-2, 1)}, r"slots\[0\]=-2: must be in -1..31"),
        ({"slots": ints(32, 1)}, r"slots\[0\]=32: must be in -1..31"),
        ({"slots": ints(0.0, 1.0)}, "slots: dtype torch.float32"),
        ({"block_tables": ints(0, 1)}, r"block_tables: shape \[2\], must have 2 dimensions"),
        ({"block_tables": ints([0, 1])}, "block_tables: 1 for 2 requests of input_lengths"),
        ({"block_tables": ints([0, 1], [2, -2])}, r"block_tables\[1, 1\]=-2: must be in -1..7"),
        ({"block_tables": ints([0, 8], [2, -1])}, r"block_tables\[0, 1\]=8: must be in -1..7"),
        ({"block_tables": ints([0, 1], [2, 3]).to(torch.int16)}, "block_tables: dtype torch.int16"),
        ({"input_lengths": ints(7)}, "block_tables: 2 for 1 requests of input_lengths"),
        ({"input_lengths": ints([7, 4])}, r"input_lengths: shape \[1, 2\]"),
        ({"input_lengths": [7, 4], "adapter_ids": [None]}, "input_lengths: must be a tensor"),
        ({"input_lengths": ints(7, -1)}, r"input_lengths\[1\]=-1: must be at least 0"),
        ({"input_lengths": ints(7, 0)}, r"input_lengths\[1\]=0: must include its 1 new tokens"),
        ({"input_lengths": ints(8, 4), "max_seq_len": 8}, r"position_ids\[0\]=6: must be 7"),
        ({"max_seq_len": 6}, "max_seq_len=6: must be at least the longest of input_lengths, 7"),
        ({"max_seq_len": 7.0}, "max_seq_len=7.0: must be an integer"),
        ({"max_seq_len": True}, "max_seq_len=True"),
        ({"lm_head_indices": ints(0, 2)}, r"lm_head_indices\[1\]=2: must be in 0..1"),
        ({"lm_head_indices": ints(-1)}, r"lm_head_indices\[0\]=-1: must be in 0..1"),
        ({"lm_head_indices": ints(0.5)}, "lm_head_indices: dtype"),
        ({"q_lens": [1]}, "q_lens: 1 for 2 requests"),
        ({"q_lens": [1, 2]}, "q_lens: sum 3, must be the 2 tokens of input_ids"),
        ({"q_lens": [2, 0]}, r"q_lens\[1\]=0: must be at least 1"),
        ({"q_lens": [1.0, 1.0]}, "q_lens: expected integers"),
        ({"q_lens": 1}, "q_lens: expected one dimension"),
        ({"max_out_len": 0}, "max_out_len=0: must be an integer of at least 1"),
        ({"max_out_len": None}, "max_out_len=None"),
        ({"spec_mask": torch.zeros(2, 6)}, r"spec_mask: shape \[2, 6\], must be \[sum.* = \[2, 7\]"),
        ({"spec_mask": torch.zeros(7)}, r"spec_mask: shape \[7\]"),
        ({"spec_mask": torch.ones(2, 7, dtype=torch.bool)}, "spec_mask: dtype torch.bool, must be floating point"),
        ({"spec_mask": torch.zeros(2, 7).int()}, "spec_mask: dtype torch.int32"),
        ({"spec_mask": torch.full((2, 7), torch.nan)}, "spec_mask: holds NaN"),
        ({"spec_mask": [[0.0] * 7] * 2}, "spec_mask: must be a tensor"),
        ({"atten_mask": torch.zeros(2, 8)}, r"atten_mask: shape \[2, 8\], must be \[2, 7\]"),
        ({"atten_mask": torch.zeros(6, 6)}, r"atten_mask: shape \[6, 6\]"),
        ({"atten_mask": torch.zeros(3, 7, 7)}, r"atten_mask: shape \[3, 7, 7\]"),
        ({"atten_mask": torch.full((2, 7), torch.inf)}, r"atten_mask: holds NaN or \+inf"),
        ({"atten_mask": torch.zeros(2, 7).long()}, "atten_mask: dtype torch.int64"),
        ({"adapter_ids": [None, None, None]}, "The length of `adapter_ids` should not be larger than batch size."),
        ({"adapter_ids": ["fox", None]}, r"adapter_ids\[0\]='fox': no such adapter"),
        ({"adapter_ids": "fox"}, "adapter_ids: must be a list of names, got str"),
        ({"temperature": 1.0}, "no argument 'temperature'; has q_lens, spec_mask"),
    ],
)
def test_wrong_arguments_of_a_decode(changes: dict[str, Any], message: str, caller: Caller) -> None:
    refuse(caller, {**caller.arguments({0: [5], 1: [6]}, False), **changes}, message)


def test_an_unknown_keyword_is_what_python_raises_too(caller: Caller) -> None:
    with pytest.raises(TypeError, match="'top_k'"):
        caller.decode({0: [5]}, top_k=1)


@pytest.mark.parametrize("adapter_ids", [None, [], [None], [None, "base"]])
def test_the_base_model_is_an_adapter_that_is_there(adapter_ids: list[str | None] | None, caller: Caller) -> None:
    assert caller.decode({0: [5], 1: [6]}, adapter_ids=adapter_ids, q_lens=[], max_out_len=1).shape == (2, 320)


@pytest.mark.parametrize(
    ("new", "changes", "message"),
    [
        ({2: [1, 2, 3]}, {"input_lengths": ints(0)}, r"input_lengths\[0\]=0: must be at least 1"),
        (
            {2: [1, 2, 3]},
            {"input_lengths": ints(2)},
            "input_ids: 3 tokens, must be 2 by position_ids and input_lengths",
        ),
        ({2: [1, 2, 3]}, {"input_lengths": ints(4), "max_seq_len": 4}, "input_ids: 3 tokens, must be 4 by"),
        ({2: [1], 3: [2]}, {"input_lengths": ints(2, 1), "max_seq_len": 2}, "none left for request 1"),
        (
            {2: [1, 2], 3: [2]},
            {"position_ids": ints(0, 1, 2)},
            r"position_ids\[2\]=2: must be 0, its index in request 1",
        ),
        ({0: [1], 3: [2]}, {"position_ids": ints(7, 0)}, r"position_ids\[0\]=7: must be below input_lengths\[0\]=7"),
        ({2: [1, 2]}, {"spec_mask": torch.zeros(2, 2)}, "spec_mask: is for decode"),
        ({2: [1, 2]}, {"q_lens": [3]}, "q_lens: sum 3"),
        (
            {2: [1, 2]},
            {"q_lens": [2], "input_lengths": ints(1)},
            r"input_lengths\[0\]=1: must include its 2 new tokens",
        ),
    ],
)
def test_wrong_arguments_of_a_prefill(
    new: dict[int, list[int]], changes: dict[str, Any], message: str, caller: Caller
) -> None:
    refuse(caller, {**caller.arguments(new, True), **changes}, message)


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
    refuse(
        caller, {**arguments, "slots": wrong}, rf"slots\[1\]={wrong[1]}: block_tables\[1, 0\] .* into slot {right[1]}"
    )
    swapped = arguments["block_tables"].flip(0)
    refuse(
        caller, {**arguments, "block_tables": swapped}, r"block_tables\[0, 1\]=-1: token 4 of request 0 needs a block"
    )


def test_a_token_without_a_block_is_refused(caller: Caller) -> None:
    arguments = caller.arguments({0: [5], 1: [6]}, False)
    tables = arguments["block_tables"]
    lost = tables.clone()
    lost[0, 0] = -1
    refuse(caller, {**arguments, "block_tables": lost}, r"block_tables\[0, 0\]=-1: token 0 of request 0 needs a block")
    lost = tables.clone()
    lost[0, 1] = -1
    message = r"block_tables\[0, 1\]=-1: token 4 of request 0 needs a block"
    refuse(caller, {**arguments, "block_tables": lost}, message)
    lost = caller.arguments({2: [1]}, True) | {"block_tables": ints([-1])[None, 0]}
    refuse(caller, lost, r"block_tables\[0, 0\]=-1: token 0 of request 0 needs a block")


def test_block_tables_that_are_too_narrow_are_refused(caller: Caller) -> None:
    arguments = caller.arguments({0: [5], 1: [6]}, False)
    narrow = arguments["block_tables"][:, :1]
    refuse(caller, {**arguments, "block_tables": narrow}, "block_tables: 1 blocks per row, too few for token 6")
    unwritten = {**arguments, "block_tables": narrow, "slots": ints(-1, -1)}
    refuse(caller, unwritten, "block_tables: 1 blocks per row, too few for the 6 tokens before this pass of request 0")


# --- the cache ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kv: kv[:2], "kv_cache: 2, must be a list of 3"),
        (lambda kv: [*kv, kv[0]], "kv_cache: 4, must be a list of 3"),
        (lambda kv: kv[0][0], "kv_cache: Tensor, must be a list of 3"),
        (lambda kv: [kv[0], kv[1], kv[2][0]], r"kv_cache\[2\]: must be a pair of tensors"),
        (lambda kv: [kv[0], kv[1], (kv[2][0], None)], r"kv_cache\[2\]: must be a pair of tensors"),
        (lambda kv: [kv[0], (kv[1][0].flatten(0, 1), kv[1][1]), kv[2]], r"kv_cache\[1\] K: shape \[32, 2, 16\]"),
        (
            lambda kv: [kv[0], kv[1], (kv[2][0], kv[2][1][:4])],
            r"kv_cache\[2\] V: shape \[4, 4, 2, 16\], must be \[8, 4",
        ),
        (
            lambda kv: [tuple(t.transpose(1, 2) for t in pair) for pair in kv],
            r"must be \[num_blocks, block_size, 2, 16\]",
        ),
        (lambda kv: [tuple(t[:0] for t in pair) for pair in kv], r"kv_cache\[0\] K: shape \[0, 4, 2, 16\]"),
        (lambda kv: [kv[0], (kv[1][0], kv[1][1].bfloat16()), kv[2]], r"kv_cache\[1\] V: torch.bfloat16 on cpu"),
        (lambda kv: [tuple(t.to("meta") for t in pair) for pair in kv], r"kv_cache\[0\] K: torch.float32 on meta"),
    ],
)
def test_a_cache_that_does_not_fit_the_model(change: Callable[[Any], Any], message: str, caller: Caller) -> None:
    arguments = caller.arguments({0: [5], 1: [6]}, False)
    refuse(caller, {**arguments, "kv_cache": change(arguments["kv_cache"])}, message)


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "message"),
    [(0, 4, "num_blocks=0"), (4, -1, "block_size=-1"), (4, 1.5, "block_size=1.5")],
)
def test_a_cache_of_no_size(num_blocks: int, block_size: Any, message: str, generator: GeneratorTorch) -> None:
    with pytest.raises(ValueError, match=message):
        generator.new_kv_cache(num_blocks, block_size)


def test_a_generator_wants_a_model(generator: GeneratorTorch) -> None:
    with pytest.raises(ValueError, match=r"model: must be .* loaded model"):
        GeneratorTorch(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a loaded model has both already"):
        GeneratorTorch(generator.model, dtype="bfloat16")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        GeneratorTorch("nowhere")
