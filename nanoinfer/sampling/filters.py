"""Filters: which tokens are likely enough to be drawn at all.

To add one: a function and its line in FILTERS here; a field, its check and its part of `draws_from_all` in SamplingParams.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from nanoinfer.sampling_params import SamplingParams


@dataclass(frozen=True)
class Filter:
    """`keep` sets the scores [b, V] of tokens to -inf that are left out, by the value [b, 1] of the field `name`.

    `leaves_out(value, V)`: whether a value can leave out any of V tokens. Where it cannot, `keep` is not called.
    """

    name: str
    leaves_out: Callable[[float, int], bool]
    keep: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def keep_top_k(scores: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Set all `scores` [b, V] to -inf but the `k` [b, 1] largest ones, and any that equal the smallest of those."""
    k = k.long()
    largest = scores.topk(int(k.max()), dim=-1).values
    return scores.masked_fill(scores < largest.gather(1, k - 1), -torch.inf)


def keep_top_p(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Nucleus sampling (Holtzman et al., 2020): keep the smallest set of likeliest tokens whose total probability reaches
    `top_p` [b, 1], and set all other `scores` [b, V] to -inf. The likeliest token is always kept."""
    ascending, order = scores.sort(dim=-1)
    unlikely = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    unlikely[:, -1] = False
    return scores.masked_fill(unlikely.scatter(1, order, unlikely), -torch.inf)


def keep_min_p(scores: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Set the `scores` [b, V] of tokens to -inf that are less likely than `min_p` [b, 1] times the likeliest one."""
    probabilities = scores.softmax(dim=-1)
    return scores.masked_fill(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)


FILTERS = (  # in the order in which they are applied
    Filter("top_k", lambda k, vocab_size: 0 < k < vocab_size, keep_top_k),
    Filter("top_p", lambda p, _: p < 1, keep_top_p),
    Filter("min_p", lambda p, _: p > 0, keep_min_p),
)


def keep_likely(scores: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """`scores` [b, V], less each row's maximum and divided by its temperature, with -inf for what the filters leave out."""

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=scores.device)[:, None]

    temperatures = column([settings.temperature for settings in params])
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / temperatures
    for rule in FILTERS:
        values = [getattr(settings, rule.name) for settings in params]
        rows = [row for row, value in enumerate(values) if rule.leaves_out(value, scores.shape[-1])]
        if rows:
            scores[rows] = rule.keep(scores[rows], column([values[row] for row in rows]))
    return scores
