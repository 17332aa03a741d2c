"""several and find_mistakes: how a check names two mistakes that an answer has at once, and no consequences of one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from types import TracebackType
from typing import TypeVar

from notebooks.course.expectations import Hint, NotWritten

T = TypeVar("T")

ALSO = "\n\nAlso: "
_NAMED = 3  # more than these are as a rule one misunderstanding, not many mistakes


class several:
    """For an answer of which several things can be wrong, independently of one another:

        with several() as part:
            with part("keys"):
                expect_equal(keys, ...)
            with part("values"):
                expect_equal(values, ...)
            with part("output", "keys", "values"):
                expect_equal(output, ...)

    A part ends at its first hint, and the check goes on after it. After a part's name comes what else it depends on: its
    hint is left out where one of these, or the part itself, was found wrong before, as it may be a consequence. At the
    end of the block one Hint names all that is left, in order, the first few of many. An exception of another kind
    ends the block; it is left out, too, where there are hints from before. `wrong`: the parts found wrong so far. A loop
    over cases ends there where the student's code may never return once it has gone wrong.
    """

    def __init__(self) -> None:
        self._hints: list[str] = []
        self.wrong: set[str] = set()

    def __enter__(self) -> "several":
        return self

    @contextmanager
    def __call__(self, name: str, *needs: str) -> Iterator[None]:
        """The expectations about the part `name`, which depends on those in `needs`. Several blocks may have a name."""
        try:
            yield
        except NotWritten:
            raise
        except Hint as hint:
            if self.wrong.isdisjoint((name, *needs)):
                self._hints.append(str(hint))
            self.wrong.add(name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Hint) and not isinstance(error, NotWritten):
            self._hints.append(str(error))
        if self._hints and (error is None or isinstance(error, Exception | SystemExit)):
            raise Hint(ALSO.join(self._hints[:_NAMED])) from None


def find_mistakes(mistakes: Mapping[str, T], gives: Callable[[Sequence[T]], bool]) -> str | None:
    """The hint of the one of `mistakes`, or the hints of the two, that explain an answer; None where none do.

    `mistakes`: hint → what describes the mistake. `gives`: whether these mistakes, and no others, lead to the
    answer; it is asked about each alone, then about every two.
    """
    for count in (1, 2):
        for some in combinations(mistakes.items(), count):
            if gives([mistake for _, mistake in some]):
                return ALSO.join(hint for hint, _ in some)
    return None
