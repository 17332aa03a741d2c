"""Checks of notebook 07, storing K/V into slots and attention over slots, against loops in float64."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any

import torch

from notebooks.course.checks.nb07_attention import Attended, N, attend, attend_each, expect_attention, qkv
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, expect, expect_equal
from notebooks.course.several import find_mistakes, several

Masked = tuple[int, int, int | None, torch.Tensor]  # prefix length, sequence length, window, the student's mask


@exercise("7.1", "Store K/V into slots")
def _(given: Given) -> str | None:
    store = given["store_kv"]
    cases = {
        "scattered slots": [5, 9, 2],
        "adjacent slots": [6, 7, 8, 9],
        "adjacent slots in falling order": [9, 8, 7],
        "one row of padding": [5, -1, 2],
        "padding first": [-1, 3, 4, 5],
        "padding only": [-1, -1],
        "the last slot": [0, N - 1],
        "no tokens": [],
    }
    with several() as part:
        for what, slots in cases.items():
            generator = torch.Generator().manual_seed(len(slots))
            keys, values = torch.randn(2, N, 2, 4, generator=generator)
            k, v = torch.randn(2, len(slots), 2, 4, generator=generator)
            want = [keys.clone(), values.clone()]
            for i, slot in enumerate(slots):
                if slot >= 0:
                    want[0][slot], want[1][slot] = k[i], v[i]
            last = keys[-1].clone()
            store(keys, values, torch.tensor(slots, dtype=torch.int32), k, v)
            case = f"{what}, slots={slots}"
            if N - 1 not in slots:
                with part("padding"):
                    expect(
                        torch.equal(keys[-1], last),
                        f"{case}: you changed the last slot of the pool. As an index, -1 means the last slot, which may "
                        "hold the K/V of another request",
                    )
            needs = ("padding",) if -1 in slots else ()
            with part("swapped", *needs):
                expect(
                    not torch.equal(keys, want[1]) or torch.equal(want[0], want[1]),
                    f"{case}: you swapped keys and values",
                )
            with part("keys", "swapped", *needs):
                expect_equal(keys, want[0], f"{case}: the key buffer. Token i goes to slots[i]; change no other slot")
            with part("values", "swapped", *needs):
                expect_equal(
                    values, want[1], f"{case}: the value buffer. Token i goes to slots[i]; change no other slot"
                )
    return "scattered slots, adjacent slots and padding"


@exercise("7.2", "Which K/V head?")
def _(given: Given) -> str | None:
    expand = given["expand_kv"]
    for num_heads, num_kv_heads in ((8, 2), (6, 3), (4, 4), (5, 1)):
        kv = torch.randn(3, num_kv_heads, 4, generator=torch.Generator().manual_seed(num_heads))
        got, group = expand(kv, num_heads), num_heads // num_kv_heads
        want = torch.stack([kv[:, head // group] for head in range(num_heads)], dim=1)
        case = f"H={num_heads}, Hk={num_kv_heads}"
        if isinstance(got, torch.Tensor) and got.shape == want.shape and 1 < num_kv_heads < num_heads:
            expect(
                not torch.equal(got, kv.repeat(1, group, 1)),
                f"{case}: you repeat the heads as 0, 1, ..., Hk-1, 0, 1, ... But neighbours share one: the first H / Hk "
                "query heads all read K/V head 0",
            )
        expect_equal(got, want, f"{case}: query head h must read K/V head h // (H / Hk)")
    return "four shapes, including one K/V head for all query heads"


@exercise("7.3", "DECODE attention over slots", points=3)
def _(given: Given) -> str | None:
    decode = given["decode_attention"]
    answers: list[Attended] = []
    changed: list[str] = []
    cases = {
        "one request, one token": ([[3]], 2, 2),
        "one request in scattered slots": ([[7, 2, 19, 4]], 4, 4),
        "grouped heads": ([[7, 2, 19, 4, 11]], 6, 2),
        "one K/V head for all": ([[1, 9, 5]], 4, 1),
        "requests of different lengths": ([[7, 2, 19, 4, 11], [8], [20, 21, 22]], 8, 2),
        "two requests that share a prefix": ([[7, 2, 19, 4], [7, 2, 19, 13, 5]], 8, 2),
    }
    for what, (rows, num_heads, num_kv_heads) in cases.items():
        q, keys, values = qkv(len(rows), num_heads, num_kv_heads)
        kv_indptr = torch.tensor([0, *accumulate(map(len, rows))], dtype=torch.int32)
        everything = list(chain(*rows))
        before = keys.clone()
        got = decode(q, keys, values, torch.tensor(everything, dtype=torch.int32), kv_indptr, 0.3)
        changed += [what] * (not torch.equal(keys, before))
        mistakes: dict[str, dict[str, Any]] = {
            "multiply the scores q · k by `scale`; without it the softmax is too sharp": {"scale": 1.0},
            "your query heads read the wrong K/V head: head h reads h // (H / Hk), so neighbours share one": {
                "tiled": True
            },
            "each request sees all requests' slots; request i has only kv_indices[kv_indptr[i]:kv_indptr[i + 1]]": {
                "rows": [everything] * len(rows)
            },
            "you read K/V from consecutive slots: look up each token's slot in kv_indices": {
                "rows": [list(range(a, b)) for a, b in pairwise(kv_indptr.tolist())]
            },
            "your softmax runs over heads: a head's weights over its request's tokens must add up to 1": {
                "over_heads": True
            },
        }
        answers.append(Attended(what, got, partial(attend_each, q, before, values, rows=rows), mistakes))
    with several() as part:
        with part("in place"):
            expect(not changed, f"{', '.join(changed[:1])}: you changed the key buffer; attention must only read it")
        with part("output", "in place"):
            expect_attention(answers)
        with part("overflow", "in place"):
            q, keys, values = qkv(1, 2, 2)
            slots, kv_indptr = torch.tensor([3, 4], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)
            expect(
                bool(torch.isfinite(decode(q, 100 * keys, values, slots, kv_indptr, 1.0)).all()),
                "with large scores, exp overflows. Subtract the largest score first, or use torch's softmax, which does so",
            )
    return "six batches, ragged, scattered and shared, equal to loops in float64"


@exercise("7.4", "The mask of an EXTEND", points=2)
def _(given: Given) -> str | None:
    extend_mask = given["extend_mask"]
    masks: list[Masked] = []
    for prefix, seq, window in (
        (0, 1, None),
        (0, 5, None),
        (6, 10, None),
        (9, 10, None),
        (0, 6, 3),
        (6, 10, 3),
        (2, 10, 1),
        (3, 6, 100),
    ):
        try:
            got = extend_mask(prefix, seq) if window is None else extend_mask(prefix, seq, window)
        except Exception:
            if not masks or all(mask.dtype == torch.bool for *_, mask in masks):
                raise
            break  # what is no boolean mask cannot be combined with another either: the dtype is the mistake
        new = seq - prefix
        case = f"prefix_len={prefix}, seq_len={seq}" + ("" if window is None else f", sliding_window={window}")
        expect(isinstance(got, torch.Tensor), f"{case}: must be a tensor, got {type(got).__name__}")
        expect_equal(
            list(got.shape),
            [new, seq],
            f"{case}: the mask has one row per new token and one column per token of the sequence, including the prefix",
        )
        masks.append((prefix, seq, window, got))
    with several() as part:
        for prefix, seq, _, got in masks:
            with part("dtype"):
                case = f"prefix_len={prefix}, seq_len={seq}"
                expect_equal(got.dtype, torch.bool, f"{case}: the mask must be boolean, as torch's attention expects")
        with part("values"):
            _expect_masks([(prefix, seq, window, got.bool()) for prefix, seq, window, got in masks])
    return "with and without prefix and window"


def _mask(prefix: int, seq: int, window: int | None, mistakes: Sequence[str] = ()) -> torch.Tensor:
    """Bool [new, seq] with the `mistakes`."""
    shift = 0 if "unshifted" in mistakes else prefix
    width = seq if window is None or "no window" in mistakes else window + ("wide" in mistakes)
    key, row = torch.arange(seq), torch.arange(seq - prefix)[:, None] + shift
    return (key < row + ("not itself" not in mistakes)) & (row - key < width)


def _all_have(masks: Sequence["Masked"], mistakes: Sequence[str]) -> bool:
    return all(torch.equal(got, _mask(prefix, seq, window, mistakes)) for prefix, seq, window, got in masks)


def _expect_masks(masks: Sequence["Masked"]) -> None:
    """Raises Hint unless all masks are right, with the hints for the mistakes that explain all of them, where some do."""
    for prefix, seq, window, got in masks:
        want = _mask(prefix, seq, window)
        if torch.equal(got, want):
            continue
        case = f"prefix_len={prefix}, seq_len={seq}" + ("" if window is None else f", sliding_window={window}")
        width = 3 if window is None else window
        mistakes = {
            "row i isn't position i. It is position prefix_len + i, and it sees the whole prefix": "unshifted",
            "a token must see itself too": "not itself",
            f"a window of {width} is {width} tokens, including the token itself; yours has {width + 1}": "wide",
            "with a window, hide the tokens that are too far back as well": "no window",
        }
        if hint := find_mistakes(mistakes, partial(_all_have, masks)):
            raise Hint(f"{case}: {hint}")
        expect_equal(got, want, f"{case}: query i is at position prefix_len + i and sees the keys up to that position")


@exercise("7.5", "EXTEND attention of one request", points=2)
def _(given: Given) -> str | None:
    extend = given["extend_attention"]
    answers: list[Attended] = []
    cases = {
        "one token without a prefix": ([3], 1, 2, 2),
        "no prefix": ([7, 2, 19, 4, 11], 5, 4, 2),
        "a prefix of 3": ([7, 2, 19, 4, 11, 5, 6], 4, 8, 2),
        "one new token after a prefix": ([7, 2, 19, 4], 1, 4, 1),
        "a prefix longer than the new tokens": ([*range(20)], 3, 4, 4),
    }
    for what, (slots, new, num_heads, num_kv_heads) in cases.items():
        q, keys, values = qkv(new, num_heads, num_kv_heads)
        got = extend(q, keys, values, torch.tensor(slots, dtype=torch.int32), 0.3)
        mistakes: dict[str, dict[str, Any]] = {
            "multiply the scores q · k by `scale`": {"scale": 1.0},
            "your query heads read the wrong K/V head: head h reads h // (H / Hk)": {"tiled": True},
            "new tokens see later ones: the mask is missing": {"mask": "none"},
            "you didn't shift the mask by the prefix: row i is position prefix + i": {"mask": "unshifted"},
            "hidden tokens still get weight: set their scores to minus infinity before the softmax, not to 0": {
                "hidden": 0.0
            },
            "you read K/V from slots 0, 1, 2, ...: look the slots up in `slots`": {"slots": list(range(len(slots)))},
        }
        if isinstance(got, torch.Tensor) and got.shape == q.shape:
            expect(
                not got.isnan().any(),
                f"{what}: the output has NaN, because all scores of a row are minus infinity. Every token must see itself",
            )
        answers.append(Attended(what, got, partial(attend, q, keys, values, slots=slots), mistakes))
    expect_attention(answers)
    return "five requests, equal to loops in float64"
