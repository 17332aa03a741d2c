"""npu_advance_step_flashattn: advances a whole batch by one token, in place, without the scheduler.

Between two decode passes of the same requests there is nothing to decide: the sampled token is the next input, its
position is the old length, and the block table gives its slot. So one small operator on the device prepares the next
pass, and several decode passes run without the scheduler in between (multi-step decoding).
"""

from typing import Any

import torch

from nanoinfer.ascend.advance_step_call import FORMULAS, AdvanceStepCall, as_int
from nanoinfer.device import NPU_DISPATCH_KEY, import_torch_npu

NAME = "nanoinfer::npu_advance_step_flashattn"
MAX_INT32 = 2**31 - 1


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

    | argument | shape | afterwards, in row `i < num_queries` (`pos` is the old `seq_lens[i]`) | in padding rows |
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
    `input_positions` grows by that number, `seq_lens = input_positions + 1`, and `input_tokens` becomes the last sampled
    token before the first −1, followed by the drafts. Slots are as above, from the sequence's row of `block_tables`.

    `formula`: "by_row", the default, gives the slot above: each query reads its row of `block_tables`. "kernel" is what
    CANN's kernel for the form without speculation computes,
    `(block_tables.flatten()[pos // P] + block_tables.stride(0) * i) * P + pos % P`. That is the pointer arithmetic of
    vLLM's kernel (row i begins stride·i elements further on), applied to block numbers, so it reads only row 0. It is
    here for comparison.

    `accepted_num` is added without a check: it may exceed K, and is not compared with the tokens in `sampled_token_ids`.
    There are K drafts in this step, but the last step may have had another number. The pages of torch_npu and CANN state no
    upper limit, their examples pass numbers far above K, and the kernel and its golden test add whatever they get.

    Raises ValueError naming the argument, before anything has changed: for a wrong dtype or device, anything but a tensor,
    sizes that are not int64 integers, only one of `spec_token` and `accepted_num`, a negative `accepted_num`, length or
    position, a sampled token below −1 or none in a row (with speculation), a negative block number where a slot is needed.
    ShapeMismatchError (a ValueError) for sizes below 1, shapes that do not fit, an empty tensor, and a `block_tables` too
    narrow for `pos // P`. Padding rows need no blocks. The tensors that change must not share memory with one another;
    this is not checked.

    It is a PyTorch operator: `torch.ops.nanoinfer.npu_advance_step_flashattn`. In a graph of torch.compile it works on
    copies that torch makes and writes back.
    On an NPU, the speculative form is torch_npu's operator if its int32 arithmetic suffices and all tensors are contiguous.
    Everything else is this code, even on an NPU.
    Source: seeds 001 and 003; vLLM's `advance_step_flashattn`; torch_npu's and CANN's pages, and CANN's ops-nn.
    """
    sizes = {"num_seqs": num_seqs, "num_queries": num_queries, "block_size": block_size}
    tensors = {
        "input_tokens": input_tokens,
        "sampled_token_ids": sampled_token_ids,
        "input_positions": input_positions,
        "seq_lens": seq_lens,
        "slot_mapping": slot_mapping,
        "block_tables": block_tables,
        "spec_token": spec_token,
        "accepted_num": accepted_num,
    }
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor) and not (value is None and name in ("spec_token", "accepted_num")):
            raise ValueError(f"{name}: must be a tensor, got {type(value).__name__}")
    if formula not in FORMULAS:
        raise ValueError(f"formula={formula!r}: must be one of {', '.join(FORMULAS)}")
    torch.ops.nanoinfer.npu_advance_step_flashattn(
        **tensors, **{name: as_int(name, size) for name, size in sizes.items()}, formula=formula
    )


def _advance(*args: Any, **kwargs: Any) -> None:
    """The operator in plain torch, on CPU and CUDA."""
    AdvanceStepCall(*args, **kwargs).run()


def _advance_npu(*args: Any, **kwargs: Any) -> None:
    """torch_npu's operator for the speculative form, if it computes the same; plain torch otherwise.

    CANN's kernel for the other form reads only row 0 (see `formula`). The speculative kernel computes in int32, and treats
    its tensors as contiguous.
    """
    call = AdvanceStepCall(*args, **kwargs)
    if call.formula != "by_row" or not call.speculative:
        call.run()
        return
    new = call.plan()  # its errors name the argument; the device's errors do not
    tensors = [value for value in vars(call).values() if isinstance(value, torch.Tensor)]
    largest = max(int(new[name].max()) for name in ("seq_lens", "slot_mapping"))
    if largest > MAX_INT32 or not all(tensor.is_contiguous() for tensor in tensors):
        call.run()
        return
    speculation = {name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
    import_torch_npu().npu_advance_step_flashattn(*args, **speculation)


def _fake(*args: Any, **kwargs: Any) -> None:
    """For tracing: the operator returns nothing, and the tensors that it changes keep their shapes."""


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
