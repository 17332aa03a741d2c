"""Checks of notebook 18: block tables, the slots of new tokens, and npu_advance_step_flashattn by hand."""

import random
from typing import Any

import torch

from nanoinfer.ascend.advance_step import npu_advance_step_flashattn
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect
from notebooks.course.tables import Mistake, Wrong, compare, expect_refused


def _slot(table: list[int], n: int, size: int) -> int:
    return table[n // size] * size + n % size


@exercise("18.1", "From rows to block tables", points=2)
def _(given: Given) -> str:
    block_table, rng = given["block_table"], random.Random(181)
    cases: list[tuple[list[int], int, int]] = [([20, 21, 22, 23, 8, 9], 4, 3), ([7, 0, 3], 1, 3), ([], 4, 2)]
    for _ in range(60):
        size, count = rng.choice((1, 2, 4, 16)), rng.randrange(1, 7)
        table = rng.sample(range(20), count)
        length = rng.randrange((count - 1) * size + 1, count * size + 1)
        cases.append(([_slot(table, n, size) for n in range(length)], size, count + rng.randrange(3)))
    mistakes: dict[str, Mistake] = {
        "You pad with 0, which is a block. A kernel would read its tokens. The padding is −1.": "zero",
        "Entries that aren't in use are −1, so that all tables have `width` entries.": "unpadded",
        "These are slots, the first one of each block. A table has the numbers of blocks: slot // page_size.": "slots",
        "The last block is missing. It counts although it isn't full.": "not_last",
    }
    hint = "one block for each page_size tokens, then −1 up to `width`"
    compare(block_table, _table, cases, mistakes, hint=hint)
    for row, index, size, why in (
        ([20, 21, 23], 2, 4, "Token 2 is at offset 3 of its block."),
        ([20, 21, 22, 23, 9], 4, 4, "The second block begins at offset 1, and a table can't say that."),
        ([20, 21, 26, 27], 2, 4, "Token 2 is at the right offset, but in another block than tokens 0 and 1."),
    ):
        said = f"row={row}, page_size={size}. {why}"
        expect_refused(lambda row=row, size=size: block_table(row, size, 4), (index, row[index]), said)  # type: ignore[misc]
    cut = "row=[0, 1, 2, 3, 4], page_size=2, width=2. It needs 3 blocks, and a table that is cut off would lose K/V."
    expect_refused(lambda: block_table([0, 1, 2, 3, 4], 2, 2), (3, 2), cut)
    return "63 rows with a block table, and rows that have none"


def _table(row: list[int], page_size: int, width: int, wrong: Wrong = ()) -> list[int]:
    firsts = row[::page_size] if "not_last" not in wrong or len(row) % page_size == 0 else row[::page_size][:-1]
    table = [slot if "slots" in wrong else slot // page_size for slot in firsts]
    return table if "unpadded" in wrong else table + [0 if "zero" in wrong else -1] * (width - len(table))


@exercise("18.2", "Where the new tokens go", points=2)
def _(given: Given) -> str:
    new_slots, rng = given["new_slots"], random.Random(182)
    cases = [([[5, 2], [1, -1]], [6, 3], [3, 1], 4), ([[3, 0]], [2], [2], 1)]
    for _ in range(60):
        size, requests = rng.choice((1, 2, 4, 16)), rng.randrange(1, 5)
        lengths = [rng.randrange(1, 40) for _ in range(requests)]
        q_lens = [rng.randrange(1, min(length, 6) + 1) for length in lengths]
        width = max(-(-length // size) for length in lengths) + rng.randrange(2)
        free, tables = rng.sample(range(requests * width), requests * width), []
        for length in lengths:
            used = -(-length // size)
            tables.append([free.pop() for _ in range(used)] + [-1] * (width - used))
        cases.append((tables, lengths, q_lens, size))
    mistakes: dict[str, Mistake] = {
        "`lengths` counts the new tokens already. So the newest one is at index length − 1.": "shifted",
        "`lengths` counts the new tokens already: they are the last ones of the request, not what follows it.": "behind",
        "A request may have several new tokens: the last `q_lens[i]` of it.": "one_each",
        "These are the offsets. A slot is block * page_size + offset.": "offsets",
        "You read the first row for every request. The others would overwrite its K/V.": "first_table",
    }
    hint = "return two flat lists, positions and slots, with an entry for each new token"
    compare(new_slots, _places, cases, mistakes, hint=hint)
    for tables, lengths, q_lens, numbers, why in (
        ([[5, 2], [1, -1]], [6, 5], [1, 1], (1, 4), "The second entry of request 1 is −1: token 4 has no block."),
        ([[5, 2], [1, 0]], [9, 5], [1, 1], (0, 8), "The table of request 0 has two blocks, for 8 tokens."),
        ([[5, -1]], [5], [3], (0, 4), "Tokens 2 and 3 of request 0 have a block, and token 4 has none."),
    ):
        said = f"tables={tables}, lengths={lengths}, q_lens={q_lens}, page_size=4. {why} Name request and token."
        expect_refused(lambda args=(tables, lengths, q_lens, 4): new_slots(*args), numbers, said)  # type: ignore[misc]
    return "62 batches, with one and with several new tokens of each request"


def _places(
    tables: list[list[int]], lengths: list[int], q_lens: list[int], page_size: int, wrong: Wrong = ()
) -> tuple[list[int], list[int]]:
    where, places = list[int](), list[int]()
    for table, length, count in zip(tables, lengths, q_lens, strict=True):
        new = 1 if "one_each" in wrong else count
        start = length + ("shifted" in wrong) - (0 if "behind" in wrong else new)
        for n in range(start, start + new):
            where.append(n)
            slot = _slot(tables[0] if "first_table" in wrong else table, n, page_size)
            places.append(n % page_size if "offsets" in wrong else slot)
    return where, places


CHANGED = ("input_tokens", "input_positions", "seq_lens", "slot_mapping")


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


@exercise("18.3", "The operator in plain torch", points=2)
def _(given: Given) -> str:
    advance, rng = given["advance"], random.Random(183)
    sizes = [(4, 2, 4), (1, 1, 1), (3, 3, 4)]
    sizes += [(rng.randrange(2, 7), rng.randrange(1, 3), rng.choice((1, 2, 4, 16))) for _ in range(40)]
    cases = [(_batch(rng, *each), each[2]) for each in sizes]

    def call(batch: dict[str, Any], block_size: int) -> dict[str, Any]:
        own = {name: tensor.clone() for name, tensor in batch.items()}
        state = {name: own[name] for name in CHANGED}
        try:
            advance(state, own["sampled_token_ids"], own["block_tables"], block_size)
        except IndexError as error:
            if len(own["sampled_token_ids"]) == len(own["seq_lens"]):
                raise
            outside = f"Your code looks for a block outside a table: {error}. Only queries look into the table."
            expect(False, f"{outside} The length of a padding row means nothing.")
        for name in CHANGED:
            old = f"You put another tensor into the dictionary as {name!r}. On the device, the next pass reads the old one"
            expect(state.get(name) is own[name], f"{old}: write into it, as in state[name][:n] = ...")
        for name in ("sampled_token_ids", "block_tables"):
            expect(torch.equal(own[name], batch[name]), f"You changed {name}, which is only read.")
        return own

    mistakes: dict[str, Mistake] = {
        "The positions are one too far: the new token's index is the length as it *was*. Keep the old lengths.": "places",
        "seq_lens stays as it was. It counts the new token as well, so it grows by 1.": "old_lens",
        "The slots belong to the lengths *after* the step. A token at index n is in slot n of its row.": "slots_after",
        "The slots are read from row 0 for every query. Query i has the blocks in row i.": "row_0",
        "These are blocks. The slot is block * block_size + the offset in it.": "blocks",
        "The padding has slot 0, which is a slot: the pass would overwrite the K/V in it. Its slot is −1.": "slot_0",
        "The padding keeps slots from earlier. With −1, nothing is stored.": "old_slots",
        "The padding keeps input_tokens from earlier, and must have 0 everywhere.": "input_tokens",
        "The padding keeps input_positions from earlier, and must have 0 everywhere.": "input_positions",
    }
    compare(call, _advanced, cases, mistakes, hint="the numbers after the step are wrong")
    return "43 batches, with and without padding"


def _advanced(batch: dict[str, Any], block_size: int, wrong: Wrong = ()) -> dict[str, Any]:
    after = {name: tensor.clone() for name, tensor in batch.items()}
    queries, lens = len(batch["sampled_token_ids"]), batch["seq_lens"]
    npu_advance_step_flashattn(**after, num_seqs=len(lens), num_queries=queries, block_size=block_size)
    lens, tables = lens[:queries], batch["block_tables"]
    after["input_positions"][:queries] += int("places" in wrong)
    after["seq_lens"][:queries] -= int("old_lens" in wrong)
    n = lens + ("slots_after" in wrong)
    blocks = tables[torch.zeros_like(n) if "row_0" in wrong else torch.arange(queries), n // block_size]
    after["slot_mapping"][:queries] = blocks if "blocks" in wrong else blocks * block_size + n % block_size
    padding = 0 if "slot_0" in wrong else -1
    after["slot_mapping"][queries:] = batch["slot_mapping"][queries:] if "old_slots" in wrong else padding
    for name in {"input_tokens", "input_positions"}.intersection(wrong):
        after[name][queries:] = batch[name][queries:]
    return after
