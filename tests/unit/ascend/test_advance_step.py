"""npu_advance_step_flashattn against a plain loop over Python lists, as a PyTorch operator, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nanoinfer.ascend.advance_step import npu_advance_step_flashattn
from nanoinfer.ascend.advance_step_call import AdvanceStepCall
from nanoinfer.errors import ShapeMismatchError
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


# --- what is refused ---------------------------------------------------------------------------------------------


def refuse(arguments: dict[str, Any], named: str, error: type[ValueError] = ValueError) -> None:
    before = lists(arguments)
    with pytest.raises(error, match=named):
        npu_advance_step_flashattn(**arguments)
    assert lists(arguments) == before, "nothing has changed"


@pytest.mark.parametrize(
    "name", [name for name, value in speculative_example().items() if isinstance(value, torch.Tensor)]
)
def test_every_tensor_is_int64_and_not_empty_and_all_are_on_one_device(name: str) -> None:
    tensor = speculative_example()[name]
    refuse(speculative_example(**{name: tensor.int()}), f"{name}: dtype torch.int32")
    refuse(speculative_example(**{name: tensor[:0]}), f"{name}: shape", ShapeMismatchError)
    with pytest.raises(ValueError, match=r"on (meta|cpu), must be on (meta|cpu), where input_tokens is"):
        AdvanceStepCall(**speculative_example(**{name: tensor.to("meta")})).plan()


@pytest.mark.parametrize("make", [example, speculative_example])
@pytest.mark.parametrize("name", ["num_seqs", "num_queries", "block_size"])
def test_sizes_are_positive_integers(make: Callable[..., dict[str, Any]], name: str) -> None:
    for size in (0, -1, 2.0, True, None):
        refuse(make(**{name: size}), f"{name}={size}")


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (example, {"input_tokens": [1, 2, 3]}),
        (example, {"seq_lens": [[3, 4, 9, 9]]}),
        (example, {"sampled_token_ids": [[7, 8], [8, 9]]}),
        (example, {"sampled_token_ids": [[7], [8], [9]]}),
        (example, {"block_tables": [[5, 2], [1, 7]]}),
        (example, {"num_queries": 5}),
        (speculative_example, {"slot_mapping": [1, 2]}),
        (speculative_example, {"seq_lens": [[4, 5, 6], [7, 8, 9]]}),
        (speculative_example, {"spec_token": [31, 41]}),
        (speculative_example, {"accepted_num": [[1], [0]]}),
        (speculative_example, {"sampled_token_ids": [[11], [40]]}),
        (speculative_example, {"num_queries": 1}),
    ],
)
def test_shapes_that_do_not_fit(make: Callable[..., dict[str, Any]], changes: dict[str, Any]) -> None:
    refuse(make(**changes), next(iter(changes)), ShapeMismatchError)


@pytest.mark.parametrize(
    "arguments", [example(seq_lens=[3, 8, 0, 0]), example(block_size=2), speculative_example(block_size=3)]
)
def test_a_table_that_is_too_narrow(arguments: dict[str, Any]) -> None:
    refuse(arguments, "block_tables: . blocks per row", ShapeMismatchError)


@pytest.mark.parametrize(
    ("make", "changes", "named"),
    [
        (speculative_example, {"spec_token": None}, "spec_token=None"),
        (speculative_example, {"accepted_num": None}, "accepted_num=None"),
        (speculative_example, {"accepted_num": [-1, 0]}, "accepted_num: -1 in row 0"),
        (speculative_example, {"sampled_token_ids": [[1, 2, -2], [3, -1, -1]]}, "sampled_token_ids: -2 in row 0"),
        (speculative_example, {"sampled_token_ids": [[1, 2, 3], [-1, 4, 5]]}, "sampled_token_ids: -1 in row 1"),
        (speculative_example, {"input_positions": [-9, 4, 5, 6, 7, 8]}, "input_positions: -9 in row 0"),
        (example, {"sampled_token_ids": [[8], [-1]]}, "sampled_token_ids: -1 in row 1"),
        (example, {"seq_lens": [3, -4, 9, 9]}, "seq_lens: -4 in row 1"),
        (example, {"block_tables": [[5, 2], [1, -1], [2, 8], [3, 9]]}, "block_tables: -1 in row 1"),
        (example, {"formula": "row"}, "formula='row'"),
    ],
)
def test_values_that_do_not_fit(make: Callable[..., dict[str, Any]], changes: dict[str, Any], named: str) -> None:
    refuse(make(**changes), named)


def test_speculation_is_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        npu_advance_step_flashattn(*speculative_example().values())


@pytest.mark.parametrize("make", [example, speculative_example])
def test_it_is_a_proper_operator(make: Callable[..., dict[str, Any]]) -> None:
    assert set(torch.library.opcheck(OP.default, (), make()).values()) == {"SUCCESS"}


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
