"""Checks of notebook 18: npu_advance_step_flashattn by hand, and which of the two phases answers with which status."""

import random
from collections.abc import Callable
from typing import Any

import torch

from nanoinfer.ops import aclnn
from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal

CHANGED = ("input_tokens", "input_positions", "seq_lens", "slot_mapping")

# --- 18.3 -------------------------------------------------------------------------------------------------------------


def _batch(rng: random.Random, num_seqs: int, num_queries: int, size: int) -> dict[str, Any]:
    """Arguments by name, as the operator has them: numbers from earlier passes everywhere, padding included."""

    def numbers(count: int, least: int, most: int) -> torch.Tensor:
        return torch.tensor([rng.randrange(least, most) for _ in range(count)])

    lens = numbers(num_seqs, 1, 3 * size)
    width = 3 + rng.randrange(2)
    blocks = rng.sample(range(10, 10 + num_seqs * width), num_seqs * width)
    lens[num_queries:] = 5 * size  # no table is so wide: padding must not look for a block
    return {
        "input_tokens": numbers(num_seqs, 100, 200),
        "sampled_token_ids": numbers(num_queries, 200, 300)[:, None],
        "input_positions": lens - 1,
        "seq_lens": lens,
        "slot_mapping": numbers(num_seqs, 1000, 2000),
        "block_tables": torch.tensor(blocks).view(num_seqs, width),
    }


@exercise("18.3", "The operator by hand", points=2)
def _(given: Given) -> str:
    advance = given["advance"]
    rng = random.Random(183)
    sizes = [(4, 2, 4), (1, 1, 1), (3, 3, 4)]
    sizes += [(rng.randrange(2, 7), rng.randrange(1, 3), rng.choice((1, 2, 4, 16))) for _ in range(40)]
    for num_seqs, num_queries, size in sizes:
        batch = _batch(rng, num_seqs, num_queries, size)
        want = {name: tensor.clone() for name, tensor in batch.items()}
        npu_advance_step_flashattn(**want, num_seqs=num_seqs, num_queries=num_queries, block_size=size)
        _about_step(advance, batch, want, num_queries, size)
    return "43 batches, with and without padding"


def _about_step(
    advance: Callable[..., Any], batch: dict[str, Any], want: dict[str, Any], queries: int, size: int
) -> None:
    before = {name: tensor.clone() for name, tensor in batch.items()}
    state = {name: batch[name] for name in CHANGED}
    lens = before["seq_lens"].tolist()
    said = f"seq_lens={lens}, {queries} of {len(lens)} rows are queries, block_size={size}."
    try:
        advance(state, batch["sampled_token_ids"], batch["block_tables"], size)
    except IndexError as error:
        if queries == len(lens):
            raise
        expect(
            False,
            f"{said} Your code looks for a block outside a table: {error}. The length of a padding row means nothing, so "
            "only queries look into the table.",
        )
    for name in CHANGED:
        expect(
            state.get(name) is batch[name] or not torch.equal(batch[name], before[name]),
            f"{said} You put another tensor into the dictionary as {name!r}. On the device, the next pass reads the old "
            "one: write into it, as in state[name][:n] = ...",
        )
        expect(state.get(name) is batch[name], f"{said} {name!r} must stay the same tensor, with new numbers in it.")
    for name in ("sampled_token_ids", "block_tables"):
        expect(torch.equal(batch[name], before[name]), f"{said} You changed {name}, which is only read.")
    got = {name: state[name].tolist() for name in CHANGED}
    _about_queries(got, before, want, queries, size, said)
    _about_padding(got, before, queries, said)
    for name in CHANGED:
        expect_equal(got[name], want[name].tolist(), f"{said} {name} is wrong.")


