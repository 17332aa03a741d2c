"""npu_advance_step_flashattn as an operator of torch: under opcheck, in compiled graphs, and under signals."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from tests.helpers.advance_step import example, lists, loop, speculative_example

OP = torch.ops.nanoinfer.npu_advance_step_flashattn


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
