"""Checks of notebook 18: right answers pass, and each typical mistake gets its hint."""

import pytest

from notebooks.course import check
from notebooks.course.expectations import NotWritten
from notebooks.tools.student import cleared
from tests.solution_cells import gets_hint, passes, solutions, written

ANSWERS = solutions("18_the_same_pools_in_blocks")
IDS = ("18.1", "18.2", "18.3", "18.4", "18.5")

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("18.1", "blocks + [-1] * (width - len(blocks))", "blocks", "Entries that aren't in use"),
    ("18.1", "[-1] * (width", "[0] * (width", "You pad with 0"),
    ("18.1", "return blocks + ", "return row[::page_size] + ", "These are slots"),
    ("18.1", "return blocks + [-1] * (width - len(blocks))",
     "full = blocks[: len(row) // page_size]\n    return full + [-1] * (width - len(full))", "last block is missing"),
    ("18.1", "return blocks + [-1] * (width - len(blocks))", "return [s // page_size for s in row]", "one per token"),
    ("18.1", "return blocks + [-1] * (width - len(blocks))", "return tuple(blocks)", "Return a list of whole numbers"),
    ("18.1", "return blocks + ", "row.append(0)\n    return blocks + ", "You changed the row"),
    ("18.1", "if slot != blocks[n // page_size] * page_size + n % page_size", "if False", "Raise a ValueError"),
    ("18.1", "if slot != blocks[n // page_size] * page_size + n % page_size", "if slot % page_size != n % page_size",
     "in another block"),
    ("18.1", "if slot != blocks[n // page_size] * page_size + n % page_size",
     "if slot // page_size != blocks[n // page_size]",
     "Token 2 is at offset 3"),
    ("18.1", "token {n} is in slot {slot}, which no block table can say", "no table", "name both numbers"),
    ("18.1", "if len(blocks) > width", "if False", "cut off would lose"),
    ("18.1", "{len(blocks)} blocks do not fit into a table of {width}", "too many", "name 3, the blocks"),
    ("18.2", "range(length - count, length)", "range(length, length + count)", "Every new token has a block"),
    ("18.2", "range(length - count, length)", "range(length - count + 1, length + 1)", "newest one is at index"),
    ("18.2", "range(length - count, length)", "range(length - 1, length)", "may have several new tokens"),
    ("18.2", "range(length - count, length)", "range(length)", "The positions are wrong"),
    ("18.2", "slots.append(table[page] * page_size + n % page_size)", "slots.append(n % page_size)",
     "These are the offsets"),
    ("18.2", "slots.append(table[page]", "slots.append(tables[0][page]", "first row for every request"),
    ("18.2", "* page_size + n % page_size)", "+ n % page_size)", "The slots are wrong"),
    ("18.2", "return positions, slots", "return slots", "Return two lists"),
    ("18.2", "return positions, slots", "return positions, tuple(slots)", "two flat lists"),
    ("18.2", "page >= len(table) or table[page] < 0", "page >= len(table)", "The second entry of request 1 is −1"),
    ("18.2", "page >= len(table) or table[page] < 0", "table[page] < 0", "an IndexError names no request"),
    ("18.2", "request {i}: token {n} has no block", "no block", "name the request"),
    ("18.3", "state['input_tokens'][:queries] = sampled[:, 0]",
     "state['input_tokens'] = torch.cat((sampled[:, 0], state['input_tokens'][queries:]))",
     "another tensor into the dictionary"),
    ("18.3", "    positions = state['seq_lens'][:queries].clone()\n", "    positions = state['seq_lens'][:queries] + 1\n",
     "one too far|outside a table"),
    ("18.3", "    positions = state['seq_lens'][:queries].clone()\n",
     "    positions = state['input_positions'][:queries].clone()\n",
     "must be their old lengths"),
    ("18.3", "    state['seq_lens'][:queries] += 1\n", "", "It counts the new token as well"),
    ("18.3", "state['seq_lens'][:queries] += 1", "state['seq_lens'] += 1", "padding rows stay as they are"),
    ("18.3", "block_tables[torch.arange(queries), positions // block_size]", "block_tables[0, positions // block_size]",
     "row 0 for every query"),
    ("18.3", "blocks * block_size + positions % block_size",
     "(block_tables[0, positions // block_size] + block_tables.stride(0) * torch.arange(queries)) * block_size"
     " + positions % block_size", "row 0 for every query"),
    ("18.3", "blocks * block_size + positions % block_size", "blocks", "These are blocks"),
    ("18.3", "blocks * block_size + positions % block_size",
     "block_tables[torch.arange(queries), (positions + 1) // block_size] * block_size + (positions + 1) % block_size",
     "\\*after\\* the step|outside a table"),
    ("18.3", "sampled[:, 0]", "sampled[:, 0] + 1", "input_tokens of the queries are wrong"),
    ("18.3", "    state['slot_mapping'][queries:] = -1\n", "", "from earlier"),
    ("18.3", "state['slot_mapping'][queries:] = -1", "state['slot_mapping'][queries:] = 0", "which is a slot"),
    ("18.3", "    state['input_tokens'][queries:] = 0\n", "", "must have 0 everywhere"),
    ("18.3", "    state['input_positions'][queries:] = 0\n", "", "must have 0 everywhere"),
    ("18.3", "    queries = len(sampled)\n",
     "    queries = len(block_tables)\n    sampled = torch.cat([sampled] * queries)[:queries]\n",
     "outside a table"),
    ("18.3", "    queries = len(sampled)\n", "    queries = len(sampled)\n    block_tables[0, 0] = 1\n",
     "which is only read"),
    ("18.4", "return mask, ", "return ~mask, ", "the other way round"),
    ("18.4", "    mask[:, :context] = True\n", "", "All nodes see the context"),
    ("18.4", "        mask[node, context + node] = True\n", "        pass\n", "A node sees itself"),
    ("18.4", "            mask[node] |= mask[parent]\n", "            pass\n", "doesn't see node 0, its parent"),
    ("18.4", "            mask[node] |= mask[parent]\n", "            mask[node, context + parent] = True\n",
     "Its path goes up to the root"),
    ("18.4", "            mask[node] |= mask[parent]\n", "            mask[node, context : context + node] = True\n",
     "the mask of a line"),
    ("18.4", "            mask[node] |= mask[parent]\n",
     "            mask[node] |= mask[parent]\n            mask[node, -1] = True\n",
     "isn't on its path"),
    ("18.4", "(mask.sum(1) - 1).tolist()", "list(range(context, context + len(parents)))", "indices of the nodes"),
    ("18.4", "(mask.sum(1) - 1).tolist()", "(mask.sum(1) - 1 - context).tolist()", "These are the depths"),
    ("18.4", "(mask.sum(1) - 1).tolist()", "mask.sum(1).tolist()", "The positions are wrong"),
    ("18.4", "(mask.sum(1) - 1).tolist()", "mask.sum(1) - 1", "The positions are a list"),
    ("18.4", "return mask, ", "return mask.float(), ", "a tensor of torch.bool"),
    ("18.4", "return mask, ", "return mask[:, 1:], ", "a column for each"),
    ("18.4", "return mask, (mask.sum(1) - 1).tolist()", "return mask", "as two things"),
    ("18.4", "return mask, ", "parents.append(0)\n    return mask, ", "You changed the list"),
    ("18.5", "'a': (2, 0)", "'a': (1, 0)", "phase two has the last word"),
    ("18.5", "'b': (2, 561002)", "'b': (2, 0)", "makes the sequences longer"),
    ("18.5", "'c': (1, 161001)", "'c': (1, 161002)", "a null pointer in C"),
    ("18.5", "'d': (1, 561002)", "'d': (1, 161002)", "a whole number"),
    ("18.5", "'e': (1, 161002)", "'e': (1, 561002)", "its kind of numbers"),
    ("18.5", "'f': (2, 161002)", "'f': (1, 161002)", "read again at each run"),
    ("18.5", "'g': (1, 561002)", "'g': (1, 161002)", "don't fit together"),
    ("18.5", "'h': (1, 161002)", "'h': (2, 161002)", "would change the other one"),
    ("18.5", "'i': (2, 161001)", "'i': (1, 161001)", "An executor that is None"),
    ("18.5", "        'i': (2, 161001),\n", "", "no answer for i"),
    ("18.5", "'a': (2, 0)", "'a': 0", "two whole numbers"),
    ("18.5", "'a': (2, 0)", "'a': (2, 1)", "is none of"),
    ("18.5", "    return {", "    return 5\n    return {", "Return a dictionary"),
]  # fmt: skip


