"""npu_advance_step_flashattn against a plain loop over Python lists, as a PyTorch operator, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.errors import ShapeMismatchError
from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from nanoinfer.ops.advance_step_call import AdvanceStepCall

IN_PLACE = ("input_tokens", "input_positions", "seq_lens", "slot_mapping")
OP = torch.ops.nanoinfer.npu_advance_step_flashattn


def example(**changes: Any) -> dict[str, Any]:
    """The example of the design: two queries of four rows."""
    arguments: dict[str, Any] = {
        "input_tokens": [1, 2, 3, 4],
        "sampled_token_ids": [[70], [80]],
        "input_positions": [2, 3, 8, 8],
        "seq_lens": [3, 4, 9, 9],
        "slot_mapping": [22, 7, 9, 9],
        "block_tables": [[5, 2], [1, 7], [2, 8], [3, 9]],
        "num_seqs": 4,
        "num_queries": 2,
        "block_size": 4,
    }
    return as_tensors({**arguments, **changes})


def speculative_example(**changes: Any) -> dict[str, Any]:
    """Two rows of a sampled token and two drafts; one draft was right in row 0, none in row 1."""
    arguments: dict[str, Any] = {
        "input_tokens": [10, 11, 12, 20, 21, 22],
        "sampled_token_ids": [[11, 30, -1], [40, -1, -1]],
        "input_positions": [3, 4, 5, 6, 7, 8],
        "seq_lens": [4, 5, 6, 7, 8, 9],
        "slot_mapping": [0, 0, 0, 0, 0, 0],
        "block_tables": [[5, 2, 6], [1, 7, 3]],
        "num_seqs": 2,
        "num_queries": 2,
        "block_size": 4,
        "spec_token": [[31, 32], [41, 42]],
        "accepted_num": [1, 0],
    }
    return as_tensors({**arguments, **changes})


def as_tensors(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(value) if isinstance(value, list) else value for name, value in arguments.items()}


def lists(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


def loop(a: dict[str, Any], formula: str) -> dict[str, list[int]]:
    """The operator's table in the design, token by token, over lists."""
    size, flat = a["block_size"], [block for row in a["block_tables"] for block in row]
    stride = len(a["block_tables"][0])
    new: dict[str, list[int]] = {name: list(a[name]) for name in IN_PLACE}

    def slot(row: int, pos: int) -> int:
        if formula == "kernel":
            return (flat[pos // size] + stride * row) * size + pos % size
        return a["block_tables"][row][pos // size] * size + pos % size

    def put(at: int, token: int, pos: int, row: int) -> None:
        new["input_tokens"][at], new["input_positions"][at], new["seq_lens"][at] = token, pos, pos + 1
        new["slot_mapping"][at] = slot(row, pos)

    if a.get("spec_token") is None:
        for i in range(a["num_queries"]):
            put(i, a["sampled_token_ids"][i][0], a["seq_lens"][i], i)
        for i in range(a["num_queries"], a["num_seqs"]):
            new["input_tokens"][i], new["input_positions"][i], new["slot_mapping"][i] = 0, 0, -1
        return new
    width = 1 + len(a["spec_token"][0])
    for row in range(a["num_seqs"]):
        sampled = a["sampled_token_ids"][row]
        last = sampled[sampled.index(-1) - 1] if -1 in sampled else sampled[-1]
        for j, token in enumerate([last, *a["spec_token"][row]]):
            at = row * width + j
            put(at, token, a["input_positions"][at] + a["accepted_num"][row] + 1, row)
    return new


def check(arguments: dict[str, Any], formula: str) -> None:
    before = lists(arguments)
    expected = {**before, **loop(before, formula)}
    npu_advance_step_flashattn(**arguments, formula=formula)
    assert lists(arguments) == expected


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


def test_by_row_is_the_default_and_the_formula_of_the_kernel_differs_from_row_1_on() -> None:
    default, by_row, by_kernel = example(), example(), example()
    npu_advance_step_flashattn(**default)
    npu_advance_step_flashattn(**by_row, formula="by_row")
    npu_advance_step_flashattn(**by_kernel, formula="kernel")
    assert lists(default) == lists(by_row)
    differing = default["slot_mapping"] != by_kernel["slot_mapping"]
    assert differing.tolist() == [False, True, False, False]


@st.composite
def steps(draw: st.DrawFn, speculative: bool) -> dict[str, Any]:
    block_size, width = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    num_seqs = draw(st.integers(1, 5))
    num_queries = num_seqs if speculative else draw(st.integers(1, num_seqs))
    drafts = draw(st.integers(1, 3)) if speculative else 0
    size = num_seqs * (1 + drafts)

    def numbers(count: int, low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    room = block_size * width - 1  # the highest position that the table has a block for
    arguments: dict[str, Any] = {
        "input_tokens": numbers(size, 0, 99),
        "sampled_token_ids": [[token] for token in numbers(num_queries, 0, 99)],
        "input_positions": numbers(size, 0, 99),
        "seq_lens": numbers(num_queries, 0, room) + numbers(size - num_queries, 0, 999),
        "slot_mapping": numbers(size, -1, 99),
        "block_tables": [numbers(width, 0, 40) for _ in range(num_seqs)],
        "num_seqs": num_seqs,
        "num_queries": num_queries,
        "block_size": block_size,
    }
    if speculative:
        accepted = numbers(num_seqs, 0, min(drafts, max(room - 1, 0)))
        arguments["accepted_num"] = accepted
        arguments["spec_token"] = [numbers(drafts, 0, 99) for _ in range(num_seqs)]
        arguments["sampled_token_ids"] = [
            numbers(n := draw(st.integers(1, 1 + drafts)), 0, 99) + [-1] * (1 + drafts - n) for _ in range(num_seqs)
        ]
        arguments["input_positions"] = [
            position for n in accepted for position in numbers(1 + drafts, -1 - n, room - n - 1)
        ]
        arguments["input_positions"] = [max(position, -1) for position in arguments["input_positions"]]
    return as_tensors(arguments)


@settings(max_examples=120, deadline=None)
@given(steps(speculative=False), st.sampled_from(["by_row", "kernel"]))
def test_it_does_what_a_plain_loop_does(arguments: dict[str, Any], formula: str) -> None:
    check(arguments, formula)


@settings(max_examples=120, deadline=None)
@given(steps(speculative=True), st.sampled_from(["by_row", "kernel"]))
def test_the_speculative_form_does_what_a_plain_loop_does(arguments: dict[str, Any], formula: str) -> None:
    check(arguments, formula)


def test_many_steps_walk_through_the_blocks_of_each_row() -> None:
    arguments = example(seq_lens=[0, 2, 0, 0], block_tables=[[5, 2, 6], [1, 7, 0], [2, 8, 8], [3, 9, 9]])
    walked = []
    for _ in range(10):
        npu_advance_step_flashattn(**arguments)
        walked.append(arguments["slot_mapping"].tolist())
    assert [slots[0] for slots in walked] == [20, 21, 22, 23, 8, 9, 10, 11, 24, 25]
    assert [slots[1] for slots in walked] == [6, 7, 28, 29, 30, 31, 0, 1, 2, 3]
    assert {tuple(slots[2:]) for slots in walked} == {(-1, -1)}


def test_tensors_may_be_views() -> None:
    arguments = example()
    for name in (*IN_PLACE, "block_tables", "sampled_token_ids"):
        wide = torch.stack((arguments[name], arguments[name]), dim=-1)
        arguments[name] = wide[..., 0]
    npu_advance_step_flashattn(**arguments)
    assert arguments["slot_mapping"].tolist() == [23, 28, -1, -1]


def test_without_padding_every_row_is_a_query() -> None:
    check(example(num_queries=4, sampled_token_ids=[[7], [8], [9], [6]], seq_lens=[3, 4, 0, 7]), "by_row")


def test_padding_rows_need_no_blocks() -> None:
    arguments = example(block_tables=[[5, 2], [1, 7], [-1, -1], [-1, -1]], seq_lens=[3, 4, 1000, -5])
    npu_advance_step_flashattn(**arguments)
    assert arguments["slot_mapping"].tolist() == [23, 28, -1, -1]
    assert arguments["seq_lens"].tolist() == [4, 5, 1000, -5]


# --- the operator ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [example, speculative_example])
def test_it_is_a_proper_operator(make: Callable[..., dict[str, Any]]) -> None:
    for formula in ("by_row", "kernel"):
        results = torch.library.opcheck(OP.default, (), {**make(), "formula": formula})
        assert set(results.values()) == {"SUCCESS"}


def test_its_schema_is_torch_npus_and_a_formula() -> None:
    assert str(OP.default._schema) == (
        "nanoinfer::npu_advance_step_flashattn(Tensor(a!) input_tokens, Tensor sampled_token_ids, "
        "Tensor(b!) input_positions, Tensor(c!) seq_lens, Tensor(d!) slot_mapping, Tensor block_tables, "
        "SymInt num_seqs, SymInt num_queries, "
        'SymInt block_size, *, Tensor? spec_token=None, Tensor? accepted_num=None, str formula="by_row") -> ()'
    )


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


def test_fake_tensors_stay_fake() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        arguments = {name: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for name, v in example().items()}
        assert OP(**arguments) is None
        assert arguments["input_tokens"].shape == (4,)


# --- what is refused ---------------------------------------------------------------------------------------------


def refuse(arguments: dict[str, Any], message: str, error: type[ValueError] = ValueError, **more: Any) -> None:
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
    refuse(speculative_example(**{name: 3}), f"{name}: must be a tensor, got int")


@pytest.mark.parametrize("name", ["input_tokens", "input_positions", "seq_lens", "slot_mapping"])
def test_a_tensor_whose_rows_share_memory_cannot_be_written_to(name: str) -> None:
    expanded = example()[name][:1].expand(len(example()[name]))
    refuse(example(**{name: expanded}), f"{name}: stride 0.*must not be expanded")


@pytest.mark.parametrize("make", [example, speculative_example])
@pytest.mark.parametrize("name", ["num_seqs", "num_queries", "block_size"])
def test_sizes_are_positive_integers(make: Callable[..., dict[str, Any]], name: str) -> None:
    for size in (0, -1):
        refuse(make(**{name: size}), f"{name}={size}: must be at least 1")
    for size in (2.0, True, None, "2"):
        refuse(make(**{name: size}), f"{name}={size!r}: must be an integer")


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
    refuse(speculative_example(accepted_num=[0, 3]), r"accepted_num: 3 in row 1: must be in 0\.\.2")
    refuse(speculative_example(accepted_num=[-1, 0]), r"accepted_num: -1 in row 0: must be in 0\.\.2")
    refuse(speculative_example(sampled_token_ids=[[1, 2, 3], [-1, 4, 5]]), "sampled_token_ids: -1 in row 1")
    refuse(speculative_example(input_positions=[-9, 4, 5, 6, 7, 8]), "input_positions: -9 in row 0: must not be")
    refuse(example(seq_lens=[3, -4, 9, 9]), "seq_lens: -4 in row 1: must not be negative")
    refuse(example(block_tables=[[5, 2], [1, -1], [2, 8], [3, 9]]), "block_tables: -1 in row 1: must not be negative")
    refuse(example(), "formula='row'", formula="row")


def test_speculation_is_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        npu_advance_step_flashattn(*speculative_example().values())
