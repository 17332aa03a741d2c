"""Checks of notebook 14: right answers pass, and each typical mistake gets its hint."""

import pytest

from notebooks.course import check
from notebooks.course.expectations import NotWritten
from notebooks.tools.student import cleared
from tests.solution_cells import gets_hint, passes, solutions, written

ANSWERS = solutions("14_guess_and_verify")
IDS = ("14.1", "14.2", "14.3", "14.4")
FIRST = "range(len(tokens) - n - 1, -1, -1)"
RETURN = "return tokens[start + n : start + n + count]"
LONGEST = "range(len(tokens) - 1, shortest - 1, -1)"
ROWS = "return [row for row, _ in each], [length for _, length in each]"
TOKENS = "    return tokens\n"
BREAK = """        tokens.append(token)
        if token == end or row == len(drafts) or token != drafts[row]:
            break
"""
BREAK_FIRST = """        if token == end or row == len(drafts) or token != drafts[row]:
            break
        tokens.append(token)
"""
SPEED = "expected_tokens(p, k) / seconds[1 + k]"

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("14.1", LONGEST, "range(len(tokens) - 1, 0, -1)", "no ending of at least"),
    ("14.1", LONGEST, "range(shortest, len(tokens))", "A longer one occurs earlier"),
    ("14.1", FIRST, "range(len(tokens) - n)", "Take the last of these"),
    ("14.1", RETURN, "return tokens[start : start + count]", "You return the match itself"),
    ("14.1", RETURN, "return tokens[start + n :]", "At most `count`"),
    ("14.2", "row == len(drafts) or token != drafts[row]", "False", "rows behind it have read a wrong token"),
    ("14.2", TOKENS, "    return [a for a, b in zip(drafts, sampled) if a == b] + sampled[-1:]\n",
     "behind it have read|that one included"),
    ("14.2", TOKENS, "    return []\n", "at least one token"),
    ("14.2", TOKENS, "    return [token + 1 for token in tokens]\n", "up to the first one that differs"),
    ("14.3", "range(k + 1))", "range(1, k + 1))", "own token is missing"),
    ("14.3", "return sum(p**j for j in range(k + 1))", "return 1 + p * k", r"with probability p \*\* j"),
    ("14.3", "return sum(p**j for j in range(k + 1))", "return p**k", r"probability that \*all\* drafts are right"),
    ("14.3", "return sum(p**j for j in range(k + 1))", "return 2 + k", "the sum of p"),
    ("14.3", SPEED, "expected_tokens(p, k)", r"give most tokens per \*pass\*"),
    ("14.4", "for length in range(start + 1, end + 1)]", "for length in [end] * (end - start)]", r"reads \*all\* drafts"),
    ("14.4", "range(start + 1, end + 1)", "range(start + 2, end + 1)", "row for each draft"),
    ("14.4", "for length in range(start + 1, end + 1)]", "for length in [end]]", r"one for each \*token\*"),
    ("14.4", "range(start + 1, end + 1)", "range(start + 3, end + 3)", r"length is starts\[i\] \+ 1"),
    ("14.4", ROWS, ROWS.replace("[row for row, _ in each]", "sorted(row for row, _ in each)"), "are side by side"),
]  # fmt: skip


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
    gets_hint(id, ANSWERS[id], right, wrong, hint)


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        (
            "14.1",
            "def lookup(tokens, shortest, count):\n"
            "    best = []\n    size = 0\n"
            "    for at in range(1, len(tokens)):\n"
            "        n = 0\n"
            "        while n < at and tokens[at - 1 - n] == tokens[-1 - n]:\n            n += 1\n"
            "        if n >= max(size, shortest, 1):\n            best, size = tokens[at : at + count], n\n"
            "    return best\n",
        ),
        (
            "14.2",
            "def counted(drafts, sampled, end):\n"
            "    right = next((i for i, (a, b) in enumerate(zip(drafts, sampled)) if a != b), len(drafts))\n"
            "    found = list(sampled[: right + 1])\n"
            "    return found[: found.index(end) + 1] if end in found else found\n",
        ),
        (
            "14.3",
            "def expected_tokens(p, k):\n    return k + 1 if p == 1 else (1 - p ** (k + 1)) / (1 - p)\n\n"
            "def best_k(p, seconds, most):\n"
            "    best = 0\n"
            "    for k in range(1, most + 1):\n"
            "        if expected_tokens(p, k) / seconds[k + 1] > expected_tokens(p, best) / seconds[best + 1] + 1e-12:\n"
            "            best = k\n    return best\n",
        ),
        (
            "14.4",
            "def decode_rows(rows, starts, ends):\n"
            "    counts = np.array(ends) - starts\n"
            "    lens = np.concatenate([np.arange(s + 1, e + 1) for s, e in zip(starts, ends)])\n"
            "    return np.repeat(rows, counts).tolist(), lens.tolist()\n",
        ),
    ],
)
def test_other_right_answers_pass(id: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, answer, capsys)
