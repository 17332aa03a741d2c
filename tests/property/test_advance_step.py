"""npu_advance_step_flashattn on random arguments against a plain loop, and under torch.compile and opcheck."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from tests.helpers.advance_step import IN_PLACE, as_tensors, check, example, lists, loop, speculative_example

OP = torch.ops.nanoinfer.npu_advance_step_flashattn


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
        accepted = numbers(num_seqs, 0, min(3 * drafts, max(room - 1, 0)))  # more than K as well
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


@pytest.mark.parametrize("make", [example, speculative_example])
def test_a_signal_handler_that_raises_finds_all_of_it_done_or_nothing(make: Callable[..., dict[str, Any]]) -> None:
    """An exception at each line of the operator in turn, as a handler of SIGINT raises it."""
    before, after = lists(make()), {**lists(make()), **loop(lists(make()), "by_row")}
    seen = []
    for line in range(1000):
        arguments, left = make(), line

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if event == "line" and "nanoinfer/ops" in frame.f_code.co_filename:
                if not left:
                    raise KeyboardInterrupt
                left -= 1
            return trace

        traced_before = sys.gettrace()
        sys.settrace(trace)
        try:
            npu_advance_step_flashattn(**arguments)
            break
        except KeyboardInterrupt:
            seen.append(lists(arguments))
        finally:
            sys.settrace(traced_before)
    assert len(seen) > 50
    assert all(state in (before, after) for state in seen)
    assert lists(arguments) == after


@st.composite
def views(draw: st.DrawFn, make: Callable[..., dict[str, Any]]) -> tuple[dict[str, Any], dict[str, set[int]]]:
    """An example some of whose tensors are views of one buffer, where they may overlap, and each one's elements there."""
    buffer = torch.arange(24) % 3  # right as a length, a position, a token, a block number and a number of drafts
    arguments, elements = make(), {}
    tensors = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    for name in draw(st.lists(st.sampled_from(tensors), unique=True, min_size=1, max_size=3)):
        shape = arguments[name].shape
        stride = draw(st.sampled_from([1, 2, 3] if len(shape) == 1 else [1, 2]))
        strides = [stride * shape[1], stride] if len(shape) == 2 else [stride]
        room = len(buffer) - 1 - sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if room < 0:
            continue
        begin = draw(st.integers(0, room))
        arguments[name] = buffer.as_strided(shape, strides, begin)
        elements[name] = {begin + i for i in torch.arange(24).as_strided(shape, strides).flatten().tolist()}
    return arguments, elements


@settings(max_examples=200, deadline=None)
@given(st.one_of(views(example), views(speculative_example)))
def test_views_of_one_buffer_are_right_or_refused(given: tuple[dict[str, Any], dict[str, set[int]]]) -> None:
    arguments, elements = given
    before = lists(arguments)
    shared = [(a, b) for a in IN_PLACE for b in elements if a in elements and a != b and elements[a] & elements[b]]
    if not shared:
        check(arguments, "by_row")
        return
    with pytest.raises(ValueError, match=r"shares memory with") as refused:
        npu_advance_step_flashattn(**arguments)
    assert any(str(refused.value).startswith(f"{a}: shares memory with {b};") for a, b in shared)
    assert lists(arguments) == before


@pytest.mark.parametrize("make", [example, speculative_example])
def test_it_is_a_proper_operator(make: Callable[..., dict[str, Any]]) -> None:
    for formula in ("by_row", "kernel"):
        results = torch.library.opcheck(OP.default, (), {**make(), "formula": formula})
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("begin", [0, 1])
def test_shared_memory_is_found_in_a_compiled_graph_too(begin: int) -> None:
    """Where the tensors that change are copied before the operator runs, and written back after."""
    torch.compiler.reset()  # torch does not compile anew for tensors that overlap where earlier ones did not
    step = torch.compile(npu_advance_step_flashattn, backend="aot_eager", fullgraph=True)
    buffer = torch.tensor([3, 4, 3, 4, 9])
    arguments = {**example(), "input_positions": buffer[:4], "seq_lens": buffer[begin : begin + 4]}
    before = lists(arguments)
    with pytest.raises(ValueError, match="input_positions: shares memory with seq_lens"):
        step(**arguments)
    assert lists(arguments) == before


def test_what_a_compiled_graph_reads_is_as_it_was_before() -> None:
    """A tensor that changes is copied there, so that it may share memory with one that is only read."""
    torch.compiler.reset()
    step = torch.compile(npu_advance_step_flashattn, backend="aot_eager", fullgraph=True)
    tables = example()["block_tables"]
    step(**{**example(), "slot_mapping": tables[:, 0], "block_tables": tables})
    assert tables.tolist() == [[23, 2], [28, 7], [-1, 8], [-1, 9]]


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
