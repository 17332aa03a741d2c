"""Two mistakes at once: a check's hint names both, and of one mistake it names no consequences."""

import re
from contextlib import nullcontext
from math import prod
from types import ModuleType

import pytest

from nanoinfer.teaching import Hint, NotWritten, check, expect
from nanoinfer.teaching.several import ALSO, find_mistakes, several
from tests.notebooks import (
    test_checks_attention,
    test_checks_batched_decode,
    test_checks_input_metadata,
    test_checks_kv_cache,
    test_checks_memory_pools,
    test_checks_radix_cache,
    test_checks_scheduler,
)
from tests.solution_cells import written


def go_through(*parts: tuple[str, str | BaseException | None]) -> set[str]:
    """A check with these parts: what each is called and needs ("output keys"; "": no part), and the hint or the exception
    that arises in it. Returns the parts found wrong if it does not raise."""
    with several() as part:
        for names, what in parts:
            with part(*names.split()) if names else nullcontext():
                if isinstance(what, BaseException):
                    raise what
                expect(what is None, what or "")
    return part.wrong


class TestSeveral:
    """with several() as part: ... with part(...):"""

    @pytest.mark.parametrize(
        ("parts", "said"),
        [
            ([("a", "first"), ("b", None), ("c", "second")], f"first{ALSO}second"),
            ([("keys", "case 0"), ("keys", "case 1"), ("output keys", "follows"), ("more output", "too")], "case 0"),
            ([("output keys", "first"), ("keys", "second")], f"first{ALSO}second"),
            ([(str(i), f"hint {i}") for i in range(9)], ALSO.join(f"hint {i}" for i in range(3))),
            ([("a", "first"), ("", "last")], f"first{ALSO}last"),
            ([("a", "first"), ("b", KeyError("x"))], "first"),
            ([("a", "first"), ("", SystemExit())], "first"),
            ([("a", "first"), ("", NotWritten("stub"))], "first"),
        ],
    )
    def test_what_is_independently_wrong_is_named_in_order(
        self, parts: list[tuple[str, str | BaseException | None]], said: str
    ) -> None:
        with pytest.raises(Hint) as caught:
            go_through(*parts)
        assert str(caught.value) == said

    def test_what_is_right_raises_nothing(self) -> None:
        assert go_through(("a", None), ("b", None)) == set()

    @pytest.mark.parametrize("error", [KeyError("x"), NotWritten("stub"), NotImplementedError("exercise 4.1")])
    def test_an_exception_passes_where_there_are_no_hints(self, error: Exception) -> None:
        with pytest.raises(type(error)) as caught:
            go_through(("a", None), ("b", error), ("c", "not reached"))
        assert caught.value is error

    def test_an_interrupt_always_passes(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            go_through(("a", "first"), ("b", KeyboardInterrupt()))


@pytest.mark.parametrize(
    ("answer", "hint"),
    [(6, "twice"), (9, "thrice"), (18, f"twice{ALSO}thrice"), (30, f"twice{ALSO}fivefold"), (7, None)],
)
def test_one_mistake_explains_before_two_do(answer: int, hint: str | None) -> None:
    """What should be 3 is multiplied."""
    found = find_mistakes({"twice": 2, "thrice": 3, "fivefold": 5}, lambda made: answer == 3 * prod(made))
    assert found == hint


# --- the checks -----------------------------------------------------------------------------------------------------

FILES: dict[str, ModuleType] = {
    "2": test_checks_kv_cache,
    "3": test_checks_batched_decode,
    "4": test_checks_memory_pools,
    "5": test_checks_input_metadata,
    "6": test_checks_attention,
    "7": test_checks_radix_cache,
    "8": test_checks_scheduler,
}


def answer_of(id: str) -> str:
    module = FILES[id.partition(".")[0]]
    answers = module.ANSWERS if hasattr(module, "ANSWERS") else module.SOLUTIONS
    return answers[id]


# exercise, and the hints of two of the mistakes in its file (of the first that has that hint)
PAIRS = [
    ("2.1", "a key and a value", "Query heads share them"),
    ("2.1", "a key and a value", "Every layer"),
    ("2.1", "a key and a value", "Every key/value head"),
    ("2.3", "square root of D before", "Scores are not weights"),
    ("2.3", "divide them by its square root", "Scores are not weights"),
    ("2.3", "sees itself", "changed in place"),
    ("2.4", "Neighbours share", "square root of D before"),
    ("3.1", "True for padding here", "not zeros"),
    ("3.1", "True for padding here", "must begin with"),
    ("3.1", "True for padding here", "longest"),
    ("3.2", "Padding is not masked", "changed in place"),
    ("3.2", "Padding is not masked", "h % Hk"),
    ("3.2", "Padding is not masked", "square root of D"),
    ("4.1", "All or nothing", "the lowest free ones come first"),
    ("4.1", "All or nothing", "Is a `return` missing"),
    ("4.1", "All or nothing", "ascending order"),
    ("4.3", "have K/V already", "must name the same slots"),
    ("4.3", "have K/V already", "right of the new length"),
    ("4.3", "have K/V already", "copied"),
    ("4.4", "first run that is long enough|Is a `return` missing|\\*first fit\\*", "`end` is exclusive"),
    ("4.4", "first run that is long enough|Is a `return` missing|\\*first fit\\*", "what is left differ"),
    ("4.4", "\\*first fit\\* takes the first", "`end` is exclusive"),
    ("4.5", "is outside 0..31", "two requests would get it"),
    ("4.5", "is outside 0..31", "is given twice"),
    ("4.5", "is outside 0..31", "runs that touch are one"),
    ("4.6", "A free slot is not lost", "named once|more than one owner"),
    ("4.6", "neither free nor held", "more than one owner|an owner"),
    ("4.6", "neither free nor held", "the free list is an owner"),
    ("5.2", "0 at the front is missing", "has changed `lens`"),
    ("5.2", "total is missing at the end", "has changed `lens`"),
    ("5.2", "where each request \\*ends", "has changed `lens`"),
    ("5.3", "the order is not", "`end` is exclusive"),
    ("5.3", "the order is not", "return two values"),
    ("5.3", "the order is not|falling order", "`end` is exclusive"),
    ("5.5", "pages of one token", "among the \\*new\\* tokens"),
    ("5.5", "pages of one token", "still missing: start_loc"),
    ("5.5", "pages of one token", "`kv_indptr` is None"),
    ("6.1", "the last slot of the pool has changed", "keys and values have changed places|keys; token i"),
    ("6.1", "the last slot of the pool has changed", "values; token i"),
    ("6.1", "keys and values have changed places|keys; token i", "values; token i"),
    ("6.3", "too sharp", "the slots of all requests"),
    ("6.3", "too sharp", "look each token's slot up"),
    ("6.3", "too sharp", "runs over heads"),
    ("6.4", "row i is not position i", "sees itself"),
    ("6.4", "row i is not position i", "yours has 4"),
    ("6.4", "row i is not position i", "too far back"),
    ("6.5", "times `scale`", "the mask is missing"),
    ("6.5", "times `scale`", "not shifted by the prefix"),
    ("6.5", "times `scale`", "minus infinity before the softmax"),
    ("7.2", "evicted while they run", "still leads to the lower part"),
    ("7.2", "evicted while they run", "begins with another token now"),
    ("7.2", "evicted while they run", "exactly one child"),
    ("8.1", "only cached are available as well", "are not all for the candidate"),
    ("8.1", "only cached are available as well", "must not be counted again"),
    ("8.1", "only cached are available as well", "rounded up"),
]


@pytest.mark.parametrize(("id", "first", "second"), PAIRS)
def test_two_mistakes_are_both_named(id: str, first: str, second: str) -> None:
    answer, mistakes = answer_of(id), FILES[id.partition(".")[0]].MISTAKES
    for hint in (first, second):
        right, wrong = next(change for of, *change, said in mistakes if (of, said) == (id, hint))
        assert right in answer
        answer = answer.replace(right, wrong)
    with pytest.raises(Hint) as caught:
        check(id, written(answer))
    for hint in (first, second):
        assert re.search(hint, str(caught.value)), str(caught.value)


# One line of these answers does two things, which a check tells apart.
TWO_THINGS = {
    ("5.5", '"start_loc"'),  # a field is misspelt: one is missing, and one is unknown
    ("7.2", "upper.lock_ref, upper.hit_count = node.lock_ref, node.hit_count\n"),
}
SINGLE = [
    (id, right, wrong)
    for module in FILES.values()
    for id, right, wrong, _ in module.MISTAKES
    if (id, right) not in TWO_THINGS
]


@pytest.mark.parametrize(("id", "right", "wrong"), SINGLE)
def test_one_mistake_gets_one_hint(id: str, right: str, wrong: str) -> None:
    with pytest.raises(Hint) as caught:
        check(id, written(answer_of(id).replace(right, wrong)))
    assert ALSO not in str(caught.value)
