"""npu_advance_step_flashattn on random arguments against a plain loop, and under torch.compile and opcheck."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from tests.helpers.advance_step import as_tensors, check, example, lists, speculative_example

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
