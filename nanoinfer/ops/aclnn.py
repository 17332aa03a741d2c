"""aclnnAdvanceStep, the two-phase C interface of CANN (seed 003), in Python.

Phase one checks and plans, and says how much scratch memory ("workspace") the caller must provide; phase two computes. A
serving loop runs phase one once and phase two at every step. Errors are status numbers, as in C; here a status also
carries a message.
"""

from dataclasses import dataclass
from typing import Any

import torch

from nanoinfer.device import on_stream
from nanoinfer.errors import ShapeMismatchError
from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from nanoinfer.ops.advance_step_call import AdvanceStepCall

ACLNN_SUCCESS = 0
ACLNN_ERR_PARAM_NULLPTR = 161001
ACLNN_ERR_PARAM_INVALID = 161002
ACLNN_ERR_INNER_TILING_ERROR = 561002  # what CANN answers when shapes do not fit together


class AclnnStatus(int):
    """A status code: 0 for success. `message` says what is wrong, as aclGetRecentErrMsg does."""

    message: str

    def __new__(cls, code: int, message: str = "") -> "AclnnStatus":
        status = super().__new__(cls, code)
        status.message = message
        return status

    def __repr__(self) -> str:
        return f"{int(self)} ({self.message})" if self.message else str(int(self))


@dataclass(frozen=True, eq=False)
class AclOpExecutor:
    """A planned call. It holds the tensors themselves and reads their values at each run, so it may run many times."""

    call: AdvanceStepCall
    workspace_size: int


def aclnn_advance_step_get_workspace_size(
    input_tokens: torch.Tensor | None,
    sampled_token_ids: torch.Tensor | None,
    input_positions: torch.Tensor | None,
    seq_lens: torch.Tensor | None,
    slot_mapping: torch.Tensor | None,
    block_tables: torch.Tensor | None,
    num_seqs: int,
    num_queries: int,
    block_size: int,
) -> tuple[AclnnStatus, int, AclOpExecutor | None]:
    """Phase one: check everything, change nothing → `(status, workspace_size in bytes, executor)`.

    The arguments are those of `npu_advance_step_flashattn` without speculation. `workspace_size` is 0: the operator needs
    no scratch memory from the caller. Never raises; with a status other than 0 the executor is None:

    - 161001, a null pointer: a tensor is None.
    - 161002, an invalid parameter: an argument that is not a tensor, a dtype other than int64, an empty tensor, sizes that
      are not integers or below 1, negative lengths or block numbers.
    - 561002, shapes that do not fit together, including `num_seqs <= num_queries` (CANN requires padding rows, the operator
      here does not) and a `block_tables` that is too narrow.
    """
    arguments: dict[str, Any] = {
        "input_tokens": input_tokens,
        "sampled_token_ids": sampled_token_ids,
        "input_positions": input_positions,
        "seq_lens": seq_lens,
        "slot_mapping": slot_mapping,
        "block_tables": block_tables,
    }
    for name, tensor in arguments.items():
        if tensor is None:
            return AclnnStatus(ACLNN_ERR_PARAM_NULLPTR, f"{name}: null pointer"), 0, None
        if not isinstance(tensor, torch.Tensor):
            return _invalid(f"{name}: must be a tensor, got {type(tensor).__name__}"), 0, None
    for name, size in (("num_seqs", num_seqs), ("num_queries", num_queries), ("block_size", block_size)):
        if not isinstance(size, int) or isinstance(size, bool):
            return _invalid(f"{name}={size!r}: must be an integer"), 0, None
    if 1 <= num_seqs <= num_queries:
        message = f"num_seqs={num_seqs}: must be greater than num_queries={num_queries}"
        return AclnnStatus(ACLNN_ERR_INNER_TILING_ERROR, message), 0, None
    call = AdvanceStepCall(**arguments, num_seqs=num_seqs, num_queries=num_queries, block_size=block_size)
    try:
        call.plan()
    except ValueError as error:
        return _status(error), 0, None
    return AclnnStatus(ACLNN_SUCCESS), 0, AclOpExecutor(call, workspace_size=0)


def aclnn_advance_step(
    workspace: torch.Tensor | None, workspace_size: int, executor: AclOpExecutor | None, stream: Any = None
) -> AclnnStatus:
    """Phase two: run what phase one planned; the executor's tensors change in place. May be called again and again.

    `workspace`: memory of at least `workspace_size` bytes, or None where that is 0. `stream`: the device's stream to run
    on, None for the current one; ignored on a CPU.

    Returns status 161001 without an executor, or without a workspace where one is needed; 161002 for a workspace that is
    too small, or for tensors with invalid values; 561002 when the sequences have outgrown `block_tables`. With any of
    these, nothing has changed.
    """
    if executor is None:
        return AclnnStatus(ACLNN_ERR_PARAM_NULLPTR, "executor: null pointer")
    if not isinstance(executor, AclOpExecutor):
        return _invalid(f"executor: must be what phase one returned, got {type(executor).__name__}")
    if not isinstance(workspace_size, int) or workspace_size < executor.workspace_size:
        return _invalid(f"workspace_size={workspace_size!r}: must be at least {executor.workspace_size}")
    if workspace is None and workspace_size:
        return AclnnStatus(ACLNN_ERR_PARAM_NULLPTR, f"workspace: null pointer with workspace_size={workspace_size}")
    if workspace is not None and workspace.nbytes < workspace_size:
        return _invalid(f"workspace: {workspace.nbytes} bytes, must be at least workspace_size={workspace_size}")
    call = executor.call
    try:
        with on_stream(call.input_tokens.device, stream):
            npu_advance_step_flashattn(
                call.input_tokens,
                call.sampled_token_ids,
                call.input_positions,
                call.seq_lens,
                call.slot_mapping,
                call.block_tables,
                call.num_seqs,
                call.num_queries,
                call.block_size,
            )
    except ValueError as error:
        return _status(error)
    return AclnnStatus(ACLNN_SUCCESS)


def _invalid(message: str) -> AclnnStatus:
    return AclnnStatus(ACLNN_ERR_PARAM_INVALID, message)


def _status(error: ValueError) -> AclnnStatus:
    if isinstance(error, ShapeMismatchError):
        return AclnnStatus(ACLNN_ERR_INNER_TILING_ERROR, str(error))
    return _invalid(str(error))
