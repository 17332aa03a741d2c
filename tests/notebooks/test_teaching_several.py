"""Two mistakes at once: a check's hint names both, and of one mistake it names no consequences."""

import re
from contextlib import nullcontext
from math import prod
from types import ModuleType

import pytest

from notebooks.course import Hint, NotWritten, check, expect
from notebooks.course.several import ALSO, find_mistakes, several
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

    @pytest.mark.parametrize("error", [KeyError("x"), NotWritten("stub"), NotImplementedError("exercise 5.1")])
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
    "3": test_checks_kv_cache,
    "4": test_checks_batched_decode,
    "5": test_checks_memory_pools,
    "6": test_checks_input_metadata,
    "7": test_checks_attention,
    "8": test_checks_radix_cache,
    "10": test_checks_scheduler,
    "11": test_checks_scheduler,
}


def answer_of(id: str) -> str:
    module = FILES[id.partition(".")[0]]
    answers = module.ANSWERS if hasattr(module, "ANSWERS") else module.SOLUTIONS
    return answers[id]


# exercise, and the hints of two of the mistakes in its file (of the first that has that hint)
PAIRS = [
    ("3.1", "a key and a value", "Query heads share keys and values"),
    ("3.1", "a key and a value", "Every layer"),
    ("3.1", "a key and a value", "Every key/value head"),
    ("3.3", "square root of D before", "Scores aren't weights"),
    ("3.3", "Divide them by its square root", "Scores aren't weights"),
    ("3.3", "sees itself", "`values` in place"),
    ("3.4", "Neighbours share", "square root of D before"),
    ("4.1", "mask is True for padding", "must be zeros"),
    ("4.1", "mask is True for padding", "must begin with"),
    ("4.1", "mask is True for padding", "longest"),
    ("4.2", "Padding isn't masked", "`values` in place"),
    ("4.2", "Padding isn't masked", "h % Hk"),
    ("4.2", "Padding isn't masked", "square root of D"),
    ("5.1", "all or nothing", "take the lowest free slots"),
    ("5.1", "all or nothing", "Is a `return` missing"),
    ("5.1", "all or nothing", "ascending order"),
    ("5.3", "already have K/V", "must have the same slots"),
    ("5.3", "already have K/V", "after the new length"),
    ("5.3", "already have K/V", "copied"),
    ("5.4", "first run that is long enough|Is a `return` missing|\\*first fit\\*", "`end` is exclusive"),
    ("5.4", "first run that is long enough|Is a `return` missing|\\*first fit\\*", "the wrong slots are left"),
    ("5.4", "\\*first fit\\* takes the first", "`end` is exclusive"),
    ("5.5", "is outside 0..31", "two requests would get it"),
    ("5.5", "is outside 0..31", "is given twice"),
    ("5.5", "is outside 0..31", "merge the runs that touch"),
    ("5.6", "A free slot isn't lost", "contested slot once|more than one owner"),
    ("5.6", "neither free nor held", "more than one owner|an owner"),
    ("5.6", "neither free nor held", "the free list is an owner"),
    ("6.2", "0 at the front is missing", "changed `lens`"),
    ("6.2", "total is missing at the end", "changed `lens`"),
    ("6.2", "where each request \\*ends", "changed `lens`"),
    ("6.3", "in the wrong order", "`end` is exclusive"),
    ("6.3", "in the wrong order", "return two values"),
    ("6.3", "in the wrong order|descending order", "`end` is exclusive"),
    ("6.5", "its pages have one token", "among the \\*new\\* tokens"),
    ("6.5", "its pages have one token", "still missing: start_loc"),
    ("6.5", "its pages have one token", "`kv_indptr` is None"),
    ("7.1", "you changed the last slot of the pool", "swapped keys and values|the key buffer. Token i"),
    ("7.1", "you changed the last slot of the pool", "the value buffer. Token i"),
    ("7.1", "swapped keys and values|the key buffer. Token i", "the value buffer. Token i"),
    ("7.3", "too sharp", "sees all requests' slots"),
    ("7.3", "too sharp", "look up each token's slot"),
    ("7.3", "too sharp", "runs over heads"),
    ("7.4", "row i isn't position i", "must see itself"),
    ("7.4", "row i isn't position i", "yours has 4"),
    ("7.4", "row i isn't position i", "too far back"),
    ("7.5", "q · k by `scale`", "the mask is missing"),
    ("7.5", "q · k by `scale`", "didn't shift the mask by the prefix"),
    ("7.5", "q · k by `scale`", "minus infinity before the softmax"),
    ("8.2", "evicted while they are", "still points to the lower part"),
    ("8.2", "evicted while they are", "now begins with another token"),
    ("8.2", "evicted while they are", "exactly one child"),
    ("10.1", "Evictable slots are available too", "candidate can't have all"),
    ("10.1", "Evictable slots are available too", "don't count them again"),
    ("10.1", "Evictable slots are available too", "rounded up"),
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
