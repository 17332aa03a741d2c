"""npu_advance_step_flashattn: advance a whole batch by one token, in place, without the scheduler.

Between two decode passes of the same requests nothing is left to decide: the sampled token is the next input, its
position is the old length, and the block table gives its slot. So one small operator on the device prepares the next
pass, and several decode steps run without the scheduler in between (multi-step decoding).
"""

from typing import Any

import torch

from nanoinfer.device import NPU_DISPATCH_KEY, import_torch_npu
from nanoinfer.ops.advance_step_call import AdvanceStepCall

NAME = "nanoinfer::npu_advance_step_flashattn"


def npu_advance_step_flashattn(
    input_tokens: torch.Tensor,
    sampled_token_ids: torch.Tensor,
    input_positions: torch.Tensor,
    seq_lens: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_tables: torch.Tensor,
    num_seqs: int,
    num_queries: int,
    block_size: int,
    *,
    spec_token: torch.Tensor | None = None,
    accepted_num: torch.Tensor | None = None,
    formula: str = "by_row",
) -> None:
    """Make the sampled tokens the next inputs; `input_tokens, input_positions, seq_lens, slot_mapping` change in place.

    All tensors are int64 on one device; `P = block_size`, `W` blocks per row. Without speculation:

    | argument | shape | afterwards, in row `i < num_queries`, `pos` being the old `seq_lens[i]` | in padding rows |
    |---|---|---|---|
    | `input_tokens` | [num_seqs] | `sampled_token_ids[i, 0]` | 0 |
    | `sampled_token_ids` | [num_queries, 1] | | |
    | `input_positions` | [num_seqs] | `pos` | 0 |
    | `seq_lens` | [num_seqs] | `pos + 1` | unchanged |
    | `slot_mapping` | [num_seqs] | `block_tables[i, pos // P] * P + pos % P` | −1 |
    | `block_tables` | [num_seqs, W] | | |

    Rows `num_queries..num_seqs-1` are padding, which keeps shapes fixed as requests end. The Ascend operator requires at
    least one (`num_seqs > num_queries`); here `num_seqs == num_queries` is valid too, and then there is no padding.

    Speculative form, with both `spec_token` [num_seqs, K], the next drafts, and `accepted_num` [num_seqs], how many of the
    last drafts were accepted: `num_queries == num_seqs`, and the four tensors are flat, `[num_seqs * (1 + K)]`.
    `sampled_token_ids` [num_seqs, 1 + K] is padded with −1. Each sequence advances by its `accepted_num + 1`:
    `input_positions` grows by that number, `seq_lens = input_positions + 1`, `input_tokens` is the last sampled token
    before the first −1, then the drafts; slots as above, from the sequence's row of `block_tables`.

    `formula`: "by_row", the default, is the slot as above: each query reads its row of `block_tables`. "kernel" is what
    CANN's kernel for the form without speculation computes,
    `(block_tables.flatten()[pos // P] + block_tables.stride(0) * i) * P + pos % P`: the pointer arithmetic of vLLM's
    kernel (row i begins stride·i elements further on) written as if it were arithmetic on block numbers, so it reads row 0
    only. It is here for comparison.

    Raises ValueError naming the argument, before anything has changed: another dtype or device, not a tensor, an empty
    tensor, sizes below 1, a `num_queries` that does not fit, only one of `spec_token` and `accepted_num`, `accepted_num`
    outside 0..K, a negative length, a negative block number where a slot is needed; ShapeMismatchError (a ValueError) for
    shapes that do not fit and for a `block_tables` too narrow for `pos // P`. Padding rows need no blocks.

    A PyTorch operator: `torch.ops.nanoinfer.npu_advance_step_flashattn`. On an NPU the speculative form is torch_npu's.
    Source: seeds 001 and 003; vLLM's `advance_step_flashattn`.
    """
    for size_name, size in (("num_seqs", num_seqs), ("num_queries", num_queries), ("block_size", block_size)):
        if not isinstance(size, int) or isinstance(size, bool):
            raise ValueError(f"{size_name}={size!r}: must be an integer")
    tensors = {
        "input_tokens": input_tokens,
        "sampled_token_ids": sampled_token_ids,
        "input_positions": input_positions,
        "seq_lens": seq_lens,
        "slot_mapping": slot_mapping,
        "block_tables": block_tables,
    }
    speculation = {"spec_token": spec_token, "accepted_num": accepted_num}
    for name, value in tensors.items() | {item for item in speculation.items() if item[1] is not None}:
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{name}: must be a tensor, got {type(value).__name__}")
    torch.ops.nanoinfer.npu_advance_step_flashattn(
        **tensors, num_seqs=num_seqs, num_queries=num_queries, block_size=block_size, **speculation, formula=formula
    )


def _advance(*args: Any, **kwargs: Any) -> None:
    """The operator in plain torch, on CPU and CUDA."""
    AdvanceStepCall(*args, **kwargs).run()


def _advance_npu(*args: Any, **kwargs: Any) -> None:
    """torch_npu's operator for the speculative form; plain torch where CANN's kernel reads row 0 only (see `formula`)."""
    call = AdvanceStepCall(*args, **kwargs)
    if call.formula != "by_row" or not call.speculative:
        call.run()
        return
    call.plan()  # raises errors that name the argument; the device's errors do not
    speculation = {name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
    import_torch_npu().npu_advance_step_flashattn(*args, **speculation)


def _fake(*args: Any, **kwargs: Any) -> None:
    """For tracing: the operator returns nothing, and the tensors it changes keep their shapes."""


# torch_npu's schema plus `formula`. Written out, because an inferred schema has no keyword-only tensors.
torch.library.define(
    NAME,
    "(Tensor(a!) input_tokens, Tensor sampled_token_ids, Tensor(b!) input_positions, Tensor(c!) seq_lens, "
    "Tensor(d!) slot_mapping, Tensor block_tables, SymInt num_seqs, SymInt num_queries, SymInt block_size, *, "
    "Tensor? spec_token=None, Tensor? accepted_num=None, str formula='by_row') -> ()",
)
torch.library.impl(NAME, "default", _advance)
torch.library.impl(NAME, NPU_DISPATCH_KEY, _advance_npu)
torch.library.register_fake(NAME, _fake)
