"""Attention for notebook 07's checks: loops in float64, correct or with the usual mistakes, to find those in an answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from notebooks.course.expectations import Hint, expect_equal
from notebooks.course.several import find_mistakes

ATOL = 2e-4
N = 24  # slots


def qkv(tokens: int, num_heads: int, num_kv_heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [tokens, H, 8] and buffers [N, Hk, 8]."""
    generator = torch.Generator().manual_seed(100 * tokens + 10 * num_heads + num_kv_heads)
    q = torch.randn(tokens, num_heads, 8, generator=generator)
    keys, values = torch.randn(2, N, num_kv_heads, 8, generator=generator)
    return q, 2 * keys, values


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: Sequence[int],
    scale: float = 0.3,
    tiled: bool = False,
    over_heads: bool = False,
    mask: str = "shifted",
    hidden: float = -torch.inf,
) -> torch.Tensor:
    """Attention of the last `len(q)` of the tokens in `slots`, by loops in float64. Each option makes a usual mistake."""
    new, num_heads, num_kv_heads, total = len(q), q.shape[1], keys.shape[1], len(slots)
    shift = {"shifted": total - new, "unshifted": 0, "none": total}[mask]
    scores = torch.empty(new, num_heads, total, dtype=torch.float64)
    kv_head = [head % num_kv_heads if tiled else head // (num_heads // num_kv_heads) for head in range(num_heads)]
    for i in range(new):
        for head in range(num_heads):
            for place, slot in enumerate(slots):
                dot = q[i, head].double() @ keys[slot, kv_head[head]].double() * scale
                scores[i, head, place] = dot if place <= shift + i else hidden
    weights = scores.softmax(dim=1 if over_heads else 2)
    out = torch.zeros(q.shape, dtype=torch.float64)
    for i in range(new):
        for head in range(num_heads):
            for place, slot in enumerate(slots):
                out[i, head] += weights[i, head, place] * values[slot, kv_head[head]].double()
    return out.float()


def attend_each(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: Sequence[Sequence[int]], **options: Any
) -> torch.Tensor:
    """Attention of one query per request, over the slots in its row."""
    return torch.cat([attend(q[i : i + 1], keys, values, row, **options) for i, row in enumerate(rows)])


@dataclass
class Attended:
    """The student's answer to a case. `reference()` is the right one; `mistakes`: the options of `reference` for each."""

    what: str
    got: Any
    reference: Callable[..., torch.Tensor]
    mistakes: Mapping[str, Mapping[str, Any]]

    def is_given_by(self, hints: Sequence[str]) -> bool:
        """Whether the mistakes with these hints explain the answer. Without hints: whether the answer is right."""
        options = {name: value for hint in hints for name, value in self.mistakes[hint].items()}
        return torch.allclose(self.got.float(), self.reference(**options), atol=ATOL)


def expect_attention(answers: Sequence[Attended]) -> None:
    """Raises Hint unless all are right, with the hints for the mistakes that explain all answers or the first wrong one."""
    for answer in answers:
        want = answer.reference()
        if not isinstance(answer.got, torch.Tensor) or answer.got.shape != want.shape:
            expect_equal(answer.got, want, f"{answer.what}: the output isn't the right weighted mean of the values")
    wrong = next((answer for answer in answers if not answer.is_given_by([])), None)
    if wrong is not None:
        hints = {hint: hint for hint in wrong.mistakes}
        if hint := find_mistakes(hints, lambda made: all(answer.is_given_by(made) for answer in answers)):
            raise Hint(f"{wrong.what}: {hint}")
        if hint := find_mistakes(hints, wrong.is_given_by):
            raise Hint(f"{wrong.what}: {hint}")
    for answer in answers:
        hint = f"{answer.what}: the output isn't the right weighted mean of the values"
        expect_equal(answer.got, answer.reference(), hint, atol=ATOL)
