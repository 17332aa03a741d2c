"""npu_advance_step_flashattn against a plain loop over Python lists, as a PyTorch operator, and what it refuses."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.errors import ShapeMismatchError
from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from nanoinfer.ops.advance_step_call import AdvanceStepCall
from tests.helpers.advance_step import IN_PLACE, example, lists, speculative_example

OP = torch.ops.nanoinfer.npu_advance_step_flashattn


# --- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("formula", "slots"), [("by_row", [23, 28, -1, -1]), ("kernel", [23, 16, -1, -1])])
def test_the_example_of_the_design(formula: str, slots: list[int]) -> None:
    arguments = example()
    npu_advance_step_flashattn(*arguments.values(), formula=formula)
    assert {name: arguments[name].tolist() for name in IN_PLACE} == {
        "input_tokens": [70, 80, 0, 0],
        "input_positions": [3, 4, 0, 0],
        "seq_lens": [4, 5, 9, 9],
        "slot_mapping": slots,
    }


def test_the_speculative_form() -> None:
    arguments = speculative_example()
    npu_advance_step_flashattn(**arguments)
    assert {name: arguments[name].tolist() for name in IN_PLACE} == {
        "input_tokens": [30, 31, 32, 40, 41, 42],
        "input_positions": [5, 6, 7, 7, 8, 9],
        "seq_lens": [6, 7, 8, 8, 9, 10],
        "slot_mapping": [9, 10, 11, 31, 12, 13],
    }


def test_many_steps_walk_through_the_blocks_of_each_row() -> None:
    arguments = example(seq_lens=[0, 2, 0, 0], block_tables=[[5, 2, 6], [1, 7, 0], [2, 8, 8], [3, 9, 9]])
    walked = []
    for _ in range(10):
        npu_advance_step_flashattn(**arguments)
        walked.append(arguments["slot_mapping"].tolist())
    assert [slots[0] for slots in walked] == [20, 21, 22, 23, 8, 9, 10, 11, 24, 25]
    assert [slots[1] for slots in walked] == [6, 7, 28, 29, 30, 31, 0, 1, 2, 3]
    assert {tuple(slots[2:]) for slots in walked} == {(-1, -1)}


def test_padding_rows_need_no_blocks() -> None:
    arguments = example(block_tables=[[5, 2], [1, 7], [-1, -1], [-1, -1]], seq_lens=[3, 4, 1000, -5])
    npu_advance_step_flashattn(**arguments)
    assert arguments["slot_mapping"].tolist() == [23, 28, -1, -1]
    assert arguments["seq_lens"].tolist() == [4, 5, 1000, -5]


# --- the operator ------------------------------------------------------------------------------------------------


def test_its_schema_is_torch_npus_and_a_formula() -> None:
    assert str(OP.default._schema) == (  # of torch; there is no public name for it
        "nanoinfer::npu_advance_step_flashattn(Tensor(a!) input_tokens, Tensor sampled_token_ids, "
        "Tensor(b!) input_positions, Tensor(c!) seq_lens, Tensor(d!) slot_mapping, Tensor block_tables, "
        "SymInt num_seqs, SymInt num_queries, "
        'SymInt block_size, *, Tensor? spec_token=None, Tensor? accepted_num=None, str formula="by_row") -> ()'
    )


def test_fake_tensors_stay_fake() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode  # of torch; there is no public name for it

    with FakeTensorMode() as mode:
        arguments = {name: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for name, v in example().items()}
        assert OP(**arguments) is None
        assert arguments["input_tokens"].shape == (4,)


# --- what is refused ---------------------------------------------------------------------------------------------


def refuse(
    arguments: dict[str, Any],
    message: str,
    error: type[ValueError] = ValueError,
    **more: Any,
) -> None:
    before = lists(arguments)
    with pytest.raises(error, match=message):
        npu_advance_step_flashattn(**arguments, **more)
    assert lists(arguments) == before, "nothing has changed"


@pytest.mark.parametrize(
    "name", [name for name, value in speculative_example().items() if isinstance(value, torch.Tensor)]
)
def test_every_tensor_is_an_int64_tensor_that_is_not_empty(name: str) -> None:
    tensor = speculative_example()[name]
    refuse(speculative_example(**{name: tensor.int()}), f"{name}: dtype torch.int32, must be torch.int64")
    refuse(speculative_example(**{name: tensor.float()}), f"{name}: dtype torch.float32")
    refuse(speculative_example(**{name: tensor[:0]}), f"{name}: shape .* must not be empty")
    with pytest.raises(ValueError, match=r"on (meta|cpu), must be on (meta|cpu), where input_tokens is"):
        AdvanceStepCall(**speculative_example(**{name: tensor.to("meta")})).plan()
    for value in (3, tensor.tolist(), tensor.numpy()):
        with pytest.raises(ValueError, match=f"{name}: must be a tensor, got {type(value).__name__}"):
            npu_advance_step_flashattn(**{**speculative_example(), name: value})


@pytest.mark.parametrize("make", [example, speculative_example])
@pytest.mark.parametrize("name", ["num_seqs", "num_queries", "block_size"])
def test_sizes_are_positive_integers(make: Callable[..., dict[str, Any]], name: str) -> None:
    for size in (0, -1):
        refuse(make(**{name: size}), f"{name}={size}: must be at least 1")
    for size in (2.0, True, None, "2", np.float64(2), np.True_):
        refuse(make(**{name: size}), re.escape(f"{name}={size!r}: must be an integer"))
    for size in (2**63, -(2**64)):
        refuse(make(**{name: size}), f"{name}={size}: must be in 1..{2**63 - 1}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_tokens": [1, 2, 3]}, r"input_tokens: shape \[3\], must be \[4\]"),
        ({"input_positions": [1, 2, 3, 4, 5]}, r"input_positions: shape \[5\], must be \[4\]"),
        ({"seq_lens": [[3, 4, 9, 9]]}, r"seq_lens: shape \[1, 4\], must be \[4\]"),
        ({"slot_mapping": [1, 2]}, r"slot_mapping: shape \[2\], must be \[4\]"),
        ({"sampled_token_ids": [7, 8]}, r"sampled_token_ids: shape \[2\], must be \[2, 1\]"),
        ({"sampled_token_ids": [[7, 8], [8, 9]]}, r"sampled_token_ids: shape \[2, 2\], must be \[2, 1\]"),
        ({"sampled_token_ids": [[7], [8], [9]]}, r"sampled_token_ids: shape \[3, 1\], must be \[2, 1\]"),
        ({"block_tables": [1, 2, 3, 4]}, r"block_tables: shape \[4\], must be \[4, any\]"),
        ({"block_tables": [[5, 2], [1, 7]]}, r"block_tables: shape \[2, 2\], must be \[4, any\]"),
        ({"seq_lens": [3, 8, 0, 0]}, "block_tables: 2 blocks per row; position 8 with block_size=4 needs at least 3"),
        ({"block_size": 2}, "block_tables: 2 blocks per row; position 4 with block_size=2 needs at least 3"),
    ],
)
def test_shapes_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    refuse(example(**changes), message, ShapeMismatchError)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_tokens": [1, 2]}, r"input_tokens: shape \[2\], must be \[6\]"),
        ({"seq_lens": [[4, 5, 6], [7, 8, 9]]}, r"seq_lens: shape \[2, 3\], must be \[6\]"),
        ({"spec_token": [31, 41]}, r"spec_token: shape \[2\], must be \[2, any\]"),
        ({"spec_token": [[31], [41]]}, r"sampled_token_ids: shape \[2, 3\], must be \[2, 2\]"),
        ({"accepted_num": [[1], [0]]}, r"accepted_num: shape \[2, 1\], must be \[2\]"),
        ({"sampled_token_ids": [[11], [40]]}, r"sampled_token_ids: shape \[2, 1\], must be \[2, 3\]"),
        ({"block_size": 3}, "block_tables: 3 blocks per row; position 9 with block_size=3 needs at least 4"),
    ],
)
def test_speculative_shapes_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    refuse(speculative_example(**changes), message, ShapeMismatchError)


def test_values_that_do_not_fit() -> None:
    refuse(example(num_queries=5), "num_queries=5: must not exceed num_seqs=4")
    refuse(speculative_example(num_queries=1), "num_queries=1: must equal num_seqs=2 when spec_token is given")
    refuse(speculative_example(spec_token=None), "spec_token=None: spec_token and accepted_num must be given together")
    refuse(
        speculative_example(accepted_num=None), "accepted_num=None: spec_token and accepted_num must be given together"
    )
    refuse(speculative_example(accepted_num=[-1, 0]), "accepted_num: -1 in row 0: must not be negative")
    refuse(
        speculative_example(sampled_token_ids=[[1, 2, -2], [3, -1, -1]]), "sampled_token_ids: -2 in row 0: must be a to"
    )
    refuse(speculative_example(sampled_token_ids=[[1, 2, 3], [-1, 4, 5]]), "sampled_token_ids: -1 in row 1")
    refuse(speculative_example(input_positions=[-9, 4, 5, 6, 7, 8]), "input_positions: -9 in row 0: must not be")
    refuse(example(sampled_token_ids=[[8], [-1]]), "sampled_token_ids: -1 in row 1: must be a token")
    refuse(example(seq_lens=[3, -4, 9, 9]), "seq_lens: -4 in row 1: must not be negative")
    refuse(example(block_tables=[[5, 2], [1, -1], [2, 8], [3, 9]]), "block_tables: -1 in row 1: must not be negative")
    for formula in ("row", None, 3, ["by_row"]):
        refuse(example(), f"formula={re.escape(repr(formula))}: must be one of by_row, kernel", formula=formula)


def test_speculation_is_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        npu_advance_step_flashattn(*speculative_example().values())


@pytest.mark.parametrize("make", [example, speculative_example])
def test_it_is_a_proper_operator(make: Callable[..., dict[str, Any]]) -> None:
    for formula in ("by_row", "kernel"):
        results = torch.library.opcheck(OP.default, (), {**make(), "formula": formula})
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("make", [example, speculative_example])
def test_it_works_in_a_compiled_graph(make: Callable[..., dict[str, Any]]) -> None:
    """No code generation: the graph is captured, functionalised and run as it is."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def two_steps(arguments: dict[str, Any]) -> torch.Tensor:
        npu_advance_step_flashattn(**arguments)
        npu_advance_step_flashattn(**arguments)
        return arguments["slot_mapping"] * 2

    compiled = make(block_tables=make()["block_tables"].repeat(1, 2))
    eager = make(block_tables=make()["block_tables"].repeat(1, 2))
    doubled = two_steps(compiled)
    for _ in range(2):
        npu_advance_step_flashattn(**eager)
    assert lists(compiled) == lists(eager)
    assert doubled.tolist() == (2 * eager["slot_mapping"]).tolist()
