"""Checks of notebook 07, attention over slots, against loops over tokens in float64."""

from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from torch import Tensor

from notebooks.course.exercises import Given, exercise
from notebooks.course.tables import Mistake, Wrong, compare

ATOL = 2e-4
N = 24  # slots
SCALE = "multiply the scores q · k by `scale`; without it the softmax is too sharp"
WRONG_HEAD = "your query heads read the wrong K/V head: head h reads h // (H / Hk), so neighbours share one"


def int32(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def qkv(tokens: int, num_heads: int, num_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [tokens, H, 8] and buffers [N, Hk, 8]."""
    generator = torch.Generator().manual_seed(100 * tokens + 10 * num_heads + num_kv_heads)
    q = torch.randn(tokens, num_heads, 8, generator=generator)
    keys, values = torch.randn(2, N, num_kv_heads, 8, generator=generator)
    return q, 2 * keys, values


def attend(
    q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, scale: float, window: int | None = None, wrong: Wrong = ()
) -> Tensor:
    """Attention of the last `len(q)` of the tokens in `slots`, in float64. Each option makes a usual mistake."""
    heads, kv_heads, total = q.shape[1], keys.shape[1], len(slots)
    read = [head % kv_heads if "tiled" in wrong else head // (heads // kv_heads) for head in range(heads)]
    index = torch.arange(total) if "not_looked_up" in wrong else slots.long()
    k, v = (buffer[index][:, read].double() for buffer in (keys, values))  # [tokens, H, 8]
    scores = torch.einsum("ihd,jhd->ihj", q.double(), k) * (1.0 if "unscaled" in wrong else scale)
    first = 0 if "unshifted" in wrong else total - len(q)
    distance = torch.arange(first, first + len(q))[:, None] - torch.arange(total)
    width = N if window is None or "no_window" in wrong else window + ("wide" in wrong)
    hide = ((distance < ("not_itself" in wrong)) | (distance >= width)) & ("no_mask" not in wrong)
    weights = scores.masked_fill(hide[:, None], 0.0 if "zeros" in wrong else -torch.inf)
    return torch.einsum("ihj,jhd->ihd", weights.softmax(1 if "over_heads" in wrong else 2), v).float()


def _decode(
    q: Tensor, keys: Tensor, values: Tensor, kv_indices: Tensor, kv_indptr: Tensor, scale: float, wrong: Wrong = ()
) -> Tensor:
    parts = []
    for i, (begin, end) in enumerate(pairwise(kv_indptr.tolist())):
        slots = torch.arange(begin, end) if "consecutive" in wrong else kv_indices[begin:end]
        slots = kv_indices if "everything" in wrong else slots
        parts.append(attend(q[i : i + 1], keys, values, slots, scale, wrong=wrong))
    return torch.cat(parts)


@exercise("7.1", "DECODE attention over slots", points=3)
def _(given: Given) -> str:
    decode, cases = given["decode_attention"], []
    for rows, heads, kv_heads in (
        ([[3]], 2, 2),
        ([[7, 2, 19, 4, 11]], 6, 2),
        ([[1, 9, 5]], 4, 1),
        ([[7, 2, 19, 4, 11], [8], [20, 21, 22]], 8, 2),
        ([[7, 2, 19, 4], [7, 2, 19, 13, 5]], 8, 2),
    ):
        cases.append(
            (*qkv(len(rows), heads, kv_heads), int32([*chain(*rows)]), int32([0, *accumulate(map(len, rows))]), 0.3)
        )
    mistakes: dict[str, Mistake] = {
        SCALE: "unscaled",
        WRONG_HEAD: "tiled",
        "each request sees all requests' slots; request i has only kv_indices[kv_indptr[i]:kv_indptr[i + 1]]": "everything",
        "you read K/V from consecutive slots: look up each token's slot in kv_indices": "consecutive",
        "your softmax runs over heads: a head's weights over its request's tokens must add up to 1": "over_heads",
    }
    compare(decode, _decode, cases, mistakes, hint="the output isn't the right weighted mean of the values", atol=ATOL)
    return "five batches, ragged, scattered and shared, equal to loops in float64"


@exercise("7.2", "EXTEND attention of one request", points=4)
def _(given: Given) -> str:
    cases = [
        (*qkv(new, heads, kv_heads), int32(slots), 0.3, window)
        for slots, new, heads, kv_heads, window in (
            ([3], 1, 2, 2, None),
            ([7, 2, 19, 4, 11], 5, 4, 2, None),
            ([7, 2, 19, 4, 11, 5, 6], 4, 8, 2, None),
            ([7, 2, 19, 4, 11, 5, 6], 4, 4, 4, 3),
            ([*range(20)], 20, 4, 4, 1),
        )
    ]
    mistakes: dict[str, Mistake] = {
        SCALE: "unscaled",
        WRONG_HEAD: "tiled",
        "new tokens see later ones: the mask is missing": "no_mask",
        "you didn't shift the mask by the prefix: query i is at position prefix + i": "unshifted",
        "hidden tokens still get weight: set their scores to minus infinity before the softmax, not to 0": "zeros",
        "a token must see itself too. If all scores of a query are minus infinity, its output is NaN": "not_itself",
        "a window of 3 is 3 tokens, including the token itself; yours has 4": "wide",
        "with a window, hide the tokens that are too far back as well": "no_window",
        "you read K/V from slots 0, 1, 2, ...: look the slots up in `slots`": "not_looked_up",
    }
    hint = "the output isn't attention over the slots"
    compare(given["extend_attention"], attend, cases, mistakes, hint=hint, atol=ATOL)
    return "with and without prefix and window, equal to loops in float64"
