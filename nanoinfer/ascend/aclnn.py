"""aclnnAdvanceStep and aclnnAdvanceStepV2, the two-phase C interface of CANN (seed 003), in Python.

Phase one checks and plans, and says how much scratch memory ("workspace") the caller must provide. Phase two computes. A
serving loop runs phase one once, and phase two at every step. As in C, errors are status numbers and nothing raises; here a
status also has a message. V2 is the speculative form. The results are those of `npu_advance_step_flashattn` with its
default formula, "by_row".
Source: seed 003; CANN's pages of both interfaces, and the checks of its ops-nn, `advance_step` tiling.
"""

from dataclasses import dataclass
from typing import Any

import torch

from nanoinfer.ascend.advance_step import npu_advance_step_flashattn
from nanoinfer.ascend.advance_step_call import WRITTEN, AdvanceStepCall, as_int
from nanoinfer.device import on_stream
from nanoinfer.errors import ShapeMismatchError

ACLNN_SUCCESS = 0
ACLNN_ERR_PARAM_NULLPTR = 161001
ACLNN_ERR_PARAM_INVALID = 161002
ACLNN_ERR_RUNTIME_ERROR = 361001  # the device failed, for example because it ran out of memory
ACLNN_ERR_INNER_TILING_ERROR = 561002  # CANN's answer when shapes and sizes do not fit together


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
    """A planned call. It holds the tensors themselves and reads their values at each run, so it can run many times."""

    call: AdvanceStepCall


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
    """Phase one: check everything and change nothing → `(status, workspace_size in bytes, executor)`.

    The arguments are those of `npu_advance_step_flashattn` without speculation. The four tensors that change may also be
    [num_seqs, 1], as in CANN's example. `workspace_size` is 0: the operator needs no scratch memory from the caller. Never
    raises; if the status is not 0, the executor is None:

    - 161001, a null pointer: a tensor is None.
    - 161002, an invalid parameter: an argument is not a tensor, or has a wrong dtype or device; sizes are not integers;
      lengths or block numbers are negative.
    - 561002, what CANN's tiling refuses: sizes below 1, an empty tensor, shapes that do not fit together,
      `num_seqs <= num_queries` (CANN requires padding rows, the operator here does not), and a `block_tables` that is too
      narrow. CANN's example has such a table; its kernel reads on in the next row and does not notice.
    - 361001: torch or the device failed.
    """
    tensors = _tensors(input_tokens, sampled_token_ids, input_positions, seq_lens, slot_mapping, block_tables)
    return _phase_one(tensors, num_seqs, num_queries, block_size)


def aclnn_advance_step_v2_get_workspace_size(
    input_tokens: torch.Tensor | None,
    sampled_token_ids: torch.Tensor | None,
    input_positions: torch.Tensor | None,
    seq_lens: torch.Tensor | None,
    slot_mapping: torch.Tensor | None,
    block_tables: torch.Tensor | None,
    spec_token: torch.Tensor | None,
    accepted_num: torch.Tensor | None,
    num_seqs: int,
    num_queries: int,
    block_size: int,
) -> tuple[AclnnStatus, int, AclOpExecutor | None]:
    """Phase one of aclnnAdvanceStepV2, the speculative form. Arguments are in CANN's order, which differs from torch_npu's.

    It is like `aclnn_advance_step_get_workspace_size`, except: `spec_token` and `accepted_num` must be given, too (161001);
    `num_seqs` must equal `num_queries` (561002); the tensors that change are flat, [num_seqs * (1 + K)], as in CANN's code
    and example, or [num_seqs, 1 + K], as on its page. `accepted_num` may exceed K, as in CANN's example.
    """
    tensors = _tensors(input_tokens, sampled_token_ids, input_positions, seq_lens, slot_mapping, block_tables)
    speculation = {"spec_token": spec_token, "accepted_num": accepted_num}
    return _phase_one(tensors | speculation, num_seqs, num_queries, block_size)


def aclnn_advance_step(
    workspace: torch.Tensor | None, workspace_size: int, executor: AclOpExecutor | None, stream: Any = None
) -> AclnnStatus:
    """Phase two: run what phase one planned. The executor's tensors change in place. May be called again and again.

    `workspace`: memory of at least `workspace_size` bytes, or None if that is 0. `stream`: the device's stream to run on,
    None for the current one; ignored on a CPU.

    Never raises. Returns status 161001 without an executor, or without a workspace if one is needed; 161002 for a workspace
    that is too small or not a tensor, an executor of the other interface, or tensors with invalid values; 561002 when the
    sequences have outgrown `block_tables`; 361001 when torch or the device failed. With any of these except the last,
    nothing has changed.
    """
    return _phase_two(workspace, workspace_size, executor, stream, speculative=False)