def _about_queries(
    got: dict[str, list[int]], before: dict[str, Any], want: dict[str, Any], queries: int, size: int, said: str
) -> None:
    part = {name: (got[name][:queries], want[name][:queries].tolist()) for name in CHANGED}
    lens, tables = before["seq_lens"][:queries], before["block_tables"]
    positions, right = part["input_positions"]
    expect(
        positions != (lens + 1).tolist(),
        f"{said} The positions are one too far: the new token's index is the length as it *was*. Keep the old lengths "
        "before you add 1.",
    )
    expect(
        positions == right,
        f"{said} The input_positions of the queries are {positions}, and must be their old lengths, {right}.",
    )
    seq_lens, right = part["seq_lens"]
    expect(
        seq_lens != lens.tolist(),
        f"{said} seq_lens stays as it was. It counts the new token as well, so it grows by 1.",
    )
    slots, right = part["slot_mapping"]
    if slots != right:
        after = lens + 1
        later = [
            int(tables[i, n // size]) * size + n % size if n // size < tables.shape[1] else -1
            for i, n in enumerate(after.tolist())
        ]
        expect(
            slots != later,
            f"{said} The slots belong to the lengths *after* the step. A token at index n is in slot n of its row.",
        )
        kernel = (tables[0, lens // size] + tables.stride(0) * torch.arange(queries)) * size + lens % size
        row_0 = tables[0, lens // size] * size + lens % size
        expect(
            slots not in (kernel.tolist(), row_0.tolist()),
            f"{said} The slots are read from row 0 for every query. Query i has the blocks in row i.",
        )
        expect(
            slots != tables[torch.arange(queries), lens // size].tolist(),
            f"{said} These are blocks. The slot is block * block_size + the offset in it.",
        )
        expect_equal(slots, right, f"{said} The slots of the queries are wrong.")
    expect_equal(*part["input_tokens"], f"{said} The input_tokens of the queries are wrong.")
    expect_equal(*part["seq_lens"], f"{said} The seq_lens of the queries are wrong.")


def _about_padding(got: dict[str, list[int]], before: dict[str, Any], queries: int, said: str) -> None:
    padding = {name: got[name][queries:] for name in CHANGED}
    count = len(padding["seq_lens"])
    expect(
        padding["slot_mapping"] != [0] * count or not count,
        f"{said} The padding has slot 0, which is a slot: the pass would overwrite the K/V in it. Its slot is −1.",
    )
    expect(
        padding["slot_mapping"] == [-1] * count,
        f"{said} The padding has the slots {padding['slot_mapping']} from earlier. With −1, nothing is stored.",
    )
    expect(
        padding["seq_lens"] == before["seq_lens"][queries:].tolist(),
        f"{said} The seq_lens of padding rows stay as they are: nothing was added there.",
    )
    for name in ("input_tokens", "input_positions"):
        expect(
            padding[name] == [0] * count,
            f"{said} The padding has {name} {padding[name]}, and must have 0 everywhere: what is left there from earlier "
            "could be refused in the next pass.",
        )


# --- 18.5 -------------------------------------------------------------------------------------------------------------

# What to think of where an answer is wrong.
HINTS = {
    "a": "Nothing is wrong, so phase one is fine, and phase two has the last word.",
    "b": "Shapes are fine when the plan is made. But each run makes the sequences longer, and a table of 2 blocks has room "
    "for 8 tokens.",
    "c": "A tensor that isn't there is a null pointer in C. Which phase gets the tensors?",
    "d": "A size of 0 is a whole number, so the number itself is valid. What it says about shapes isn't.",
    "e": "Each tensor is there, and its shape is right. What is wrong is its kind of numbers.",
    "f": "Phase one has seen a valid length. The values are read again at each run.",
    "g": "There are 2 queries, and tokens for 4. So two arguments don't fit together.",
    "h": "Shapes and kinds fit. But writing to one of them would change the other one. This doesn't depend on values, so "
    "it can be found early.",
    "i": "Phase one is fine. An executor that is None is a null pointer.",
}


def statuses() -> dict[str, tuple[int, int]]:
    """The calls of the exercise, made: the phase that answers, and its status."""

    def example() -> dict[str, Any]:
        zeros = [torch.zeros(4, dtype=torch.int64) for _ in range(3)]
        return {
            "input_tokens": zeros[0],
            "sampled_token_ids": torch.tensor([[70], [80]]),
            "input_positions": zeros[1],
            "seq_lens": torch.tensor([3, 4, 9, 9]),
            "slot_mapping": zeros[2],
            "block_tables": torch.tensor([[5, 2], [1, 7], [2, 8], [3, 9]]),
        }

    def made(runs: int = 1, later: Callable[[dict[str, Any]], Any] | None = None, **changed: Any) -> tuple[int, int]:
        batch = example() | {name: value for name, value in changed.items() if name != "block_size"}
        first, size, executor = aclnn.aclnn_advance_step_get_workspace_size(
            **batch, num_seqs=4, num_queries=2, block_size=changed.get("block_size", 4)
        )
        if first != 0:
            return 1, int(first)
        if later is not None:
            later(batch)
        return 2, int([aclnn.aclnn_advance_step(None, size, executor) for _ in range(runs)][-1])

    same = torch.tensor([3, 4, 9, 9])
    return {
        "a": made(),
        "b": made(6),
        "c": made(sampled_token_ids=None),
        "d": made(block_size=0),
        "e": made(slot_mapping=torch.zeros(4)),
        "f": made(later=lambda batch: batch["seq_lens"][1:2].fill_(-1)),
        "g": made(sampled_token_ids=torch.zeros(4, 1, dtype=torch.int64)),
        "h": made(input_positions=same, seq_lens=same),
        "i": (2, int(aclnn.aclnn_advance_step(None, 0, None))),
    }


@exercise("18.5", "Which phase says no")
def _(given: Given) -> str:
    got, want = given["answers"](), statuses()
    expect(isinstance(got, dict), f"Return a dictionary, not {a_kind(got)}.")
    missing = [case for case in want if case not in got]
    expect(not missing, f"There is no answer for {', '.join(missing)}.")
    for case, right in want.items():
        answer = got[case]
        expect(
            isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(each, int) for each in answer),
            f"{case}: an answer is (phase, status), two whole numbers, and not {answer!r}.",
        )
        expect(
            answer[1] in (0, 161001, 161002, 561002), f"{case}: {answer[1]} is none of 0, 161001, 161002 and 561002."
        )
        expect(answer[0] == right[0], f"{case}: it isn't phase {answer[0]} that answers. {HINTS[case]}")
        expect(answer[1] == right[1], f"{case}: phase {right[0]} answers, but not with {answer[1]}. {HINTS[case]}")
    return "nine calls"
