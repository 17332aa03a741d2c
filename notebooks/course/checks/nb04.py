"""Checks of notebook 04, batched decode: the rectangle and attention over it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal
from notebooks.course.several import find_mistakes, several


@exercise("4.1", "Pad and mask")
def _(given: Given) -> str | None:
    pad = given["pad"]
    generator = torch.Generator().manual_seed(0)
    with several() as part:
        for lens, kv_heads, head_dim in (([3, 1, 5], 2, 4), ([2, 2], 1, 3), ([4], 2, 2), ([1, 7, 7, 2], 3, 8)):
            keys = [torch.randn(length, kv_heads, head_dim, generator=generator) for length in lens]
            kept = [key.clone() for key in keys]
            answer = pad(keys)
            expect(isinstance(answer, tuple) and len(answer) == 2, "Return two things: the rectangle and the mask.")
            rectangle, seen = answer
            with part("in place"):
                expect(
                    all(torch.equal(key, before) for key, before in zip(keys, kept, strict=True)),
                    "You changed the tensors in `keys`. They belong to the sessions, so only read them.",
                )
            with part("mask"):
                wanted_seen = torch.tensor([[position < length for position in range(max(lens))] for length in lens])
                expect(
                    not (
                        isinstance(seen, torch.Tensor) and seen.dtype == torch.bool and torch.equal(seen, ~wanted_seen)
                    ),
                    "Your mask is True for padding. `seen` must be True for tokens.",
                )
                expect_equal(
                    seen,
                    wanted_seen,
                    f"Lengths {lens}: `seen` must be True where a row has a token and False in its padding.",
                )
            with part("rectangle"):
                shape = [len(lens), max(lens), kv_heads, head_dim]
                expect_equal(
                    list(rectangle.shape), shape, f"Lengths {lens}: the rectangle must be [B, longest, Hk, D]."
                )
                for row, key in enumerate(kept):
                    expect_equal(
                        rectangle[row, : len(key)],
                        key,
                        f"Lengths {lens}: row {row} must begin with the keys of its {len(key)} tokens.",
                    )
                    expect(
                        not rectangle[row, len(key) :].any(), f"Lengths {lens}: the padding of row {row} must be zeros."
                    )
    return "one row, equal rows and unequal rows"


_UNMASKED = "Padding isn't masked. A key of zeros has the score 0, and e⁰ is 1: the softmax still gives it weight."


@exercise("4.2", "Attention over a padded batch", points=2)
def _(given: Given) -> str | None:
    attend = given["batched_decode_attention"]
    generator = torch.Generator().manual_seed(1)
    for lens, heads, kv_heads, head_dim in (
        ([3, 1, 6], 8, 2, 4),  # first, because every usual mistake shows in it
        ([4, 4], 2, 2, 4),
        ([5], 4, 1, 8),
        ([9, 2, 9], 6, 3, 16),
    ):
        q = torch.randn(len(lens), heads, head_dim, generator=generator)
        keys, values = torch.randn(2, len(lens), max(lens), kv_heads, head_dim, generator=generator)
        seen = torch.tensor([[position < length for position in range(max(lens))] for length in lens])
        want = torch.stack([_alone(q[i], keys[i, :n], values[i, :n]) for i, n in enumerate(lens)])
        with several() as part:
            for padding in ("zeros", "large numbers", "NaN"):
                k, v = (kv.clone() for kv in (keys, values))
                for kv in (k, v):
                    kv[~seen] = {"zeros": 0.0, "large numbers": 1e4, "NaN": torch.nan}[padding]
                kept = k.clone(), v.clone()
                out = attend(q.clone(), k, v, seen.clone())
                where = f"Lengths {lens}, H={heads}, Hk={kv_heads}, padding of {padding}"
                with part("in place"):
                    expect(
                        all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip((k, v), kept, strict=True)),
                        "You changed `keys` or `values` in place. Other code may still need them, so work on a copy.",
                    )
                expect(isinstance(out, torch.Tensor), f"Return a tensor [B, H, D], not a {type(out).__name__}.")
                expect_equal(list(out.shape), list(q.shape), f"{where}: the output must be [B, H, D].")
                if padding == "NaN":
                    with part("NaN", "mask"):
                        expect(
                            not out.isnan().any(),
                            f"{where}: the output is NaN. A weight of 0 doesn't help, because 0 · NaN is NaN. Take the "
                            "padding out of keys and values before you multiply.",
                        )
                else:
                    hint = _mistaken_attention(out, q, *kept, lens)
                    with part("mask" if _UNMASKED in (hint or "") else "output", "mask"):
                        expect(hint is None, hint or "")
                with part("output", "mask", "NaN"):
                    expect_equal(out, want, f"{where}: the rows differ from what each request gets alone.", atol=1e-5)
    return "whatever the padding holds, every row is as if it were computed alone"


def _mistaken_attention(
    out: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lens: list[int]
) -> str | None:
    """The hints for the mistakes that explain `out`, given the padding in `keys` and `values`."""
    mistakes: dict[str, dict[str, Any]] = {
        _UNMASKED: {"lens": [keys.shape[1]] * len(lens)},
        "Your query head h reads key/value head h % Hk. Neighbours share one: it must read head h // (H / Hk).": {
            "tiled": True
        },
        "Divide the scores by the square root of D before the softmax.": {"scale": q.shape[2] ** 0.5},
    }

    def with_mistakes(made: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        options: dict[str, Any] = {"lens": lens, "tiled": False, "scale": 1.0}
        for mistake in made:
            options |= mistake
        rows = enumerate(options["lens"])
        alone = [_alone(q[i] * options["scale"], keys[i, :n], values[i, :n], options["tiled"]) for i, n in rows]
        return torch.stack(alone)

    def gives(made: Sequence[Mapping[str, Any]]) -> bool:
        wrong = with_mistakes(made)
        return torch.allclose(out, wrong, atol=1e-5) and not torch.allclose(wrong, with_mistakes([]), atol=1e-5)

    return find_mistakes(mistakes, gives)


def _alone(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tiled: bool = False) -> torch.Tensor:
    """q [H, D], keys and values [S, Hk, D] -> [H, D]. `tiled`: query head h reads key/value head h % Hk."""
    heads, kv_heads = torch.arange(len(q)), keys.shape[1]
    read = heads % kv_heads if tiled else heads // (len(q) // kv_heads)
    k, v = (kv[:, read].transpose(0, 1) for kv in (keys, values))
    return scaled_dot_product_attention(q[:, None], k, v)[:, 0]


@exercise("4.3", "Give each request its K/V back")
def _(given: Given) -> str | None:
    split_rows = given["split_rows"]
    generator = torch.Generator().manual_seed(2)
    with several() as part:
        for lens, width in (([3, 1, 5], 5), ([4, 4], 4), ([2], 6), ([1, 200], 200)):
            rectangle = torch.randn(len(lens), width, 2, 4, generator=generator)
            kept = rectangle.clone()
            rows = split_rows(rectangle, list(lens))
            expect(isinstance(rows, list), f"Return a list, not a {type(rows).__name__}.")
            expect_equal(len(rows), len(lens), f"There are {len(lens)} requests, so return {len(lens)} tensors.")
            with part("in place"):
                expect(torch.equal(rectangle, kept), "You changed the rectangle. Only read it.")
            for i, (row, length) in enumerate(zip(rows, lens, strict=True)):
                with part("rows", "in place"):
                    expect_equal(
                        row,
                        kept[i, :length],
                        f"Lengths {lens}: request {i} must get the first {length} tokens of its row.",
                    )
                with part("memory"):
                    held, needed = row.untyped_storage().nbytes(), row.numel() * row.element_size()
                    expect(
                        held == needed,
                        f"Lengths {lens}: the tensor of request {i} needs {needed} bytes but keeps {held} bytes alive. A "
                        "slice is a view: as long as it exists, the whole tensor behind it stays in memory. Make a copy "
                        "(`contiguous()` doesn't copy a tensor that is already contiguous).",
                    )
            rectangle.fill_(-1)
            with part("memory", "rows", "in place"):
                expect(
                    all(
                        torch.equal(row, kept[i, :length])
                        for i, (row, length) in enumerate(zip(rows, lens, strict=True))
                    ),
                    "Writing into the rectangle changed the sessions' tensors. They must not share its memory.",
                )
    return "copies of exactly the tokens' size"
