"""Checks of notebook 04, free slots as a list of runs. The oracle is the plain set of free slots."""

from collections.abc import Iterable
from typing import Any

from nanoinfer.teaching.exercises import Given, exercise
from nanoinfer.teaching.expectations import Hint, expect, expect_equal
from nanoinfer.teaching.several import several

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
    """The student's runs as tuples of ints, empty ones refused; Hint when they are no such list."""
    try:
        plain = [(int(start), int(end)) for start, end in runs]
    except (TypeError, ValueError):
        raise Hint(f"`runs` must stay a list of pairs (start, end), but it is now {runs!r}") from None
    for start, end in plain:
        expect(start < end, f"`runs` now holds ({start}, {end}), a run without slots: leave it out once it is used up")
    return plain


def plain_ints(value: Any, what: str) -> list[int]:
    """A list, array or tensor as a list of ints; Hint when it is something else."""
    if value is None:
        raise Hint(f"{what} is None, but there is an answer here. Is a `return` missing?")
    try:
        return [int(item) for item in value]
    except (TypeError, ValueError):
        raise Hint(f"{what} must be a list of slots, got {type(value).__name__}: {value!r}") from None


def check_left(runs: Runs, want: set[int], hint: str) -> None:
    """`runs` must describe exactly the free slots `want`, in maximal runs."""
    plain = plain_runs(runs)
    expect_equal(sorted(free_set(plain)), sorted(want), hint)
    expect_equal(
        plain, as_runs(want), "The right slots are free, but `runs` must be sorted, and runs that touch are one"
    )


@exercise("4.1", "Allocate the lowest free slots", points=2)
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
                plain_ints(student(runs, 0), "alloc of 0 slots"), [], "Nothing asked for is an empty list, and not None"
            )
            expect_equal(plain_runs(runs), [(2, 6)], "Nothing was asked for, but `runs` has changed")
    return f"lowest first, all or nothing, in {len(cases) + 1} cases"


def _expect_none(student: Any, state: Runs, need: int) -> None:
    """There are fewer than `need` free slots in `state`."""
    runs, free = list(state), len(free_set(state))
    got = student(runs, need)
    expect(
        got is None or len(plain_ints(got, "What alloc returns")) >= need,
        f"{need} slots were asked for, {free} are free, and alloc returned only some. All or nothing: a request that "
        "cannot have all its slots gets None, since a part of them would only block others",
    )
    expect(got is None, f"{need} slots were asked for and {free} are free: alloc must return None")
    expect_equal(
        plain_runs(runs),
        state,
        "alloc returned None, but `runs` has changed. Nothing may be taken when not everything can be had: those slots "
        "would be lost. Compare before you take",
    )


def _expect_lowest(student: Any, part: several, state: Runs, need: int) -> None:
    """There are at least `need` free slots in `state`."""
    runs, free = list(state), free_set(state)
    got = student(runs, need)
    wanted = sorted(free)[:need]
    with part("slots"):
        slots = plain_ints(got, f"alloc({state}, {need})")
        expect(len(slots) == need, f"{need} slots were asked for, alloc returned {len(slots)}: {slots}")
        expect_equal(
            slots,
            wanted,
            f"From {state}, {need} slots: the lowest free ones come first, in ascending order, across as many runs as it "
            "takes, so that the used part of the pool stays compact",
        )
    others = isinstance(got, list) and sorted(got) != wanted
    with part("runs", *["slots"] * others):  # other slots leave other runs
        expect(runs != state, "The slots are still in `runs`: the next one would get them too")
        check_left(runs, free - set(wanted), "What alloc took and what is left in `runs` do not add up")


@exercise("4.4", "Allocate neighbours, first fit")
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
                            f"{case}: no run is long enough, so the answer is None, however many slots are free; got "
                            f"{got!r}",
                        )
                        expect_equal(plain_runs(runs), state, f"{case}: None was returned, but `runs` has changed")
                else:
                    pair = plain_ints(got, case)
                    expect(len(pair) == 2, f"{case}: return (start, end), got {got!r}")
                    start, end = pair
                    with part("end"):
                        expect(
                            end != start + need - 1,
                            f"{case}: `end` is exclusive: the slots are start, ..., end - 1, and end is the next",
                        )
                        expect_equal(end - start, need, f"{case}: ({start}, {end}) is not {need} slots")
                    with part("start"):
                        expect(
                            start == fitting[0] or start not in fitting,
                            f"{case}: the run at {start} fits, but *first fit* takes the first that does, at {fitting[0]}",
                        )
                    with part("start", "none"):
                        expect_equal(
                            start, fitting[0], f"{case}: take from the front of the first run that is long enough"
                        )
                    with part("runs", "start"):
                        wanted = free_set(state) - set(range(start, start + need))
                        check_left(runs, wanted, f"{case}: what was taken and what is left differ")
                cases += 1
    return f"first fit in {cases} cases"


@exercise("4.5", "Free, errors before effects", points=2)
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
                hint = f"After freeing {slots} from {state} the wrong slots are free"
                check_left(runs, free_set(state) | set(slots), hint)
        _expect_refusals(student, part)
    return "merged runs, and three errors that change nothing"


def _expect_refusals(student: Any, part: several) -> None:
    outside = f"is outside 0..{SIZE - 1}"
    bad: list[tuple[Runs, list[int], int, str]] = [
        ([(0, 3)], [7], 7, ""),  # can be freed: the same state, the same form
        ([(0, 3)], [5, 32], 32, outside),
        ([(0, 3)], [5, -1], -1, f"{outside}; a negative index would count from the end of the pool"),
        ([(0, 3)], [6, 1], 1, "is free already: two requests would get it"),
        ([(0, 3)], [6, 2, 8], 2, "is free already: two requests would get it"),
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
                expect(refused is None, f"Freeing {slots} from {state} is fine, but it was refused: {refused}")
                continue
            expect(refused is not None, f"free({state}, {slots}): slot {offender} {why}. Raise a ValueError")
        with part("message", why):
            expect(
                str(offender) in (refused or ""),
                f"The message must name the slot {offender}, so that the bug can be found: {refused!r}",
            )
        with part("before effects", why):
            expect_equal(
                plain_runs(runs),
                state,
                f"free({state}, {slots}) was refused, but `runs` has changed before that. Errors before effects: check all "
                "of them first, then change anything",
            )
