"""Checks of notebook 05, free slots as a list of runs. The oracle is the plain set of free slots."""

from collections.abc import Iterable
from typing import Any

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, expect, expect_equal
from notebooks.course.several import several

Runs = list[tuple[int, int]]

# Free runs to start from: one run, several, runs of one slot, nothing free, all free.
STATES: list[Runs] = [[(4, 12)], [(0, 3), (5, 9), (20, 32)], [(1, 2), (3, 4), (6, 7), (31, 32)], [], [(0, 32)]]
SIZE = 32


def free_set(runs: Iterable[tuple[int, int]]) -> set[int]:
    return {slot for start, end in runs for slot in range(start, end)}


def as_runs(free: set[int]) -> Runs:
    """The maximal runs of a set of slots, by looking at every slot."""
    starts = [slot for slot in sorted(free) if slot - 1 not in free]
    ends = [slot + 1 for slot in sorted(free) if slot + 1 not in free]
    return list(zip(starts, ends, strict=True))


def plain_runs(runs: Any) -> Runs:
    """The student's runs as tuples of ints. Raises Hint if a run is empty, or if this is not a list of pairs."""
    try:
        plain = [(int(start), int(end)) for start, end in runs]
    except (TypeError, ValueError):
        raise Hint(f"`runs` must remain a list of pairs (start, end), but it is now {runs!r}") from None
    for start, end in plain:
        expect(start < end, f"`runs` now contains ({start}, {end}), an empty run. Remove a run once it is used up")
    return plain


def plain_ints(value: Any, what: str) -> list[int]:
    """A list, array or tensor as a list of ints. Raises Hint if it is something else."""
    if value is None:
        raise Hint(f"{what} is None, but an answer is expected. Is a `return` missing?")
    try:
        return [int(item) for item in value]
    except (TypeError, ValueError):
        raise Hint(f"{what} must be a list of slots, got {type(value).__name__}: {value!r}") from None


def check_left(runs: Runs, want: set[int], hint: str) -> None:
    """`runs` must describe exactly the free slots `want`, in maximal runs."""
    plain = plain_runs(runs)
    expect_equal(sorted(free_set(plain)), sorted(want), hint)
    expect_equal(
        plain, as_runs(want), "The right slots are free, but sort `runs` and merge the runs that touch each other"
    )


@exercise("5.1", "Allocate the lowest free slots", points=2)
def alloc(given: Given) -> str:
    student = given["alloc"]
    cases = [(state, need) for state in STATES for need in (1, 3, 4, 5, 8, 9, 12, 19, 32, 40)]
    with several() as part:
        for state, need in cases:
            if need > len(free_set(state)):
                with part("none"):
                    _expect_none(student, state, need)
        for state, need in cases:
            if need <= len(free_set(state)) and part.wrong.isdisjoint(("slots", "runs")):
                _expect_lowest(student, part, state, need)
        runs = [(2, 6)]
        with part("nothing asked for"):
            expect_equal(
                plain_ints(student(runs, 0), "alloc of 0 slots"),
                [],
                "If no slots are asked for, return an empty list, not None",
            )
            expect_equal(plain_runs(runs), [(2, 6)], "No slots were asked for, but you changed `runs`")
    return f"lowest first, all or nothing, in {len(cases) + 1} cases"


def _expect_none(student: Any, state: Runs, need: int) -> None:
    """There are fewer than `need` free slots in `state`."""
    runs, free = list(state), len(free_set(state))
    got = student(runs, need)
    expect(
        got is None or len(plain_ints(got, "What alloc returns")) >= need,
        f"{need} slots were asked for, {free} are free, and alloc returned only some of them. It must give all or nothing: "
        "a request can't use part of its slots and would only block others, so return None",
    )
    expect(got is None, f"{need} slots were asked for and {free} are free: alloc must return None")
    expect_equal(
        plain_runs(runs),
        state,
        "alloc returned None but changed `runs`, so the slots that it took are lost. Check that there are enough slots "
        "before you take any",
    )


def _expect_lowest(student: Any, part: several, state: Runs, need: int) -> None:
    """There are at least `need` free slots in `state`."""
    runs, free = list(state), free_set(state)
    got = student(runs, need)
    wanted = sorted(free)[:need]
    with part("slots"):
        slots = plain_ints(got, f"alloc({state}, {need})")
        expect(len(slots) == need, f"{need} slots were asked for, but alloc returned {len(slots)}: {slots}")
        expect_equal(
            slots,
            wanted,
            f"alloc({state}, {need}): take the lowest free slots in ascending order, from as many runs as you need. That "
            "keeps the used part of the pool compact",
        )
    others = isinstance(got, list) and sorted(got) != wanted
    with part("runs", *["slots"] * others):  # other slots leave other runs
        expect(runs != state, "The slots are still in `runs`, so the next request would get them too")
        check_left(runs, free - set(wanted), "After alloc, the wrong slots are left in `runs`")


