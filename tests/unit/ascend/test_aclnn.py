"""The two phases of aclnnAdvanceStep and of its V2: statuses, and an executor that runs again and again."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from nanoinfer.ascend import aclnn
from nanoinfer.ascend.aclnn import (
    aclnn_advance_step,
    aclnn_advance_step_get_workspace_size,
    aclnn_advance_step_v2,
    aclnn_advance_step_v2_get_workspace_size,
)
from nanoinfer.ascend.advance_step import npu_advance_step_flashattn
from tests.helpers.advance_step import IN_PLACE, example, lists, loop, speculative_example

TENSORS = [name for name, value in example().items() if isinstance(value, torch.Tensor)]
SPECULATIVE_TENSORS = [name for name, value in speculative_example().items() if isinstance(value, torch.Tensor)]


def test_phase_two_runs_the_same_executor_again_and_again() -> None:
    """Each time on what the tensors hold then: as the operator itself, called as often."""
    planned, called = example(), example()
    status, workspace_size, executor = aclnn_advance_step_get_workspace_size(**planned)
    assert (status, workspace_size, status.message) == (0, 0, "")
    assert lists(planned) == lists(called), "nothing has changed yet"
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
def test_every_tensor_is_there_int64_and_not_empty(name: str) -> None:
    right = example()[name]
    for wrong, code in ((None, 161001), (right.int(), 161002), (right[:0], 561002)):
        status, workspace_size, executor = aclnn_advance_step_get_workspace_size(**{**example(), name: wrong})
        assert (int(status), workspace_size, executor) == (code, 0, None)
        assert name in status.message


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"num_seqs": 0}, 561002),
        ({"block_size": 4.0}, 161002),
        ({"num_queries": 5}, 561002),
        ({"seq_lens": [-1, 4, 9, 9]}, 161002),
        ({"block_tables": [[-1, 2], [1, 7], [2, 8], [3, 9]]}, 161002),
        ({"block_tables": [[5], [1], [2], [3]]}, 561002),
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
        ((None, 8, executor), 161001, "workspace"),
        ((small, -1, executor), 161002, "workspace_size=-1"),
        ((small, 8, executor), 161002, "workspace_size=8"),
        ((None, None, executor), 161002, "workspace_size=None"),
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


def test_tensors_may_have_a_second_dimension_of_one_as_in_canns_example() -> None:
    """CANN's example but for the block size, which is such that a table of one block suffices."""
    eight = torch.arange(8)[:, None]
    tensors = [eight.clone() for _ in range(6)]
    tensors[1] = torch.arange(4)[:, None]
    expected = [tensor[:, 0].clone() for tensor in tensors]
    expected[1], expected[5] = tensors[1].clone(), tensors[5].clone()
    npu_advance_step_flashattn(*expected, 8, 4, 4)

    status, _, executor = aclnn_advance_step_get_workspace_size(*tensors, 8, 4, 4)
    assert status == 0, status
    assert aclnn_advance_step(None, 0, executor) == 0
    for tensor, flat in zip(tensors, expected, strict=True):
        assert tensor.view(-1).tolist() == flat.view(-1).tolist()
    assert tensors[4].view(-1).tolist() == [0, 5, 10, 15, -1, -1, -1, -1]
    # CANN's own block size: position 2 would be in a second block of row 2, which the table does not have
    assert aclnn_advance_step_get_workspace_size(*tensors, 8, 4, 2)[0] == 561002


# --- V2 ----------------------------------------------------------------------------------------------------------


def test_v2_has_canns_order_of_arguments() -> None:
    names = list(inspect.signature(aclnn_advance_step_v2_get_workspace_size).parameters)
    assert names == [*TENSORS, "spec_token", "accepted_num", "num_seqs", "num_queries", "block_size"]


@pytest.mark.parametrize("shape", ["flat", "column", "rows"])
def test_v2_is_the_speculative_form(shape: str) -> None:
    """Flat as in CANN's code and example, or in rows as on its page."""
    arguments = speculative_example()
    expected = {**lists(arguments), **loop(lists(arguments), "by_row")}
    shaped = {name: arguments[name].view({"flat": (6,), "column": (6, 1), "rows": (2, 3)}[shape]) for name in IN_PLACE}
    status, workspace_size, executor = aclnn_advance_step_v2_get_workspace_size(**{**arguments, **shaped})
    assert (status, workspace_size) == (0, 0), status
    assert aclnn_advance_step_v2(None, 0, executor) == 0
    assert lists(arguments) == expected
    arguments["input_positions"][0] = 40  # beyond the table
    before = lists(arguments)
    assert aclnn_advance_step_v2(None, 0, executor) == 561002
    assert lists(arguments) == before


def test_v2_runs_canns_example() -> None:
    """Eight rows of one draft; up to seven are said to have been accepted."""
    sixteen = torch.arange(16)
    tables = torch.full((8, 1000), 7)
    tensors = [sixteen.clone(), sixteen.view(8, 2).clone(), *(sixteen.clone() for _ in range(3)), tables]
    drafts, accepted = torch.arange(8)[:, None], torch.arange(8)
    status, _, executor = aclnn_advance_step_v2_get_workspace_size(*tensors, drafts, accepted, 8, 8, 8)
    assert status == 0, status
    assert aclnn_advance_step_v2(None, 0, executor) == 0
    positions = [i + i // 2 + 1 for i in range(16)]
    assert tensors[0].tolist() == [token for i in range(8) for token in (2 * i + 1, i)]
    assert tensors[2].tolist() == positions
    assert tensors[3].tolist() == [position + 1 for position in positions]
    assert tensors[4].tolist() == [7 * 8 + position % 8 for position in positions]


@pytest.mark.parametrize("name", SPECULATIVE_TENSORS)
def test_v2_wants_every_tensor(name: str) -> None:
    right = speculative_example()[name]
    shapes = (right[:0], right[:1], right.flatten()[0])
    for wrong, code in ((None, 161001), (right.float(), 161002), *((shape, 561002) for shape in shapes)):
        status, _, executor = aclnn_advance_step_v2_get_workspace_size(**{**speculative_example(), name: wrong})
        assert (int(status), executor) == (code, None)
        assert name in status.message


def test_an_executor_belongs_to_its_interface() -> None:
    first, second = example(), speculative_example()
    _, _, executor = aclnn_advance_step_get_workspace_size(**first)
    _, _, executor_2 = aclnn_advance_step_v2_get_workspace_size(**second)
    before = lists(first), lists(second)
    assert aclnn_advance_step_v2(None, 0, executor) == 161002
    assert aclnn_advance_step(None, 0, executor_2) == 161002
    assert (lists(first), lists(second)) == before


# --- nothing raises ----------------------------------------------------------------------------------------------


def test_what_the_device_raises_is_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def broken(device: torch.device, stream: Any) -> Iterator[None]:
        raise stream
        yield

    monkeypatch.setattr(aclnn, "on_stream", broken)
    arguments = example()
    _, _, executor = aclnn_advance_step_get_workspace_size(**arguments)
    for error, code in (
        (RuntimeError("lost"), 361001),
        (MemoryError("full"), 361001),
        (TypeError("no stream"), 161002),
    ):
        status = aclnn_advance_step(None, 0, executor, error)
        assert int(status) == code
        assert str(error) in status.message
    with pytest.raises(KeyboardInterrupt):
        aclnn_advance_step(None, 0, executor, KeyboardInterrupt())
    assert lists(arguments) == lists(example())
