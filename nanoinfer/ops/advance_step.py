"""npu_advance_step_flashattn: a whole batch one token on, in place, without a look at the scheduler.

Between two decode passes of the same requests nothing is left to decide: the token that was sampled is the next input,
its position is the old length, and its slot stands in the block table. So one small operator on the device does it, and
several decode steps run without the scheduler in between (multi-step decoding).
"""

from typing import Any

import torch

from nanoinfer.device import NPU_DISPATCH_KEY, import_torch_npu
from nanoinfer.ops.advance_step_call import AdvanceStep

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

    All tensors are int64 on one device; `P = block_size`, `W` blocks a row. Without speculation:

    | argument | shape | afterwards, in row `i < num_queries` with `pos = seq_lens[i]` as it was | in the rows after |
    |---|---|---|---|
    | `input_tokens` | [num_seqs] | `sampled_token_ids[i, 0]` | 0 |
    | `sampled_token_ids` | [num_queries, 1] | | |
    | `input_positions` | [num_seqs] | `pos` | 0 |
    | `seq_lens` | [num_seqs] | `pos + 1` | as it was |
    | `slot_mapping` | [num_seqs] | `block_tables[i, pos // P] * P + pos % P` | −1 |
    | `block_tables` | [num_seqs, W] | | |

    The rows after are padding, which keeps shapes fixed while requests end. The Ascend operator wants some
    (`num_seqs > num_queries`); here `num_seqs == num_queries` is fine too, and then nothing is padded.

    Speculative form, with both `spec_token` [num_seqs, K], the next drafts, and `accepted_num` [num_seqs], how many of the
    last drafts were right: `num_queries == num_seqs`, and the four tensors are flat, `[num_seqs * (1 + K)]`.
    `sampled_token_ids` [num_seqs, 1 + K] is padded with −1. Each row moves on by its `accepted_num + 1`:
    `input_positions` grows by so much, `seq_lens = input_positions + 1`, `input_tokens` is the last sampled token before
    the first −1, then the drafts; slots as above, from the row of `block_tables` that the sequence has.

    `formula`: "by_row" as above. "documented" is what the operator's page prints, taken literally,
    `(block_tables.flatten()[pos // P] + block_tables.stride(0) * i) * P + pos % P`: pointer arithmetic (row i begins
    stride·i elements further on) written as if it were arithmetic on block numbers. It reads row 0 only. For comparison.

    Raises ValueError naming the argument, before anything has changed: another dtype or device, no tensor, empty tensors,
    sizes below 1, `num_queries` that do not fit, one of `spec_token` and `accepted_num` alone, `accepted_num` outside
    0..K, a negative length, a block number below 0 where a slot is needed; ShapeMismatchError (a ValueError) for shapes
    that do not fit and for a `block_tables` too narrow for `pos // P`. Padding rows need no blocks.

    A PyTorch operator: `torch.ops.nanoinfer.npu_advance_step_flashattn`. On an NPU it is torch_npu's own.
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
    """The operator in plain torch, for CPU and CUDA."""
    AdvanceStep(*args, **kwargs).run()


def _advance_npu(*args: Any, **kwargs: Any) -> None:
    """torch_npu's own operator where it does the same: by row, and with padding where nothing is speculated."""
    step = AdvanceStep(*args, **kwargs)
    if step.formula != "by_row" or not (step.speculative or step.num_seqs > step.num_queries):
        step.run()
        return
    step.plan()  # for its errors: the device's own do not name the argument
    speculation = {name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
    import_torch_npu().npu_advance_step_flashattn(*args, **speculation)  # older ones do not know the keywords


def _fake(*args: Any, **kwargs: Any) -> None:
    """For tracing: the operator returns nothing, and what it changes keeps its shape."""


# The schema is torch_npu's, and `formula`. Written out, because inferred ones have no keyword-only tensors.
torch.library.define(
    NAME,
    "(Tensor(a!) input_tokens, Tensor sampled_token_ids, Tensor(b!) input_positions, Tensor(c!) seq_lens, "
    "Tensor(d!) slot_mapping, Tensor block_tables, SymInt num_seqs, SymInt num_queries, SymInt block_size, *, "
    "Tensor? spec_token=None, Tensor? accepted_num=None, str formula='by_row') -> ()",
)
torch.library.impl(NAME, "default", _advance)
torch.library.impl(NAME, NPU_DISPATCH_KEY, _advance_npu)
torch.library.register_fake(NAME, _fake)
