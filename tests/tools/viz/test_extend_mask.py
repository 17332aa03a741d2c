"""`viz.extend_mask`: which keys a new token sees."""

import pytest

pytest.importorskip("matplotlib")

from matplotlib.text import Text

from nanoinfer import viz
from nanoinfer.viz.palette import REQUESTS, ROLES
from nanoinfer.viz.picture import PIXEL_RATIO
from nanoinfer.viz.sheet import MARGIN
from tests.helpers.pictures import (
    assert_readable,
    faces,
    make_metadata,
    named,
    texts,
    worked_example,
)


def seen(picture: viz.Picture, request: int = 0) -> set[tuple[int, int]]:
    """(query's position, key) of the cells that are filled."""
    names = [
        patch.get_gid().split() for patch in named(picture, f"mask {request} ") if patch.get_gid().endswith("sees")
    ]
    return {(int(position), int(key)) for _, _, position, key, _ in names}


def test_a_new_token_sees_the_prefix_and_the_new_ones_up_to_itself() -> None:
    picture = viz.extend_mask(worked_example(), tokens=["<s>", " ", *"1234512345"])
    assert seen(picture) == {(p, k) for p in range(7, 12) for k in range(p + 1)}
    assert faces(picture, "mask 0 7 6 sees") == [REQUESTS[0].face]
    assert faces(picture, "mask 0 7 7 sees") == [ROLES["new"].face]
    assert faces(picture, "mask 0 7 8 hidden") == [ROLES["hidden"].face]
    assert picture.alt == "EXTEND mask; request 0: 5 queries × 12 keys (7 in the prefix), 50 of 60 pairs seen."
    assert {"queries ↓", "keys →"} <= set(texts(picture))
    assert any(text.endswith("· in a token is a space.") for text in texts(picture))
    assert_readable(picture)


def test_one_mask_with_tokens_is_as_wide_as_the_picture_and_nothing_is_left_of_its_margin() -> None:
    picture = viz.extend_mask(worked_example(), tokens=["<s>", " ", *"1234512345"])
    assert named(picture, "mask 0 7 11 ")[0].get_x() > 700
    for one in (picture, viz.extend_mask(make_metadata([6, 0], [4, 7]))):
        one.canvas.draw()
        assert (
            min(text.get_window_extent().x0 for text in one.findobj(Text) if text.get_text())
            >= MARGIN * PIXEL_RATIO - 1
        )


def test_a_mask_s_legend_names_what_occurs() -> None:
    prefix, new, hidden = "sees, in request 0: K/V from earlier passes", "sees; K/V computed in this pass", "hidden"
    legends = {
        (0, 4): {new, hidden},
        (3, 1): {prefix, new},
        (3, 2): {prefix, new, hidden},
    }
    for (prefix_len, new_len), entries in legends.items():
        shown = set(texts(viz.extend_mask(make_metadata([prefix_len], [new_len]))))
        assert shown & {prefix, new, hidden} == entries
        assert "· in a token is a space." not in shown
    windowed = texts(viz.extend_mask(make_metadata([3], [1]), sliding_window=2))
    assert hidden in windowed


def test_a_sliding_window_hides_older_keys() -> None:
    picture = viz.extend_mask(make_metadata([5], [7]), sliding_window=4)
    assert seen(picture) == {(p, k) for p in range(5, 12) for k in range(p - 3, p + 1)}
    assert "sliding window 4" in picture.alt
    assert "28 of 84 pairs seen" in picture.alt


@pytest.mark.parametrize(
    ("prefix_lens", "new_lens", "window"),
    [
        ([4, 600, 0], [5, 12, 5], None),
        ([500, 0], [400, 300], None),
        ([1500], [100], 300),
        ([1999], [1], 7),
        ([0] * 9, [3] * 9, None),
    ],
)
def test_masks_of_any_size_stay_readable(prefix_lens: list[int], new_lens: list[int], window: int | None) -> None:
    picture = viz.extend_mask(make_metadata(prefix_lens, new_lens), sliding_window=window)
    assert_readable(picture)
    pairs = sum(min(p + 1, window or p + 1) for p in range(prefix_lens[0], prefix_lens[0] + new_lens[0]))
    assert f"{pairs:,} of" in picture.alt


def test_a_window_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sliding_window=0: must be an integer, at least 1, or None"):
        viz.extend_mask(worked_example(), sliding_window=0)
