"""Checks of notebook 06: the notebook's solutions pass, and each typical mistake gets its hint."""

import pytest

from tests.solution_cells import gets_hint, passes, solutions

SOLUTIONS = solutions("06_extend_and_decode")

# exercise, what of the solution is replaced, by what, and what the hint must say
MISTAKES = [
    ("6.1", "slots >= 0", "slots >= -1", "the last slot of the pool has changed"),
    ("6.1", "= k[wanted]", "= v[wanted]", "keys and values have changed places|keys; token i"),
    ("6.1", "value_buffer[slots[wanted]] = v[wanted]", "pass", "values; token i"),
    ("6.1", "key_buffer[slots[wanted]] =", "key_buffer[:len(slots[wanted])] =", "no other slot may change"),
    ("6.2", "repeat_interleave(num_heads // kv.shape[1], dim=1)", "repeat(1, num_heads // kv.shape[1], 1)", "Neighbours"),
    ("6.2", ", dim=1)", ", dim=2)", "shape"),
    ("6.3", " * scale", "", "too sharp"),
    ("6.3", "dim=1)  # [S, H, D]", "dim=1).flip(1)", "the weighted mean of the values differs"),
    ("6.3", "slots = kv_indices[start:end]", "slots = kv_indices", "the slots of all requests"),
    ("6.3", "slots = kv_indices[start:end]", "slots = torch.arange(start, end)", "look each token's slot up"),
    ("6.3", "softmax(dim=-1)", "softmax(dim=0)", "runs over heads"),
    ("6.3", ".softmax(dim=-1)", ".exp()\n        weights = weights / weights.sum(-1, keepdim=True)", "exp overflows"),
    ("6.3", "out[i] = torch", "key_buffer += 1\n        out[i] = torch", "must only read it|differs"),
    ("6.4", "torch.arange(prefix_len, seq_len)", "torch.arange(seq_len - prefix_len)", "row i is not position i"),
    ("6.4", "torch.arange(prefix_len, seq_len)", "torch.arange(seq_len)", "one row per new token"),
    ("6.4", "key <= query", "key < query", "sees itself"),
    ("6.4", "< sliding_window", "<= sliding_window", "yours has 4"),
    ("6.4", "return seen if sliding_window is None else", "return seen or", "your code raises|too far back"),
    ("6.4", "seen & (query - key < sliding_window)", "seen", "too far back"),
    ("6.4", "key <= query", "(key <= query).float()", "must be boolean"),
    ("6.4", "key <= query", "key >= query", "sees keys up to itself"),
    ("6.5", " * scale", "", "times `scale`"),
    ("6.5", "scores.masked_fill(hidden, -torch.inf)", "scores", "the mask is missing"),
    ("6.5", "torch.arange(total - new, total)", "torch.arange(new)", "not shifted by the prefix"),
    ("6.5", "-torch.inf", "0.0", "minus infinity before the softmax"),
    ("6.5", "key_buffer[slots]", "key_buffer[:total]", "differs"),
    ("6.5", "    new, total = len(q), len(slots)\n",
     "    new, total = len(q), len(slots)\n    slots = torch.arange(total)\n", "look them up in `slots`"),
    ("6.5", "> torch.arange", ">= torch.arange", "sees at least itself"),
]  # fmt: skip


def test_every_exercise_has_mistakes_here() -> None:
    assert {id for id, *_ in MISTAKES} == set(SOLUTIONS)


@pytest.mark.parametrize("id", SOLUTIONS)
def test_the_notebooks_solution_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, SOLUTIONS[id], capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_hint_what_it_is(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, SOLUTIONS[id], right, wrong, hint)
