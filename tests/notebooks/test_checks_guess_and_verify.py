"""Checks of notebook 14: right answers pass, and each typical mistake gets its hint."""

import random

import pytest

from nanoinfer.drafting.ngram import SuffixIndex
from notebooks.course import check
from notebooks.course.checks import nb14, nb14_passes
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
    ("14.1", LONGEST, "range(len(tokens) - 1, 0, -1)", "no ending of at least 2 tokens occurs earlier.*The longest"),
    ("14.1", "range(len(tokens) - n - 1,", "range(len(tokens) - n,", "something to propose"),
    ("14.1", LONGEST, "range(shortest, len(tokens))", "you use an ending of 2. A longer one occurs earlier"),
    ("14.1", FIRST, "range(len(tokens) - n)", "Take the last of these"),
    ("14.1", RETURN, "return tokens[start : start + count]", "you return the match itself"),
    ("14.1", RETURN, "return tokens[start + n :]", "At most 3 are wanted"),
    ("14.1", "    return []", "    return None", "return a list of tokens"),
    ("14.1", FIRST, "range(len(tokens) - 2 * n, -1, -1)", "A longer one occurs.*may overlap"),
    ("14.1", RETURN, "return tokens[start + n + 1 :][:count]", "Return what follows the last of these"),
    ("14.1", "    for n in", "    tokens.append(tokens.pop() if tokens else 0)\n    for n in", "you changed `tokens`"),
    ("14.2", "token == end or ", "", "is the end token, and the request gets nothing after it"),
    ("14.2", BREAK, BREAK_FIRST, "at least one token|counts, too"),
    ("14.2", BREAK, BREAK_FIRST.replace("token == end or ", ""), "counts, too"),
    ("14.2", "row == len(drafts) or token != drafts[row]", "False", "rows behind it have read a wrong token"),
    ("14.2", TOKENS, "    return tokens[:-1] if len(tokens) > 1 else tokens\n", "counts, too"),
    ("14.2", TOKENS, "    return tokens[: len(tokens) - (tokens[-1] == end)] or tokens\n", "end token itself"),
    ("14.2", TOKENS, "    return [a for a, b in zip(drafts, sampled) if a == b]\n", "counts, too"),
    ("14.2", TOKENS, "    return [a for a, b in zip(drafts, sampled) if a == b] + sampled[-1:]\n",
     "behind it have read|that one included"),
    ("14.2", TOKENS, "    return []\n", "at least one token"),
    ("14.2", TOKENS, "    return [token + 1 for token in tokens]\n", "up to the first one that differs"),
    ("14.2", TOKENS, "    sampled.clear()\n    return tokens\n", "you changed `drafts` or `sampled`"),
    ("14.2", TOKENS, "    return len(tokens)\n", "return a list of tokens, not an int"),
    ("14.3", "range(k + 1))", "range(1, k + 1))", "own token is missing"),
    ("14.3", "return sum(p**j for j in range(k + 1))", "return 1 + p * k", r"with probability p \*\* j"),
    ("14.3", "return sum(p**j for j in range(k + 1))", "return p**k", r"probability that \*all\* drafts are right"),
    ("14.3", "return sum(p**j for j in range(k + 1))", "return 2 + k", "the sum of p"),
    ("14.3", "return sum(p**j for j in range(k + 1))", "return [p]", "return a number, not a list"),
    ("14.3", SPEED, "expected_tokens(p, k)", r"give most tokens per \*pass\*"),
    ("14.3", SPEED, "expected_tokens(p, k) / (seconds[k] or seconds[1])", "has k \\+ 1 rows"),
    ("14.3", "max(range(most + 1),", "max(range(most, -1, -1),", "Take the fewest"),
    ("14.3", "max(range(most + 1),", "1 + max(range(most + 1),", "It must be 0|tokens per second"),
    ("14.3", "max(range(most + 1),", "min(range(most + 1),", "tokens per second with"),
    ("14.3", "return max(range(most + 1)", "return 1.0 * max(range(most + 1)", "return a number of drafts, not a float"),
    ("14.4", "range(start + 1, end + 1)", "range(start, end)", "these are positions"),
    ("14.4", "for length in range(start + 1, end + 1)]", "for length in [end] * (end - start)]", r"reads \*all\* drafts"),
    ("14.4", "range(start + 1, end + 1)", "range(start + 2, end + 1)", "row for each draft"),
    ("14.4", "for length in range(start + 1, end + 1)]", "for length in [end]]", r"one for each \*token\*"),
    ("14.4", "range(start + 1, end + 1)", "range(start + 1, end + 2)", "The pass has"),
    ("14.4", "range(start + 1, end + 1)", "range(start + 3, end + 3)", r"length is starts\[i\] \+ 1"),
    ("14.4", ROWS, ROWS.replace("[row for row, _ in each]", "sorted(row for row, _ in each)"), "are side by side"),
    ("14.4", ROWS, "return [row for row, _ in each], []", "Each token of the pass has one of both"),
    ("14.4", ROWS, "return each", "return two lists"),
    ("14.4", ROWS, "rows.reverse()\n    " + ROWS, "you changed one of the lists"),
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


def test_lookup_finds_as_much_as_the_engines_index() -> None:
    """The exercise and the package agree on the longest ending that occurred before."""
    tokens = [1, 2, 3, 1, 2, 4, 1, 2, 3, 3, 3, 1, 2, 3]
    index = SuffixIndex()
    for size, token in enumerate(tokens, 1):
        index.append(token)
        longest = max((n for n in range(1, size) if nb14._starts(tokens[:size], n)), default=0)
        assert index.match_length == longest


def test_the_expected_tokens_of_the_check_are_those_of_a_simulation() -> None:
    generator, passes_, total = random.Random(0), 20_000, 0
    for _ in range(passes_):
        right = 0
        while right < 3 and generator.random() < 0.7:
            right += 1
        total += right + 1
    assert total / passes_ == pytest.approx(nb14_passes._tokens(0.7, 3), abs=0.03)
