"""npu_advance_step_flashattn on random arguments against a plain loop."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.helpers.advance_step import IN_PLACE, as_tensors, check, example, speculative_example


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


@settings(max_examples=120)
@given(steps(speculative=False), st.sampled_from(["by_row", "kernel"]))
def test_it_does_what_a_plain_loop_does(arguments: dict[str, Any], formula: str) -> None:
    check(arguments, formula)


@settings(max_examples=120)
@given(steps(speculative=True), st.sampled_from(["by_row", "kernel"]))
def test_the_speculative_form_does_what_a_plain_loop_does(arguments: dict[str, Any], formula: str) -> None:
    check(arguments, formula)


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


@settings(max_examples=200)
@given(st.one_of(views(example), views(speculative_example)))
def test_views_of_one_buffer_are_right_where_those_that_change_overlap_nothing(
    given: tuple[dict[str, Any], dict[str, set[int]]],
) -> None:
    arguments, elements = given
    assume(not any(a in elements and a != b and elements[a] & elements[b] for a in IN_PLACE for b in elements))
    check(arguments, "by_row")
