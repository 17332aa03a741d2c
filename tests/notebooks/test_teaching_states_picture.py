"""The picture of a machine's states: boxes, arrows with their characters, what may still come, and the way of a text."""

from collections.abc import Sequence
from copy import deepcopy

import pytest

pytest.importorskip("matplotlib")

from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from nanoinfer import viz
from nanoinfer.viz.palette import ROLES
from notebooks.course.expression_text import expression_text
from notebooks.course.regular_expression import Machine, Parser
from notebooks.course.states_picture import states_picture
from tests.helpers.pictures import assert_readable, named, texts

NUMBER = r"-?\d+(\.\d+)?"
MARKED = ROLES["highlight"].face


def marked_lines(picture: viz.Picture) -> int:
    return sum(line.get_color() == MARKED for line in picture.findobj(Line2D))


def test_states_are_boxes_and_those_in_which_a_text_may_end_have_two_frames() -> None:
    picture = states_picture(Machine(NUMBER))
    assert len(named(picture, "state ")) == 5
    ends = {patch.get_gid() for patch in picture.findobj(Rectangle) if (patch.get_gid() or "").startswith("end ")}
    assert ends == {"end 2", "end 4"}
    assert texts(picture).count("0-9") == 5
    assert {r"-?\d+(\.\d+)?", r"\d+(\.\d+)?", r"\d*(\.\d+)?", r"\d+", r"\d*"} <= set(texts(picture))
    assert picture.alt == (
        "5 states, a text may end in 2, 4. Arrows: 0 to 1 by -; 0 to 2 by 0-9; 1 to 2 by 0-9; 2 to 2 by 0-9; 2 to 3 by .; "
        "3 to 4 by 0-9; 4 to 4 by 0-9."
    )
    assert marked_lines(picture) == 0
    assert_readable(picture)


@pytest.mark.parametrize(
    ("path", "way", "arrows"),
    [
        ("-12.5", "The path of -12.5: 0, 1, 2, 2, 3, 4, may end.", 5 + 5),
        (["-12", ".5"], "The path of -12.5: 0, 2, 4, may end.", 5 + 2),
        (["1", "."], "The path of 1.: 0, 2, 3, must go on.", 2 + 2),
        (["1", "x", "2"], "The path of 1x2: 0, 2, none, not allowed.", 1 + 2),
    ],
)
def test_the_way_of_a_text_is_marked(path: str | Sequence[str], way: str, arrows: int) -> None:
    picture = states_picture(Machine(NUMBER), path, title="T", caption="C.")
    assert picture.alt.endswith(way)
    assert picture.alt.startswith("C. ")
    assert marked_lines(picture) == arrows, "those between the states, and those of the way below"
    assert {"T", "C."} <= set(texts(picture))
    assert_readable(picture)


@pytest.mark.parametrize(
    ("pattern", "drawn"),
    [
        ("(a|b)*abb", "0 to 0 by b; 0 to 1 by a; 1 to 1 by a; 1 to 2 by b; 2 to 1 by a; 2 to 3 by b; 3 to 0 by b; 3 to"),
        ('"[^"]*"|null', '0 to 1 by "; 0 to 2 by n; 1 to 1 by all but "; 1 to 3 by "; 2 to 4 by u; 4 to 5 by l; 5 to 3 by'),
        (" ?.", "0 to 1 by ·; 0 to 2 by all but ⏎·; 1 to 2 by all but ⏎"),
        ("abcdefgh", "0 to 1 by a"),
        (r"[^\s]\D*", "0 to 1 by"),
        ("", "none"),
    ],
)  # fmt: skip
def test_arrows_lead_back_and_over_other_states_and_stay_readable(pattern: str, drawn: str) -> None:
    picture = states_picture(Machine(pattern))
    assert f"Arrows: {drawn}" in picture.alt
    assert_readable(picture)


def test_drawing_does_not_make_the_machines_states() -> None:
    machine = Machine(NUMBER)
    machine.step(0, "1")
    before = deepcopy((machine.states, machine.arrows))
    states_picture(machine, "-12.5")
    assert (machine.states, machine.arrows) == before


PATTERNS = ["abc", "a|b", "(a|bc)d", "a*", "(ab)*c", "a+", r"\d+x", "(ab)?c", "(a|bb)?", "[a-z]", "[^a-c]", ".", r"\.\*",
            "[ab]", r"\D", "a(b(c|d))*", "(a*b)+c", "((a|b)c)+", "a?b?", "(a?b|c)*d", "(ab)+", "(ab)+c"]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_expression_is_shown_as_a_pattern_that_means_it(pattern: str) -> None:
    expression = Parser(pattern).parse()
    assert Parser(expression_text(expression)).parse() == expression


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="has more than 9 states"):
        states_picture(Machine("abcdefghij"))
