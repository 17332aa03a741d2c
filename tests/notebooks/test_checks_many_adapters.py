"""Checks of notebook 13: right answers pass, and each typical mistake gets its hint."""

import pytest

from notebooks.course import Hint, check
from tests.solution_cells import gets_hint, passes, solutions, written

ANSWERS = solutions("13_many_adapters")
IDS = ("13.1", "13.2", "13.3", "13.4", "13.5")
HASHABLE = "from collections.abc import Hashable\n\n"
KEY = "return None if adapter is None else adapter.id, extra_key"

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("13.1", "outputs + inputs for", "outputs for", "that is B alone"),
    ("13.1", "outputs + inputs for", "inputs for", "that is A alone"),
    ("13.1", "rank * width * sum(outputs + inputs", "width * sum(outputs * inputs", "the whole of b @ a"),
    ("13.1", "rank * width * sum", "rank * sum", "Each takes `width` bytes"),
    ("13.1", "in shapes)\n", "in shapes[:1])\n", "Add up all of them"),
    ("13.2", "scales[adapter] * ", "", "`scales` is missing"),
    ("13.2", "        if adapter >= 0:\n", "        if True:\n", "has no adapter, so its result is 0"),
    ("13.2", "torch.zeros", "torch.ones", "without an adapter get 0|of its own adapter"),
    ("13.2", "a[adapter].T", "a[0].T", "of its own adapter|your code raises"),
    ("13.2", "return added", "x.zero_()\n    return added", "you changed `x`"),
    ("13.3", " if adapter >= 0]", "]", "without an adapter"),
    ("13.3", " if adapter >= 0]", " if adapter > 0]", "the rows with an adapter"),
    ("13.3", "    rows.sort(key=lambda row: of_rows[row])\n", "", "sorted by it"),
    ("13.3", "key=lambda row: of_rows[row]", "key=lambda row: (of_rows[row], -row)", "stay in their order"),
    ("13.3", " and tiles[-1][2] < most", "", "A tile has at most"),
    ("13.4", KEY, "return extra_key if adapter is None else adapter.name", "finds the K/V of the old one"),
    ("13.4", KEY, "return adapter.name if adapter else None, extra_key", "finds the K/V of the old one"),
    ("13.4", KEY, "return id(adapter) if adapter else None, extra_key", r"Python's id\(\) is an address"),
    ("13.4", KEY, "return adapter.id if adapter else extra_key", "Two customers have"),
    ("13.4", KEY, "return adapter.id if adapter else None", "Two customers have"),
    ("13.5", "min(idle, key=lambda place: self.used[place])", "idle[0]", "'b' has to go"),
    ("13.5", "if each not in in_use]", "]", "a running request uses it|has to wait"),
    ("13.5", "            if not idle:\n                return None\n", "            idle = idle or [0]\n",
     "'c' has to wait: return None"),
    ("13.5", "        if adapter in self.adapters:\n            place = self.adapters.index(adapter)\n        elif",
     "        if", "is on the device already"),
    ("13.5", "min(idle", "max(idle", "'b' has to go"),
]  # fmt: skip


def source(id: str) -> str:
    """The solution, with what the notebook imports for it."""
    return HASHABLE + ANSWERS[id]


@pytest.mark.parametrize("id", IDS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(ANSWERS) == set(IDS)
    passes(id, source(id), capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, source(id), right, wrong, hint)


GROUPED = "def grouped(x, of_rows, a, b, scales):\n    "


@pytest.mark.parametrize(
    "body",
    [
        "y = torch.zeros(len(x), b[0].shape[0])\n    for i, (A, B, s) in enumerate(zip(a, b, scales)):\n"
        "        y[of_rows == i] += s * x[of_rows == i] @ A.T @ B.T\n    return y",
        "y = x.new_zeros(len(x), len(b[0]))\n    for i in range(len(a)):\n"
        "        rows = (of_rows == i).nonzero()[:, 0]\n"
        "        y[rows] = torch.einsum('ti,ri,or->to', x[rows], a[i], b[i]) * scales[i]\n"
        "    return y",
    ],
)  # fmt: skip
def test_other_products_by_groups_pass(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes("13.2", GROUPED + body, capsys)


def test_a_product_for_each_row_is_told_so() -> None:
    body = (
        "y = torch.zeros(len(x), len(b[0]))\n    for row, i in enumerate(of_rows.tolist()):\n"
        "        if i >= 0:\n            y[row] = scales[i] * b[i] @ (a[i] @ x[row])\n    return y"
    )
    with pytest.raises(Hint, match=r"you look up a matrix 6\d times"):
        check("13.2", written(GROUPED + body))


@pytest.mark.parametrize(
    "body",
    [
        "return ('base', extra_key) if adapter is None else ('adapter', adapter.id, extra_key)",
        "return (extra_key,) if adapter is None else (adapter.id, extra_key)",
        "return (-1 if adapter is None else adapter.id), extra_key",
    ],
)
def test_other_keys_pass(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes("13.4", f"def cache_key(adapter, extra_key):\n    {body}\n", capsys)
