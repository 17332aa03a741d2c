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
    ("18.1", "if slot != blocks[n // page_size] * page_size + n % page_size", "if False", "Raise a ValueError"),
    ("18.2", "range(length - count, length)", "range(length, length + count)", "your code raises ValueError"),
    ("18.2", "range(length - count, length)", "range(length - count + 1, length + 1)", "newest one is at index"),
    ("18.2", "range(length - count, length)", "range(length - 1, length)", "may have several new tokens"),
    ("18.2", "slots.append(table[page] * page_size + n % page_size)", "slots.append(n % page_size)",
     "These are the offsets"),
    ("18.2", "slots.append(table[page]", "slots.append(tables[0][page]", "first row for every request"),
    ("18.3", "state['input_tokens'][:queries] = sampled[:, 0]",
     "state['input_tokens'] = torch.cat((sampled[:, 0], state['input_tokens'][queries:]))",
     "another tensor into the dictionary"),
    ("18.3", "    state['seq_lens'][:queries] += 1\n", "", "It counts the new token as well"),
    ("18.3", "block_tables[torch.arange(queries), positions // block_size]", "block_tables[0, positions // block_size]",
     "row 0 for every query"),
    ("18.3", "blocks * block_size + positions % block_size", "blocks", "These are blocks"),
    ("18.3", "blocks * block_size + positions % block_size",
     "block_tables[torch.arange(queries), (positions + 1) // block_size] * block_size + (positions + 1) % block_size",
     "\\*after\\* the step|outside a table"),
    ("18.4", "return mask, ", "return ~mask, ", "the other way round"),
    ("18.4", "    mask[:, :context] = True\n", "", "All nodes see the context"),
    ("18.4", "            mask[node] |= mask[parent]\n", "            pass\n", "doesn't see its parent"),
    ("18.4", "            mask[node] |= mask[parent]\n", "            mask[node, context + parent] = True\n",
     "Its path goes up to the root"),
    ("18.4", "            mask[node] |= mask[parent]\n", "            mask[node, context : context + node] = True\n",
     "the mask of a line"),
    ("18.5", "'a': (2, 0)", "'a': (1, 0)", "phase two has the last word"),
    ("18.5", "'b': (2, 561002)", "'b': (2, 0)", "makes the sequences longer"),
    ("18.5", "'c': (1, 161001)", "'c': (1, 161002)", "a null pointer in C"),
    ("18.5", "'d': (1, 561002)", "'d': (1, 161002)", "a whole number"),
    ("18.5", "'e': (1, 161002)", "'e': (1, 561002)", "its kind of numbers"),
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