def aclnn_advance_step_v2(
    workspace: torch.Tensor | None, workspace_size: int, executor: AclOpExecutor | None, stream: Any = None
) -> AclnnStatus:
    """Phase two of aclnnAdvanceStepV2. It is like `aclnn_advance_step`."""
    return _phase_two(workspace, workspace_size, executor, stream, speculative=True)


def _tensors(*tensors: torch.Tensor | None) -> dict[str, torch.Tensor | None]:
    """The tensors that both interfaces have, by name and in order."""
    return dict(zip(list(AdvanceStepCall.__annotations__)[: len(tensors)], tensors, strict=True))


def _phase_one(
    tensors: dict[str, Any], num_seqs: Any, num_queries: Any, block_size: Any
) -> tuple[AclnnStatus, int, AclOpExecutor | None]:
    for name, tensor in tensors.items():
        if tensor is None:
            return AclnnStatus(ACLNN_ERR_PARAM_NULLPTR, f"{name}: null pointer"), 0, None
        if not isinstance(tensor, torch.Tensor):
            return AclnnStatus(ACLNN_ERR_PARAM_INVALID, f"{name}: must be a tensor"), 0, None
    try:
        sizes = {"num_seqs": num_seqs, "num_queries": num_queries, "block_size": block_size}
        sizes = {name: as_int(name, size) for name, size in sizes.items()}
        spec_token = tensors.get("spec_token")
        rows = None if spec_token is None or not spec_token.ndim else (sizes["num_seqs"], 1 + spec_token.shape[-1])
        arguments: dict[str, Any] = {name: _flat(name, tensor, rows) for name, tensor in tensors.items()}
        call = AdvanceStepCall(**arguments, **sizes)
        if not call.speculative and num_seqs == num_queries:
            raise ShapeMismatchError(f"num_seqs={num_seqs}: must be greater than num_queries={num_queries}")
        call.plan()
    except Exception as error:  # this interface answers with a status, whatever the arguments are
        return _status(error), 0, None
    return AclnnStatus(ACLNN_SUCCESS), 0, AclOpExecutor(call)


def _flat(name: str, tensor: torch.Tensor, rows: tuple[int, int] | None) -> torch.Tensor:
    """`tensor`, flattened where CANN allows two dimensions: [n, 1] and, with speculation, `rows` = [num_seqs, 1 + K]."""
    if name not in (*WRITTEN, "accepted_num") or tensor.ndim != 2:
        return tensor
    if tensor.shape[1] == 1:
        return tensor[:, 0]
    return tensor.view(-1) if tensor.shape == rows and tensor.is_contiguous() and name in WRITTEN else tensor


def _phase_two(workspace: Any, workspace_size: Any, executor: Any, stream: Any, speculative: bool) -> AclnnStatus:
    try:
        missing = "executor" if executor is None else "workspace" if workspace is None and workspace_size else None
        if missing:
            return AclnnStatus(ACLNN_ERR_PARAM_NULLPTR, f"{missing}: null pointer, workspace_size={workspace_size}")
        call = executor.call
        if call.speculative != speculative:
            raise ValueError(f"executor: was planned by phase one of aclnnAdvanceStep{'' if speculative else 'V2'}")
        room = 0 if workspace is None else workspace.nbytes
        if not 0 <= as_int("workspace_size", workspace_size) <= room:
            raise ValueError(f"workspace_size={workspace_size}: must be in 0..{room}, the bytes of workspace")
        with on_stream(call.input_tokens.device, stream):
            npu_advance_step_flashattn(**vars(call))
    except Exception as error:  # as in phase one
        return _status(error)
    return AclnnStatus(ACLNN_SUCCESS)


def _status(error: Exception) -> AclnnStatus:
    """The status for an exception, with its message."""
    code = ACLNN_ERR_PARAM_INVALID
    if isinstance(error, ShapeMismatchError):
        code = ACLNN_ERR_INNER_TILING_ERROR
    elif isinstance(error, (RuntimeError, MemoryError)):
        code = ACLNN_ERR_RUNTIME_ERROR
    return AclnnStatus(code, str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")
