"""The picture of a text whose tokens show which drafts they were."""

import pytest

pytest.importorskip("matplotlib")

from nanoinfer import viz
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.viz.drafted_text import KINDS
from tests.helpers.pictures import assert_readable, faces, named, texts

PASSES = [([], [5]), ([6, 7], [6, 7, 8]), ([9, 9, 9], [9, 10]), ([1], [11]), ([12, 13], [12])]
COLOURS = {kind: style.face for kind, (style, _) in KINDS.items()}


def test_each_token_has_the_colour_of_where_it_comes_from() -> None:
    picture = viz.drafted_text(PASSES)
    kinds = [["none"], ["accepted", "accepted", "last"], ["accepted", "instead"], ["instead"], ["accepted"]]
    for i, of_pass in enumerate(kinds):
        assert [faces(picture, f"pass {i} token {j}") for j in range(len(of_pass))] == [[COLOURS[k]] for k in of_pass]
    assert {"5", "6", "13"} - set(texts(picture)) == {"13"}, "a draft that came after the end is no token"
    assert picture.alt == (
        "8 tokens from 5 passes. an accepted draft: 4, behind drafts that are all right: 1, in place of a wrong draft: 2, "
        "no draft: 1."
    )
    assert_readable(picture)


def test_tokens_of_a_pass_touch_and_passes_are_apart() -> None:
    picture = viz.drafted_text(PASSES)
    ends = {(i, j): named(picture, f"pass {i} token {j}")[0] for i, j in ((0, 0), (1, 0), (1, 1))}
    right = {key: cell.get_x() + cell.get_width() for key, cell in ends.items()}
    assert ends[1, 1].get_x() == pytest.approx(right[1, 0])
    assert ends[1, 0].get_x() > right[0, 0] + 2


def test_long_texts_have_lines_and_a_pass_is_not_cut_in_two() -> None:
    tokenizer = Tokenizer.from_pretrained(resolve_model_path("story"))
    ids = tokenizer.encode("Once upon a time, there was a little fox named Lily. She lived near the river. " * 9)
    picture = viz.drafted_text([(ids[i : i + 3], ids[i : i + 3]) for i in range(0, 180, 3)], tokenizer, title="T")
    lines = {cell.get_y() for cell in named(picture, "pass ")}
    assert len(lines) > 3
    for i in range(60):
        assert len({cell.get_y() for cell in named(picture, f"pass {i} token")}) == 1
    assert {"T", "· in a token is a space."} <= set(texts(picture))
    assert_readable(picture)


@pytest.mark.parametrize(
    ("passes", "problem"),
    [
        ([], r"passes: have 0 tokens; must be 1\.\.400"),
        ([([], [1])] * 401, r"passes: have 401 tokens"),
        ([([], [1]), ([5], [6, 7])], r"passes\[1\]: 2 tokens are no accepted drafts"),
        ([([1], [1]), 7], r"passes\[1\]: must be the drafts and the tokens of a pass"),
        (7, "passes: must be Sequence"),
    ],
)
def test_what_cannot_have_come_from_passes_is_refused(passes: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        viz.drafted_text(passes)  # type: ignore[arg-type]
