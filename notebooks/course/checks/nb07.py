"""Checks of notebook 07, storing K/V into slots and attention over slots, against loops over tokens in float64."""

from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from torch import Tensor

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect
from notebooks.course.tables import Mistake, Wrong, compare

ATOL = 2e-4
N = 24  # slots
SCALE = "multiply the scores q · k by `scale`; without it the softmax is too sharp"
WRONG_HEAD = "your query heads read the wrong K/V head: head h reads h // (H / Hk), so neighbours share one"


def int32(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@exercise("7.1", "Store K/V into slots")
def _(given: Given) -> str:
    store, cases = given["store_kv"], []
    for slots in ([5, 9, 2], [6, 7, 8, 9], [9, 8, 7], [5, -1, 2], [-1, 3, 4, 5], [-1, -1], [0, N - 1], []):
        generator = torch.Generator().manual_seed(len(slots))
        buffers, new = (
            torch.randn(2, N, 2, 4, generator=generator),
            torch.randn(2, len(slots), 2, 4, generator=generator),
        )
        cases.append((*buffers, int32(slots), *new))
    mistakes = {
        "With slot -1, you changed the last slot of the pool. As an index, -1 means the last slot, which may hold the "
        "K/V of another request": "padding",
        "you swapped keys and values": "swapped",
    }

    def call(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = arguments[0].clone(), arguments[1].clone()
        store(keys, values, *arguments[2:])
        return keys, values

    hint = "the key buffer, then the value buffer. Token i goes to slots[i]; change no other slot"
    compare(call, _stored, cases, mistakes, hint=hint)
    return "scattered slots, adjacent slots and padding"


def _stored(
    key_buffer: Tensor, value_buffer: Tensor, slots: Tensor, k: Tensor, v: Tensor, wrong: Wrong = ()
) -> tuple[Tensor, Tensor]:
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0 or "padding" in wrong:
            key_buffer[slot], value_buffer[slot] = (v[i], k[i]) if "swapped" in wrong else (k[i], v[i])
    return key_buffer, value_buffer


@exercise("7.2", "Which K/V head?")
def _(given: Given) -> str:
    cases = [(torch.randn(3, kv_heads, 4), heads) for heads, kv_heads in ((8, 2), (6, 3), (4, 4), (5, 1))]
    mistakes = {
        "you repeat the heads as 0, 1, ..., Hk-1, 0, 1, ... But neighbours share one: the first H / Hk query heads all "
        "read K/V head 0": lambda kv, heads: kv.repeat(1, heads // kv.shape[1], 1)
    }
    hint = "query head h must read K/V head h // (H / Hk)"
    compare(given["expand_kv"], _expanded, cases, mistakes, hint=hint)
    return "four shapes, including one K/V head for all query heads"


def _expanded(kv: Tensor, num_heads: int) -> Tensor:
    return torch.stack([kv[:, head // (num_heads // kv.shape[1])] for head in range(num_heads)], dim=1)


def qkv(tokens: int, num_heads: int, num_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [tokens, H, 8] and buffers [N, Hk, 8]."""
    generator = torch.Generator().manual_seed(100 * tokens + 10 * num_heads + num_kv_heads)
    q = torch.randn(tokens, num_heads, 8, generator=generator)
    keys, values = torch.randn(2, N, num_kv_heads, 8, generator=generator)
    return q, 2 * keys, values


def attend(q: Tensor, keys: Tensor, values: Tensor, slots: list[int], scale: float = 0.3, wrong: Wrong = ()) -> Tensor:
    """Attention of the last `len(q)` of the tokens in `slots`, in float64. Each option makes a usual mistake."""
    hidden = 0.0 if "zeros" in wrong else -torch.inf
    heads, kv_heads, total = q.shape[1], keys.shape[1], len(slots)
    read = [head % kv_heads if "tiled" in wrong else head // (heads // kv_heads) for head in range(heads)]
    k, v = (kv[slots][:, read].double() for kv in (keys, values))  # [tokens, H, 8]
    scores = torch.einsum("ihd,jhd->ihj", q.double(), k) * (1.0 if "unscaled" in wrong else scale)
    shift = N if "no_mask" in wrong else 0 if "unshifted" in wrong else total - len(q)
    for i in range(len(q)):
        scores[i, :, shift + i + ("not_itself" not in wrong) :] = hidden
    return torch.einsum("ihj,jhd->ihd", scores.softmax(1 if "over_heads" in wrong else 2), v).float()


def _decode(
    q: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    scale: float,
    wrong: Wrong = (),
) -> Tensor:
    parts = []
    for i, (begin, end) in enumerate(pairwise(kv_indptr.tolist())):
        slots = list(range(begin, end)) if "consecutive" in wrong else kv_indices.tolist()[begin:end]
        slots = kv_indices.tolist() if "everything" in wrong else slots
        parts.append(attend(q[i : i + 1], key_buffer, value_buffer, slots, scale, wrong))
    return torch.cat(parts)


@exercise("7.3", "DECODE attention over slots", points=3)
def _(given: Given) -> str:
    decode, cases = given["decode_attention"], []
    for rows, heads, kv_heads in (
        ([[3]], 2, 2),
        ([[7, 2, 19, 4]], 4, 4),
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
    q, keys, values = qkv(1, 2, 2)
    huge = decode(q, 100 * keys, values, int32([3, 4]), int32([0, 2]), 1.0)
    overflow = (
        "with large scores, exp overflows. Subtract the largest score first, or use torch's softmax, which does so"
    )
    expect(bool(torch.isfinite(huge).all()), overflow)
    return "six batches, ragged, scattered and shared, equal to loops in float64"


@exercise("7.4", "The mask of an EXTEND", points=2)
def _(given: Given) -> str:
    student = given["extend_mask"]
    cases = [(0, 1, None), (0, 5, None), (6, 10, None), (9, 10, None), (0, 6, 3), (6, 10, 3), (2, 10, 1), (3, 6, 100)]
    mistakes = {
        "row i isn't position i. It is position prefix_len + i, and it sees the whole prefix": "unshifted",
        "a token must see itself too": "not_itself",
        "a window of 3 is 3 tokens, including the token itself; yours has 4": "wide",
        "with a window, hide the tokens that are too far back as well": "no_window",
    }
    hint = "the mask is boolean, with one row per new token and one column per token, including the prefix. "
    hint += "Query i is at position prefix_len + i and sees the keys up to that position"

    def call(prefix_len: int, seq_len: int, sliding_window: int | None) -> Any:
        return student(prefix_len, seq_len, *[sliding_window] * (sliding_window is not None))

    compare(call, _mask, cases, mistakes, hint=hint)
    return "with and without prefix and window"


def _mask(prefix_len: int, seq_len: int, sliding_window: int | None, wrong: Wrong = ()) -> Tensor:
    width = seq_len if sliding_window is None or "no_window" in wrong else sliding_window + ("wide" in wrong)
    key = torch.arange(seq_len)
    row = torch.arange(seq_len - prefix_len)[:, None] + (0 if "unshifted" in wrong else prefix_len)
    return (key < row + ("not_itself" not in wrong)) & (row - key < width)


@exercise("7.5", "EXTEND attention of one request", points=2)
def _(given: Given) -> str:
    cases = [
        (*qkv(new, heads, kv_heads), int32(slots), 0.3)
        for slots, new, heads, kv_heads in (
            ([3], 1, 2, 2),
            ([7, 2, 19, 4, 11], 5, 4, 2),
            ([7, 2, 19, 4, 11, 5, 6], 4, 8, 2),
            ([7, 2, 19, 4], 1, 4, 1),
            ([*range(20)], 3, 4, 4),
        )
    ]
    mistakes: dict[str, Mistake] = {
        SCALE: "unscaled",
        WRONG_HEAD: "tiled",
        "new tokens see later ones: the mask is missing": "no_mask",
        "you didn't shift the mask by the prefix: row i is position prefix + i": "unshifted",
        "hidden tokens still get weight: set their scores to minus infinity before the softmax, not to 0": "zeros",
        "the output has NaN, because all scores of a row are minus infinity. Every token must see itself": "not_itself",
        "you read K/V from slots 0, 1, 2, ...: look the slots up in `slots`": "not_looked_up",
    }
    compare(
        given["extend_attention"], _extend, cases, mistakes, hint="the output isn't attention over the slots", atol=ATOL
    )
    return "five requests, equal to loops in float64"


def _extend(
    q: Tensor, key_buffer: Tensor, value_buffer: Tensor, slots: Tensor, scale: float, wrong: Wrong = ()
) -> Tensor:
    places = list(range(len(slots))) if "not_looked_up" in wrong else slots.tolist()
    return attend(q, key_buffer, value_buffer, places, scale, wrong)
