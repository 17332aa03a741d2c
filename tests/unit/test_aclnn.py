"""The two phases of aclnnAdvanceStep: statuses, and an executor that runs again and again."""

from typing import Any

import pytest
import torch

from nanoinfer.ops.aclnn import aclnn_advance_step, aclnn_advance_step_get_workspace_size
from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from tests.helpers.advance_step import example, lists

TENSORS = [name for name, value in example().items() if isinstance(value, torch.Tensor)]


def test_phase_one_plans_and_changes_nothing() -> None:
    arguments = example()
    status, workspace_size, executor = aclnn_advance_step_get_workspace_size(*arguments.values())
    assert (status, workspace_size, status.message) == (0, 0, "")
    assert executor is not None
    assert lists(arguments) == lists(example())


def test_phase_two_runs_the_same_executor_again_and_again() -> None:
    """Each time on what the tensors hold then: as the operator itself, called as often."""
    planned, called = example(), example()
    _, workspace_size, executor = aclnn_advance_step_get_workspace_size(**planned)
    workspace = torch.empty(workspace_size, dtype=torch.uint8)
    for step in range(4):
        for arguments in (planned, called):
            arguments["sampled_token_ids"].copy_(torch.tensor([[step], [step + 10]]))
        assert aclnn_advance_step(workspace, workspace_size, executor, None) == 0
        npu_advance_step_flashattn(**called)
        assert lists(planned) == lists(called)
    before = lists(planned)
    status = aclnn_advance_step(None, 0, executor, None)  # row 1 has used up its two blocks
    assert status == 561002
    assert "block_tables" in status.message
    assert lists(planned) == before


@pytest.mark.parametrize("name", TENSORS)
def test_a_missing_tensor_is_a_null_pointer(name: str) -> None:
    status, workspace_size, executor = aclnn_advance_step_get_workspace_size(**{**example(), name: None})
    assert (int(status), workspace_size, executor) == (161001, 0, None)
    assert name in status.message


@pytest.mark.parametrize("name", TENSORS)
def test_a_wrong_dtype_or_an_empty_tensor_is_an_invalid_parameter(name: str) -> None:
    for wrong in (example()[name].int(), example()[name][:0], [1, 2]):
        status, _, executor = aclnn_advance_step_get_workspace_size(**{**example(), name: wrong})
        assert (int(status), executor) == (161002, None)
        assert name in status.message


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"num_seqs": 0}, 161002),
        ({"num_queries": -1}, 161002),
        ({"block_size": 0}, 161002),
        ({"block_size": 4.0}, 161002),
        ({"num_queries": True}, 161002),
        ({"num_queries": 5}, 561002),
        ({"num_queries": 4, "sampled_token_ids": [[7], [8], [9], [6]], "seq_lens": [3, 4, 0, 7]}, 561002),
        ({"seq_lens": [-1, 4, 9, 9]}, 161002),
        ({"block_tables": [[-1, 2], [1, 7], [2, 8], [3, 9]]}, 161002),
        ({"num_seqs": 3}, 561002),
        ({"num_queries": 3}, 561002),
        ({"input_tokens": [1, 2, 3]}, 561002),
        ({"sampled_token_ids": [[7, 7], [8, 8]]}, 561002),
        ({"block_tables": [[5], [1], [2], [3]]}, 561002),
        ({"block_size": 2}, 561002),
    ],
)
def test_statuses_of_phase_one(changes: dict[str, Any], code: int) -> None:
    arguments = example(**changes)
    before = lists(arguments)
    status, workspace_size, executor = aclnn_advance_step_get_workspace_size(**arguments)
    assert (int(status), workspace_size, executor) == (code, 0, None)
    assert status.message
    assert str(code) in repr(status)
    assert lists(arguments) == before


def test_statuses_of_phase_two() -> None:
    arguments = example()
    _, _, executor = aclnn_advance_step_get_workspace_size(**arguments)
    small = torch.empty(4, dtype=torch.uint8)
    before = lists(arguments)
    for call, code, message in (
        ((None, 0, None), 161001, "executor"),
        ((None, 0, "plan"), 161002, "executor"),
        ((None, -1, executor), 161002, "workspace_size=-1"),
        ((None, 8, executor), 161001, "workspace"),
        ((small, 8, executor), 161002, "4 bytes"),
    ):
        status = aclnn_advance_step(*call)  # type: ignore[arg-type]
        assert int(status) == code
        assert message in status.message
    assert lists(arguments) == before
    arguments["seq_lens"][0] = -1  # between the phases the caller has spoilt a tensor
    assert aclnn_advance_step(None, 0, executor) == 161002
    arguments["seq_lens"][0] = 3
    assert aclnn_advance_step(small, 4, executor, stream=object()) == 0
    assert arguments["slot_mapping"].tolist() == [23, 28, -1, -1]
