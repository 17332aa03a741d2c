"""The small machine for regular expressions, against Python's `re` and llguidance; and the picture of its states."""

import random
import re
from collections.abc import Sequence

import pytest

pytest.importorskip("matplotlib")

from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from nanoinfer import viz
from nanoinfer.viz.palette import ROLES
from notebooks.course.regular_expression import Machine, Parser
from notebooks.course.states_picture import expression_text, states_picture
from tests.helpers.grammars import EOS, allowed, matcher_of, story_compiler
from tests.helpers.pictures import assert_readable, named, texts

PATTERNS = (
    "abc",
    "(0|1)*1",
    "a{2,4}b?",
    "a{3}",
    "b{1,}",
    "[^a-c]+x",
    r"\d{3}-\d{2}",
    "(ab|a)(c|bcd)",
    "(a|b)*a(a|b){3}",
    "(?:x|yz)+",
    r"[a\-z]+",
    r"\w+@\w+\.com",
    "(yes|no|yesterday)",
    "x(y(z)?)?",
    r"\(\d+\)",
    "a.c",
    "(a*)*b",
)


def in_ascii(pattern: str) -> str:
    """Elsewhere, \\d and \\w are digits and letters of all scripts; here they are ASCII's."""
    return pattern.replace(r"\d", "[0-9]").replace(r"\w", "[0-9A-Za-z_]")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_accepts_what_python_matches(pattern: str) -> None:
    rng, machine, found = random.Random(pattern), Machine(pattern), set()
    for _ in range(3000):
        text = "".join(rng.choice("abcxyz01-9@.\n(es") for _ in range(rng.randrange(8)))
        found.add(wanted := re.fullmatch(pattern, text) is not None)
        assert machine.accepts(machine.step(0, text)) == wanted, text
    assert False in found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_its_masks_allow_what_llguidance_allows(pattern: str) -> None:
    """llguidance allows one way only to write a text that has to come, so there its tokens are some of ours."""
    vocabulary, machine, rng = story_compiler().vocabulary, Machine(pattern), random.Random(0)
    readable = [i for i, token in enumerate(vocabulary.tokens[: vocabulary.size]) if token.isascii()]
    compared = set(readable) - {EOS}
    texts = ["" if i in vocabulary.special else vocabulary.tokens[i].decode() for i in readable]
    for _ in range(5):
        matcher, state = matcher_of("regex", in_ascii(pattern)), 0
        for _ in range(12):
            mask = machine.mask(state, texts)
            ours = {i for i, may in zip(readable, mask, strict=True) if may}
            theirs = allowed(matcher)
            assert (EOS in theirs) == machine.accepts(state) == matcher.is_complete
            theirs &= compared
            if matcher.forced_tokens():
                assert len(theirs) == 1
                assert theirs <= ours
            else:
                assert theirs == ours
            if not theirs:
                break
            token = rng.choice(sorted(theirs))
            assert matcher.accept(token)
            state = machine.step(state, vocabulary.tokens[token].decode())


def test_equal_expressions_are_one_state() -> None:
    machine = Machine("(a|b)*abb")
    for text in ("abb", "aabb", "babb", "ababb", "bbbabb", "abbabb"):
        assert machine.accepts(machine.step(0, text))
    assert len(machine.states) == 4
    assert machine.step(0, "abc") == Machine.DEAD


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "a group has no end"),
        ("*a", "cannot be here"),
        ("a{3,2}", "must be"),
        ("(?=a)", "not implemented"),
        ("[z-a]", "to a later one"),
    ],
)
def test_a_pattern_that_it_cannot_read_is_refused_with_the_position(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"position [0-9]+: .*{reason}"):
        Machine(pattern)


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
    "pattern", [*PATTERNS, "(a|bc)d", "(a|bb)?", r"\.\*", r"\D", "a(b(c|d))*", "((a|b)c)+", "(a?b|c)*d", "(ab)+c"]
)
def test_an_expression_is_shown_as_a_pattern_that_means_it(pattern: str) -> None:
    expression = Parser(pattern).parse()
    assert Parser(expression_text(expression)).parse() == expression
