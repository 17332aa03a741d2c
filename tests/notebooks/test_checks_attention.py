"""Checks of notebook 07: the notebook's solutions pass, and each typical mistake gets its hint."""

import pytest

from tests.solution_cells import gets_hint, passes, solutions

SOLUTIONS = solutions("07_extend_and_decode")

# exercise, what of the solution is replaced, by what, and what the hint must say
MISTAKES = [
    ("7.1", "slots >= 0", "slots >= -1", "you changed the last slot of the pool"),
    ("7.1", "value_buffer[slots[wanted]] = v[wanted]", "pass", "the value buffer. Token i"),
    ("7.1", "key_buffer[slots[wanted]] =", "key_buffer[:len(slots[wanted])] =", "change no other slot"),
    ("7.2", "repeat_interleave(num_heads // kv.shape[1], dim=1)", "repeat(1, num_heads // kv.shape[1], 1)", "neighbours"),
    ("7.2", ", dim=1)", ", dim=2)", "shape"),
    ("7.3", " * scale", "", "too sharp"),
    ("7.3", "dim=1)  # [S, H, D]", "dim=1).flip(1)", "isn't the right weighted mean of the values"),
    ("7.3", "slots = kv_indices[start:end]", "slots = kv_indices", "sees all requests' slots"),
    ("7.3", "slots = kv_indices[start:end]", "slots = torch.arange(start, end)", "look up each token's slot"),
    ("7.3", "softmax(dim=-1)", "softmax(dim=0)", "runs over heads"),
    ("7.4", "torch.arange(prefix_len, seq_len)", "torch.arange(seq_len - prefix_len)", "row i isn't position i"),
    ("7.4", "torch.arange(prefix_len, seq_len)", "torch.arange(seq_len)", "one row per new token"),
    ("7.4", "key <= query", "key < query", "must see itself"),
    ("7.4", "< sliding_window", "<= sliding_window", "yours has 4"),
    ("7.4", "return seen if sliding_window is None else", "return seen or", "your code raises|too far back"),
    ("7.5", " * scale", "", "q · k by `scale`"),
    ("7.5", "scores.masked_fill(hidden, -torch.inf)", "scores", "the mask is missing"),
    ("7.5", "torch.arange(total - new, total)", "torch.arange(new)", "didn't shift the mask by the prefix"),
    ("7.5", "-torch.inf", "0.0", "minus infinity before the softmax"),
    ("7.5", "    new, total = len(q), len(slots)\n",
     "    new, total = len(q), len(slots)\n    slots = torch.arange(total)\n", "look the slots up in `slots`"),
]  # fmt: skip


def test_every_exercise_has_mistakes_here() -> None:
    assert {id for id, *_ in MISTAKES} == set(SOLUTIONS)


@pytest.mark.parametrize("id", SOLUTIONS)
def test_the_notebooks_solution_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, SOLUTIONS[id], capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, SOLUTIONS[id], right, wrong, hint)