def source(id: str) -> str:
    return ANSWERS[id].replace('"', "'").replace("'''", '"""')


@pytest.mark.parametrize("id", IDS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(ANSWERS) == set(IDS)
    passes(id, ANSWERS[id], capsys)


@pytest.mark.parametrize("id", IDS)
def test_a_stub_is_not_written_yet(id: str) -> None:
    with pytest.raises(NotWritten):
        check(id, written(cleared(ANSWERS[id], id)))


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, source(id), right, wrong, hint)


OTHERS = [
    (
        "18.1",
        "def block_table(row, page_size, width):\n    table = []\n    for n in range(0, len(row), page_size):\n"
        "        part = row[n : n + page_size]\n        for i, slot in enumerate(part):\n"
        "            if slot != part[0] + i or part[0] % page_size:\n"
        "                raise ValueError(f'slot {slot} of token {n + i}')\n        table.append(part[0] // page_size)\n"
        "    if len(table) > width:\n        raise ValueError(f'width {width} is less than {len(table)}')\n"
        "    while len(table) < width:\n        table.append(-1)\n    return table",
    ),
    (
        "18.2",
        "def new_slots(tables, lengths, q_lens, page_size):\n    pairs = []\n"
        "    for i in range(len(tables)):\n        for n in range(lengths[i])[-q_lens[i]:]:\n"
        "            page, offset = divmod(n, page_size)\n            row = dict(enumerate(tables[i]))\n"
        "            if row.get(page, -1) == -1:\n                raise ValueError(f'token {n} of request {i}')\n"
        "            pairs.append((n, row[page] * page_size + offset))\n"
        "    return [n for n, _ in pairs], [slot for _, slot in pairs]",
    ),
    (
        "18.3",
        "def advance(state, sampled, block_tables, block_size):\n    for i in range(len(state['seq_lens'])):\n"
        "        if i >= len(sampled):\n            state['input_tokens'][i] = state['input_positions'][i] = 0\n"
        "            state['slot_mapping'][i] = -1\n            continue\n        n = int(state['seq_lens'][i])\n"
        "        state['input_tokens'][i] = sampled[i, 0]\n        state['input_positions'][i] = n\n"
        "        state['seq_lens'][i] = n + 1\n"
        "        state['slot_mapping'][i] = block_tables[i, n // block_size] * block_size + n % block_size",
    ),
    (
        "18.4",
        "def tree_mask(parents, context):\n    rows, positions = [], []\n    for node in range(len(parents)):\n"
        "        path, at = [], node\n        while at >= 0:\n            path.append(at)\n            at = parents[at]\n"
        "        rows.append([True] * context + [n in path for n in range(len(parents))])\n"
        "        positions.append(context + len(path) - 1)\n    return torch.tensor(rows), positions",
    ),
]


@pytest.mark.parametrize(("id", "answer"), OTHERS)
def test_other_right_answers_pass(id: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, answer, capsys)
