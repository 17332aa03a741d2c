"""Applies the bit masks of a whole batch to its logits."""

from collections.abc import Sequence

import numpy as np
import torch

from nanoinfer.sampling.grammar.matcher import Matcher


def forbid_other_tokens(scores: torch.Tensor, rows: Sequence[tuple[int, Matcher, Sequence[int]]]) -> None:
    """Set those of `scores` [B, V] to -inf that may not come next. `rows`: row numbers, each with a matcher and the drafts
    that come before the token to choose. Other rows are untouched.

    A row in which nothing is allowed becomes -inf throughout. A row behind a draft that is not allowed is untouched: its
    token will not count. Rows with the same matcher and more and more drafts are filled together.
    """
    longest: dict[int, tuple[Matcher, Sequence[int]]] = {}
    for _, matcher, drafts in rows:
        if len(drafts) >= len(longest.get(id(matcher), (matcher, ()))[1]):
            longest[id(matcher)] = matcher, drafts
    filled = {}
    for key, (matcher, drafts) in longest.items():
        masks = np.empty((1 + len(drafts), matcher.words), dtype=np.int32)
        filled[key] = masks[: 1 + fill_masks(matcher, drafts, masks)]
    masked = [(row, filled[id(m)][len(drafts)]) for row, m, drafts in rows if len(drafts) < len(filled[id(m)])]
    if masked:
        apply_masks(scores, [row for row, _ in masked], np.stack([mask for _, mask in masked]))


def fill_masks(matcher: Matcher, drafts: Sequence[int], rows: np.ndarray) -> int:
    """Fill `rows` int32 [1 + k, words] for the k tokens `drafts`: row j says what may come after the first j of them.

    Returns how many of them are allowed. Rows behind the first draft that is not allowed are left as they are. The matcher
    is in its old state afterwards.
    """
    accepted = 0
    for row, token in zip(rows, [*drafts, None], strict=True):
        matcher.fill_mask(row)
        if token is None or not row[token // 32] >> token % 32 & 1 or not matcher.accept(token):
            break
        accepted += 1
    matcher.rollback(accepted)
    return accepted


def apply_masks(scores: torch.Tensor, rows: Sequence[int], masks: np.ndarray) -> None:
    """Set `scores` [B, V] to -inf where the bits of `masks` int32 [b, words] are zero: mask i is for row `rows[i]`."""
    forbidden = _forbidden(masks, scores)
    if len(rows) == len(scores):
        scores.masked_fill_(forbidden, -torch.inf)
        return
    index = torch.tensor(rows, device=scores.device)
    scores[index] = scores[index].masked_fill(forbidden, -torch.inf)


def _forbidden(masks: np.ndarray, scores: torch.Tensor) -> torch.Tensor:
    """The zero bits of `masks` as bool [len(masks), V], on the device of `scores`."""
    if scores.device.type == "cpu":  # numpy unpacks bits faster than torch shifts them
        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little", count=scores.shape[-1])
        return torch.from_numpy(bits == 0)
    return forbidden_by_shifts(torch.from_numpy(masks).to(scores.device), scores.shape[-1])  # few bytes to move


def forbidden_by_shifts(masks: torch.Tensor, size: int) -> torch.Tensor:
    """The zero bits among the first `size` of each row of `masks` int32 [b, words], as bool [b, size], on any device."""
    bits = masks[:, :, None] >> torch.arange(32, dtype=torch.int32, device=masks.device) & 1
    return bits.flatten(1)[:, :size] == 0
