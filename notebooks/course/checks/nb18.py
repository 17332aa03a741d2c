"""Checks of notebook 18: block tables, the slots of new tokens, and what a tree of drafts sees. nb18_operator.py has the
operator and its two phases."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from nanoinfer.paged.draft_tree import DraftTree
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal


def _error_of(call: Callable[[], Any], said: str, why: str) -> str:
    """The message of the ValueError that `call` must raise."""
    try:
        got = call()
    except ValueError as error:
        return str(error)
    expect(False, f"{said} {why} Raise a ValueError, not {got!r}.")
    raise AssertionError  # not reached


def _names(message: str, numbers: Sequence[int]) -> bool:
    """Whether the message has all of these numbers, as numbers of their own."""
    words = "".join(char if char.isdigit() or char == "-" else " " for char in message).split()
    return all(str(number) in words for number in numbers)


def _is_list_of_numbers(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in given)


def _slot(table: Sequence[int], n: int, size: int) -> int:
    return table[n // size] * size + n % size


# --- 18.1 -------------------------------------------------------------------------------------------------------------


@exercise("18.1", "From rows to block tables", points=2)
def _(given: Given) -> str:
    block_table = given["block_table"]
    rng = random.Random(181)
    cases: list[tuple[list[int], list[int], int, int]] = [
        ([20, 21, 22, 23, 8, 9], [5, 2], 4, 3),
        ([7, 0, 3], [7, 0, 3], 1, 3),
        ([], [], 4, 2),
    ]
    for _ in range(60):
        size, count = rng.choice((1, 2, 4, 16)), rng.randrange(1, 7)
        table = rng.sample(range(20), count)
        length = rng.randrange((count - 1) * size + 1, count * size + 1)
        cases.append(([_slot(table, n, size) for n in range(length)], table, size, count + rng.randrange(3)))
    for row, table, size, width in cases:
        said, kept = f"row={row}, page_size={size}, width={width}.", list(row)
        got = block_table(row, size, width)
        expect(row == kept, f"{said} You changed the row.")
        _about_table(got, row, table, size, width, said)
    _refused_rows(block_table)
    return "63 rows with a block table, and rows that have none"


def _about_table(got: Any, row: list[int], table: list[int], size: int, width: int, said: str) -> None:
    want = table + [-1] * (width - len(table))
    expect(_is_list_of_numbers(got), f"{said} Return a list of whole numbers, not {a_kind(got)}.")
    if got == want:
        return
    expect(got != table, f"{said} Entries that aren't in use are −1, so that all tables have {width} entries.")
    expect(
        got != table + [0] * (width - len(table)),
        f"{said} You pad with 0, which is a block. A kernel would read its tokens. The padding is −1.",
    )
    expect(
        got[: len(table)] != row[::size] or size == 1 or not row,
        f"{said} These are slots, the first one of each block. A table has the numbers of blocks: slot // page_size.",
    )
    whole = table[: len(row) // size]
    expect(
        [each for each in got if each >= 0] != whole or whole == table,
        f"{said} The last block is missing. It counts although it isn't full.",
    )
    expect(
        len(got) <= width,
        f"{said} Your table has {len(got)} entries: one per token? There is one for each {size} tokens.",
    )
    expect_equal(got, want, f"{said} The table is wrong.")


def _refused_rows(block_table: Callable[..., Any]) -> None:
    odd: list[tuple[list[int], int, int, str]] = [
        ([20, 21, 23], 2, 4, "Token 2 is at offset 3 of its block."),
        ([20, 21, 22, 23, 9], 4, 4, "The second block begins at offset 1, and a table can't say that."),
        ([21, 22], 0, 4, "Token 0 is at offset 1 of its block."),
        ([20, 21, 26, 27], 2, 4, "Token 2 is at the right offset, but in another block than tokens 0 and 1."),
    ]
    for row, index, size, why in odd:
        said = f"row={row}, page_size={size}."
        message = _error_of(lambda row=row, size=size: block_table(row, size, 4), said, why)  # type: ignore[misc]
        expect(
            _names(message, (index, row[index])),
            f"{said} Token {index} is the first one that has a wrong slot, {row[index]}. Your ValueError says {message!r}; "
            "name both numbers.",
        )
    said = "row=[0, 1, 2, 3, 4], page_size=2, width=2."
    why = "It needs 3 blocks. A table that is cut off would lose the K/V of a token."
    message = _error_of(lambda: block_table([0, 1, 2, 3, 4], 2, 2), said, why)
    expect(_names(message, (3, 2)), f"{said} Your ValueError says {message!r}; name 3, the blocks, and 2, the width.")


# --- 18.2 -------------------------------------------------------------------------------------------------------------


@exercise("18.2", "Where the new tokens go", points=2)
def _(given: Given) -> str:
    new_slots = given["new_slots"]
    rng = random.Random(182)
    cases = [([[5, 2], [1, -1]], [6, 3], [3, 1], 4), ([[3, 0]], [2], [2], 1)]
    for _ in range(60):
        size, requests = rng.choice((1, 2, 4, 16)), rng.randrange(1, 5)
        lengths = [rng.randrange(1, 40) for _ in range(requests)]
        q_lens = [rng.randrange(1, min(length, 6) + 1) for length in lengths]
        width = max(-(-length // size) for length in lengths) + rng.randrange(2)
        free = rng.sample(range(requests * width), requests * width)
        tables = []
        for length in lengths:
            used = -(-length // size)
            tables.append([free.pop() for _ in range(used)] + [-1] * (width - used))
        cases.append((tables, lengths, q_lens, size))
    for tables, lengths, q_lens, size in cases:
        said = f"tables={tables}, lengths={lengths}, q_lens={q_lens}, page_size={size}."
        try:
            got = new_slots(tables, lengths, q_lens, size)
        except ValueError as error:
            why = "Every new token has a block: `lengths` counts it already, so the new ones are the last of a request."
            expect(False, f"{said} {why} But your code says: {error}")
        _about_slots(got, tables, lengths, q_lens, size, said)
    _refused_tokens(new_slots)
    return "62 batches, with one and with several new tokens of each request"


def _about_slots(got: Any, tables: Any, lengths: Any, q_lens: Any, size: int, said: str) -> None:
    expect(
        isinstance(got, tuple) and len(got) == 2, f"{said} Return two lists, positions and slots, not {a_kind(got)}."
    )
    for each in got:
        expect(_is_list_of_numbers(each), f"{said} Return two flat lists of whole numbers; one of yours is {each!r}.")
    positions, slots = got

    def both(start: int, first_table: bool = False) -> tuple[list[int], list[int]]:
        where, places = list[int](), list[int]()
        for table, length, count in zip(tables, lengths, q_lens, strict=True):
            for n in range(length - count + start, length + start):
                where.append(n)
                row = tables[0] if first_table else table
                places.append(_slot(row, n, size) if n // size < len(row) else -1)
        return where, places

    want, places = both(0)
    if (positions, slots) == (want, places):
        return
    expect(
        positions != both(1)[0],
        f"{said} `lengths` counts the new tokens already. So the newest one is at index length − 1.",
    )
    expect(
        positions != [n for length, count in zip(lengths, q_lens, strict=True) for n in range(length, length + count)],
        f"{said} `lengths` counts the new tokens already: they are the last ones of the request, not what follows it.",
    )
    one_each = [length - 1 for length in lengths]
    expect(
        positions != one_each or want == one_each,
        f"{said} A request may have several new tokens: the last `q_lens[i]` of it.",
    )
    expect_equal(positions, want, f"{said} The positions are wrong.")
    expect(
        slots != [n % size for n in want] or slots == places,
        f"{said} These are the offsets. A slot is block * page_size + offset.",
    )
    expect(
        slots != both(0, first_table=True)[1],
        f"{said} You read the first row for every request. The others would overwrite its K/V.",
    )
    expect_equal(slots, places, f"{said} The slots are wrong.")


def _refused_tokens(new_slots: Callable[..., Any]) -> None:
    for tables, lengths, q_lens, request, index, why in (
        ([[5, 2], [1, -1]], [6, 5], [1, 1], 1, 4, "The second entry of request 1 is −1, so its token has no block."),
        ([[5, 2], [1, 0]], [9, 5], [1, 1], 0, 8, "The table of request 0 has two blocks, for 8 tokens."),
        ([[5, -1]], [5], [3], 0, 4, "Tokens 2 and 3 have a block, and token 4 has none."),
    ):
        said = f"tables={tables}, lengths={lengths}, q_lens={q_lens}, page_size=4."
        args = (tables, lengths, q_lens, 4)
        try:
            message = _error_of(lambda args=args: new_slots(*args), said, why)  # type: ignore[misc]
        except IndexError:
            expect(False, f"{said} {why} Raise a ValueError that says so; an IndexError names no request.")
        expect(
            _names(message, (request, index)),
            f"{said} {why} Your ValueError says {message!r}; name the request, {request}, and the token, {index}.",
        )


# --- 18.4 -------------------------------------------------------------------------------------------------------------


@exercise("18.4", "What a tree sees", points=2)
def _(given: Given) -> str:
    tree_mask = given["tree_mask"]
    rng = random.Random(184)
    cases = [([-1, 0, 0], 1), ([-1, 0, 0, 1, 1, 2], 14), ([-1], 3), ([-1, 0, 1, 2], 2), ([-1, 0, 0], 0)]
    cases += [([-1, *(rng.randrange(n) for n in range(1, rng.randrange(2, 10)))], rng.randrange(12)) for _ in range(60)]
    for parents, context in cases:
        said, kept = f"parents={parents}, context={context}.", list(parents)
        got = tree_mask(parents, context)
        expect(parents == kept, f"{said} You changed the list of parents.")
        _about_tree(got, parents, context, said)
    return "65 trees, lines among them"


def _about_tree(got: Any, parents: list[int], context: int, said: str) -> None:
    expect(
        isinstance(got, tuple) and len(got) == 2,
        f"{said} Return the mask and the positions as two things, not {a_kind(got)}.",
    )
    mask, positions = got
    tree, nodes = DraftTree(range(len(parents)), parents), len(parents)
    want = tree.spec_mask(context) == 0
    expect(
        isinstance(mask, torch.Tensor) and mask.dtype is torch.bool,
        f"{said} The mask is a tensor of torch.bool, True where a node sees a token; yours is "
        f"{str(mask.dtype) if isinstance(mask, torch.Tensor) else a_kind(mask)}.",
    )
    expect(
        list(mask.shape) == list(want.shape),
        f"{said} The mask has a row for each of {nodes} nodes and a column for each of {context} + {nodes} tokens; yours "
        f"is {list(mask.shape)}.",
    )
    if not torch.equal(mask, want):
        _about_mask(mask, want, parents, context, said)
    right = tree.position_ids(context).tolist()
    expect(isinstance(positions, list), f"{said} The positions are a list, not {a_kind(positions)}.")
    by_index = list(range(context, context + nodes))
    expect(
        positions != by_index or right == by_index,
        f"{said} These are the indices of the nodes. Siblings have the same position: each would be the next token.",
    )
    expect(
        positions != [position - context for position in right] or not context,
        f"{said} These are the depths. The root is at position {context}, since {context} tokens are before it.",
    )
    expect_equal(positions, right, f"{said} The positions are wrong.")


def _about_mask(mask: torch.Tensor, want: torch.Tensor, parents: list[int], context: int, said: str) -> None:
    nodes = len(parents)
    expect(not torch.equal(mask, ~want), f"{said} Your mask is the other way round: True is for what a node sees.")
    expect(
        mask[:, :context].all(),
        f"{said} All nodes see the context: its tokens are part of the text, whichever draft is right.",
    )
    own = torch.arange(nodes)
    expect(mask[own, context + own].all(), f"{said} A node sees itself. Without that, it wouldn't know its own token.")
    causal = torch.arange(context + nodes) <= context + own[:, None]
    expect(
        not torch.equal(mask, causal),
        f"{said} This is the mask of a line: every node sees all before it. In a tree, siblings must not see each other.",
    )
    for node, parent in enumerate(parents):
        if parent >= 0:
            expect(
                mask[node, context + parent],
                f"{said} Node {node} doesn't see node {parent}, its parent, which is part of its path.",
            )
            if parents[parent] >= 0:
                expect(
                    mask[node, context + parents[parent]],
                    f"{said} Node {node} sees its parent, node {parent}, but not the parent of that one. Its path goes up "
                    "to the root.",
                )
    node, token = (mask & ~want).nonzero()[0].tolist() if bool((mask & ~want).any()) else (0, context)
    expect(
        not bool((mask & ~want).any()),
        f"{said} Node {node} sees node {token - context}, which isn't on its path. Only one of them can become part of "
        "the text.",
    )
    expect_equal(mask, want, f"{said} The mask is wrong.")