@exercise("5.4", "Allocate neighbours, first fit")
def alloc_contiguous(given: Given) -> str:
    student = given["alloc_contiguous"]
    cases = 0
    with several() as part:
        for state in [*STATES, [(0, 2), (4, 9), (10, 13), (20, 23)]]:
            for need in (1, 2, 3, 4, 5, 8, 12, 13, 32, 33):
                runs = list(state)
                fitting = [start for start, end in state if end - start >= need]
                got = student(runs, need)
                case = f"{need} neighbours from {state}"
                if not fitting:
                    with part("none", "start"):
                        expect(
                            got is None,
                            f"{case}: no run is long enough, so return None, however many slots are free in total; got "
                            f"{got!r}",
                        )
                        expect_equal(plain_runs(runs), state, f"{case}: you returned None but changed `runs`")
                else:
                    pair = plain_ints(got, case)
                    expect(len(pair) == 2, f"{case}: return (start, end), got {got!r}")
                    start, end = pair
                    with part("end"):
                        expect(
                            end != start + need - 1,
                            f"{case}: `end` is exclusive. The slots are start, ..., end - 1, and end is the next one",
                        )
                        expect_equal(end - start, need, f"{case}: ({start}, {end}) isn't a range of {need} slots")
                    with part("start"):
                        expect(
                            start == fitting[0] or start not in fitting,
                            f"{case}: the run at {start} is long enough, but *first fit* takes the first such run, which "
                            f"starts at {fitting[0]}",
                        )
                    with part("start", "none"):
                        expect_equal(
                            start, fitting[0], f"{case}: take the first slots of the first run that is long enough"
                        )
                    with part("runs", "start"):
                        wanted = free_set(state) - set(range(start, start + need))
                        check_left(runs, wanted, f"{case}: the wrong slots are left in `runs`")
                cases += 1
    return f"first fit in {cases} cases"


@exercise("5.5", "Free, errors before effects", points=2)
def free(given: Given) -> str:
    student = given["free"]
    good: list[tuple[Runs, list[int]]] = [
        ([(0, 3), (5, 9), (20, 32)], [12]),
        ([(0, 3), (5, 9), (20, 32)], [4, 3]),
        ([(0, 3), (5, 9), (20, 32)], [19, 9, 4]),
        ([(0, 3), (5, 9), (20, 32)], [18, 10, 12, 11]),
        ([], [31, 0]),
        ([], list(range(31, -1, -1))),
        ([(0, 32)], []),
        ([(1, 31)], [31, 0]),
    ]
    with several() as part:
        for state, slots in good:
            with part("merging"):
                runs = list(state)
                student(runs, list(slots), SIZE)
                hint = f"After free({state}, {slots}), the wrong slots are free"
                check_left(runs, free_set(state) | set(slots), hint)
        _expect_refusals(student, part)
    return "merged runs, and three errors that change nothing"


def _expect_refusals(student: Any, part: several) -> None:
    outside = f"is outside 0..{SIZE - 1}"
    bad: list[tuple[Runs, list[int], int, str]] = [
        ([(0, 3)], [7], 7, ""),  # can be freed: the same state, the same form
        ([(0, 3)], [5, 32], 32, outside),
        ([(0, 3)], [5, -1], -1, f"{outside}; a negative index would count from the end of the pool"),
        ([(0, 3)], [6, 1], 1, "is already free: two requests would get it"),
        ([(0, 3)], [6, 2, 8], 2, "is already free: two requests would get it"),
        ([(0, 3)], [9, 4, 9], 9, "is given twice: it would be counted twice"),
        ([], [3, 3], 3, "is given twice: it would be counted twice"),
    ]
    for state, slots, offender, why in bad:
        runs, refused = list(state), None
        try:
            student(runs, list(slots), SIZE)
        except ValueError as error:
            refused = str(error)
        with part(why or "merging", *[outside] * (offender < 0)):
            if not why:
                expect(refused is None, f"free({state}, {slots}) must work, but it raised an error: {refused}")
                continue
            expect(refused is not None, f"free({state}, {slots}): slot {offender} {why}. Raise a ValueError")
        with part("message", why):
            expect(
                str(offender) in (refused or ""),
                f"The error message must name slot {offender}, so that the bug can be found. Yours is {refused!r}",
            )
        with part("before effects", why):
            expect_equal(
                plain_runs(runs),
                state,
                f"free({state}, {slots}) raised an error, but only after it had changed `runs`. Errors before effects: "
                "check all slots first, and only then change anything",
            )
