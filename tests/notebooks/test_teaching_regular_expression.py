"""The small machine for regular expressions, against Python's `re` and against llguidance."""

import random
import re

import pytest

from notebooks.course.regular_expression import Machine
from tests.helpers.grammars import EOS, allowed, matcher_of, random_output, story_compiler

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
SELDOM_END = ("[^a-c]+x", r"\w+@\w+\.com")  # when tokens are chosen at random


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


@pytest.mark.parametrize("pattern", PATTERNS)
def test_random_outputs_of_llguidance_match(pattern: str) -> None:
    rng, machine, ended = random.Random(1), Machine(pattern), 0
    for _ in range(5 if pattern in SELDOM_END else 20):
        output = random_output(matcher_of("regex", in_ascii(pattern)), rng)
        if output is not None:
            ended += 1
            assert re.fullmatch(pattern, output.decode())
            assert machine.accepts(machine.step(0, output.decode()))
    assert ended or pattern in SELDOM_END


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
        ("a)", "closes that was never opened"),
        ("[a", "ends too early"),
        ("[]", "no characters"),
        ("*a", "cannot be here"),
        ("a{2", "must be"),
        ("a{3,2}", "must be"),
        ("(?=a)", "not implemented"),
        (r"\b", "not implemented"),
        (r"[\D]", "not implemented inside a class"),
        ("[z-a]", "to a later one"),
        (r"[\d-z]", "to a later one"),
        ("a{101}", "at most 100 times"),
        ("(a{100}){100}", "too many parts"),
        ("(" * 500 + "a" + ")" * 500, "too many parts"),
    ],
)
def test_a_pattern_that_it_cannot_read_is_refused_with_the_position(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"position [0-9]+: .*{reason}"):
        Machine(pattern)
