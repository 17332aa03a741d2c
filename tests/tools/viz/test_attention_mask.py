"""A mask computed elsewhere, its mistakes marked."""

import pytest
import torch

viz = pytest.importorskip("nanoinfer.viz")


def causal(prefix: int, total: int) -> torch.Tensor:
    return torch.arange(total) <= torch.arange(prefix, total)[:, None]


def test_a_right_mask_is_described_as_right() -> None:
    picture = viz.attention_mask(causal(6, 10), prefix_len=6)
    assert picture.alt == "4 queries × 10 keys (6 in the prefix): 34 of 40 pairs seen; as it should be."


def test_every_wrong_cell_is_counted() -> None:
    mask = causal(2, 5)
    mask[0, 4], mask[1, 0], mask[2, 0] = True, False, False
    alt = viz.attention_mask(mask, prefix_len=2).alt
    assert alt.endswith("; 1 seen too much, 2 seen too little.")


def test_with_a_window_what_is_too_far_back_must_be_hidden() -> None:
    windowed = causal(2, 5) & (torch.arange(2, 5)[:, None] - torch.arange(5) < 2)
    assert "as it should be" in viz.attention_mask(windowed, prefix_len=2, sliding_window=2).alt
    assert "6 seen too much" in viz.attention_mask(causal(2, 5), prefix_len=2, sliding_window=2).alt


def test_a_mask_is_compared_with_the_one_that_is_wanted() -> None:
    siblings = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]).bool()
    assert "as it should be" in viz.attention_mask(siblings, prefix_len=1, wanted=siblings).alt
    assert viz.attention_mask(causal(1, 4), prefix_len=1, wanted=siblings).alt.endswith("; 1 seen too much.")
    assert viz.attention_mask(siblings, prefix_len=1).alt.endswith("; 1 seen too little.")
    for wanted in (siblings.float(), siblings[:2], [[True]]):
        with pytest.raises(ValueError, match=r"wanted: must be bool \[3, 4\]"):
            viz.attention_mask(siblings, prefix_len=1, wanted=wanted)
    with pytest.raises(ValueError, match="sliding_window=2: is part of wanted"):
        viz.attention_mask(siblings, prefix_len=1, wanted=siblings, sliding_window=2)


@pytest.mark.parametrize(
    ("mask", "prefix", "message"),
    [
        (torch.ones(3, 3), 0, "must be bool"),
        (torch.ones(3, dtype=torch.bool), 0, "must be bool"),
        (torch.ones(10, 10, dtype=torch.bool), 6, r"shape \[10, 10\] with prefix_len=6"),
        (torch.ones(0, 4, dtype=torch.bool), 4, "from 1 row"),
        (torch.ones(40, 40, dtype=torch.bool), 0, "up to 32 columns"),
        ([[True]], 0, "must be Tensor, got list"),
    ],
)
def test_anything_but_a_mask_of_that_prefix_is_refused(mask: torch.Tensor, prefix: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        viz.attention_mask(mask, prefix_len=prefix)
