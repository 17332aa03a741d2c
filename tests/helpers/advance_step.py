"""npu_advance_step_flashattn: the examples of the design, and the operator's table as a plain loop over Python lists."""

from typing import Any

import torch

from nanoinfer.ascend.advance_step import npu_advance_step_flashattn

IN_PLACE = ("input_tokens", "input_positions", "seq_lens", "slot_mapping")


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
