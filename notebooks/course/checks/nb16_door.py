"""More checks of notebook 16: a token bucket, a queue with several seats, and keys whose comparison tells nothing."""

import heapq
import math
import random
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, a_kind, expect
from notebooks.course.limits import limited

# --- 16.3 -------------------------------------------------------------------------------------------------------------


class _Bucket:
    """What is right. All numbers in the cases are eighths, so that floats are exact."""

    def __init__(self, rate: float, burst: float):
        self.rate, self.burst, self.level, self.at = rate, burst, burst, 0.0

    def admit(self, now: float, cost: float) -> int | None:
        self.level, self.at = min(self.burst, self.level + self.rate * (now - self.at)), now
        if cost <= self.level:
            self.level -= cost
            return None
        return math.ceil((cost - self.level) / self.rate)


@exercise("16.3", "A token bucket", points=2)
def _(given: Given) -> str:
    kind = given["Bucket"]
    for rate, burst, calls in (
        (
            2.0,
            8.0,
            [(0.0, 3.0), (0.0, 5.0), (0.0, 1.0), (0.25, 1.0), (0.5, 1.0), (0.5, 1.0), (100.0, 8.0), (100.0, 0.5)],
        ),
        (1.0, 4.0, [(0.0, 4.0), (0.0, 4.0), (1.0, 4.0), (2.0, 4.0), (3.5, 4.0), (4.0, 4.0)]),
        (0.5, 2.0, [(0.0, 2.0), (0.0, 2.0), (1.0, 2.0), (2.0, 2.0), (4.0, 2.0)]),
    ):
        _one_bucket(kind, rate, burst, calls)
    rng = random.Random(163)
    for _ in range(60):
        rate, burst, now = rng.choice((0.25, 0.5, 1.0, 2.0, 8.0)), float(rng.randrange(1, 17)), 0.0
        calls = []
        for _ in range(30):
            now += rng.choice((0, 0, 1, 1, 2, 5, 40)) / 8
            calls.append((now, rng.randrange(1, int(8 * burst) + 1) / 8))
        _one_bucket(kind, rate, burst, calls)
    bucket = _made(kind, 1.0, 4.0)
    try:
        got = bucket.admit(0.0, 5.0)
    except ValueError as error:
        expect(
            "5" in str(error) and "4" in str(error),
            f"cost=5 with burst=4 can never be admitted. Your ValueError says {str(error)!r}; it should name both numbers.",
        )
    else:
        expect(
            False, f"cost=5 with burst=4 can never be admitted, however long it waits. Raise a ValueError, not {got!r}."
        )
    expect(bucket.admit(0.0, 4.0) is None, "A request that was refused with a ValueError must not have taken anything.")
    return "63 buckets, about 1,800 requests"


def _made(kind: Callable[..., Any], rate: float, burst: float) -> Any:
    bucket = kind(rate, burst)
    expect(callable(getattr(bucket, "admit", None)), "`Bucket` is a class with a method `admit(now, cost)`.")
    return bucket


def _one_bucket(kind: Callable[..., Any], rate: float, burst: float, calls: Sequence[tuple[float, float]]) -> None:
    mine, theirs, has_refused = _made(kind, rate, burst), _Bucket(rate, burst), False
    for i, (now, cost) in enumerate(calls):
        level = min(burst, theirs.level + rate * (now - theirs.at))
        want, got = theirs.admit(now, cost), mine.admit(now, cost)
        before = f", after {calls[max(0, i - 3) : i]}" if i else ""
        said = (
            f"rate={rate:g}, burst={burst:g}: admit(now={now:g}, cost={cost:g}){before}. There are {level:g} tokens, so"
        )
        if want is None:
            why = _why_refused(level, cost, burst, has_refused)
            expect(got is None, f"{said} it is admitted: return None, not {got!r}.{why}")
            continue
        has_refused = True
        expect(
            got is not None,
            f"{said} it must be refused, with {want} s to wait, but you admit it. (The bucket never has more than `burst` "
            "tokens, and what was admitted before has taken some.)",
        )
        expect(
            isinstance(got, int | np.integer) and not isinstance(got, bool),
            f"{said} it is refused. Return a whole number of seconds (int), not {a_kind(got)}: Retry-After has no "
            "fractions.",
        )
        expect(
            got >= want,
            f"{said} {cost - level:g} are missing. You return {got} s, but after {got} s there is still not enough, and "
            "the request would be refused again. Round up.",
        )
        expect(got == want, f"{said} {cost - level:g} are missing. They are there after {want} s, not {got} s.")


def _why_refused(level: float, cost: float, burst: float, has_refused: bool) -> str:
    if level == cost and not has_refused:
        return " Exactly enough is enough."
    if level == burst and not has_refused:
        return " The bucket is full again by now."
    return " (A request that is refused takes nothing, and for the bucket, time goes on in any case.)"


# --- 16.4 -------------------------------------------------------------------------------------------------------------


def _times(arrivals: Sequence[float], services: Sequence[float], seats: int) -> list[float]:
    free_at, times = [0.0] * seats, list[float]()
    for arrival, service in zip(arrivals, services, strict=True):
        end = max(arrival, heapq.heappop(free_at)) + service
        heapq.heappush(free_at, end)
        times.append(end - arrival)
    return times


@exercise("16.4", "A queue with several seats", points=2)
def _(given: Given) -> str:
    times_of = given["times_of"]
    rng = random.Random(164)
    cases: list[tuple[list[float], list[float], int]] = [
        ([], [], 1),
        ([0.0], [2.0], 1),
        ([0.0, 1.0], [4.0, 2.0], 1),
        ([0.0, 5.0], [2.0, 2.0], 1),
        ([0.0, 0.0], [2.0, 2.0], 2),
        ([0.0, 0.0, 0.0], [4.0, 1.0, 3.0], 2),
        ([0.0, 0.0, 1.0, 2.0], [8.0, 1.0, 1.0, 1.0], 2),
        ([0.0, 0.0, 0.0, 0.0], [4.0, 3.0, 2.0, 1.0], 2),
    ]
    for _ in range(40):
        size = rng.randrange(5, 60)
        arrivals = sorted(rng.randrange(0, 160) / 8 for _ in range(size))
        cases.append((arrivals, [rng.randrange(1, 32) / 8 for _ in range(size)], rng.choice((1, 1, 2, 3, 8))))
    for arrivals, services, seats in cases:
        _one_queue(times_of, arrivals, services, seats)
    return "48 queues with 1 to 8 seats"


def _one_queue(times_of: Callable[..., Any], arrivals: list[float], services: list[float], seats: int) -> None:
    said, want = (
        f"arrivals={arrivals[:8]}, services={services[:8]}, seats={seats}",
        _times(arrivals, services, seats),
    )
    kept = list(arrivals), list(services)
    with limited(
        200_000, f"{said}: your code has run 200,000 lines. No loop over moments is needed: go from request to request."
    ):
        got = times_of(arrivals, services, seats)
    expect((arrivals, services) == kept, "You changed `arrivals` or `services`.")
    try:
        times = [float(time) for time in got]
    except (TypeError, ValueError):
        raise Hint(f"{said}: return a list of numbers, not {a_kind(got)}.") from None
    expect(len(times) == len(want), f"{said}: {len(times)} times for {len(want)} requests.")
    for i, (time, right) in enumerate(zip(times, want, strict=True)):
        if time == right:
            continue
        waits = right - services[i]
        here = f"{said}: request {i}, which arrives at {arrivals[i]:g} and takes {services[i]:g}, has {time:g}."
        expect(time != waits, f"{here} That is how long it waits; the time until its end is wanted, so {right:g}.")
        expect(time != arrivals[i] + right, f"{here} That is when it ends; count from its arrival, so {right:g}.")
        expect(
            time != right + max(0.0, -waits) and time >= services[i],
            f"{here} A request takes at least the time of its own service. It can't begin before it arrives.",
        )
        if seats > 1 and time > right:
            expect(False, f"{here} Its seat is the one that is free first, so it ends after {right:g}.")
        expect(
            time > right,
            f"{here} It has to wait until one of the {seats} seats is free: the requests before it come first. So "
            f"{right:g}.",
        )
        expect(False, f"{here} A seat that is free serves a request at once, so {right:g}.")


# --- 16.5 -------------------------------------------------------------------------------------------------------------

KEYS = (b"fox-5f2d9c77a1b", b"bear-0b6e41d2c9", b"lily-93ac27d0fe1")


@exercise("16.5", "Keys that tell nothing")
def _(given: Given) -> str:
    is_allowed = given["is_allowed"]
    keys = list(KEYS)
    for key in KEYS:
        _answer(is_allowed, key, keys, True, "It is one of the keys.")
        _answer(is_allowed, key[:-1], keys, False, "It is only the beginning of a key.")
        _answer(is_allowed, key + b"0", keys, False, "A key is only its beginning.")
        _answer(is_allowed, key[:-1] + b"#", keys, False, "Its last character differs.")
        _answer(is_allowed, b"#" + key[1:], keys, False, "Its first character differs.")
        _answer(is_allowed, bytes(reversed(key)), keys, False, "The order of the characters counts.")
        _answer(is_allowed, key, [each for each in keys if each != key], False, "It is a key of another list.")
    _answer(is_allowed, b"", keys, False, "It is empty.")
    _answer(is_allowed, KEYS[0], [], False, "There are no keys, so none is right.")
    expect(keys == list(KEYS), "You changed the list of keys.")
    _about_equality(is_allowed)
    _about_steps(is_allowed)
    return "the answers are right, and no step more or less tells where a key differs"


def _answer(is_allowed: Callable[..., Any], given: bytes, keys: list[bytes], want: bool, why: str) -> None:
    got = is_allowed(given, keys)
    expect(
        isinstance(got, bool | np.bool_) and bool(got) == want,
        f"is_allowed({given!r}, {keys}) is {got!r}, and should be {want}. {why}",
    )


class _Watched(bytes):
    """Bytes that notice `==` and `in`, which stop at the first difference."""

    used = False
    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        _Watched.used = True
        return bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        _Watched.used = True
        return bytes.__ne__(self, other)

    def startswith(self, *arguments: Any) -> bool:
        _Watched.used = True
        return bytes.startswith(self, *arguments)


def _about_equality(is_allowed: Callable[..., Any]) -> None:
    _Watched.used = False
    is_allowed(_Watched(KEYS[1]), [_Watched(key) for key in KEYS])
    expect(
        not _Watched.used,
        "`==` and `in` stop at the first byte that differs, so the time of a refusal says how many bytes were right. An "
        "attacker could find a key byte by byte. Look at all bytes, or use `hmac.compare_digest`.",
    )


def _about_steps(is_allowed: Callable[..., Any]) -> None:
    """As many lines run wherever a key differs, and whichever key is right."""
    key = KEYS[1]
    steps = {at: _lines(is_allowed, key[:at] + b"#" + key[at + 1 :]) for at in range(len(key))}
    fewest, most = min(steps, key=lambda at: steps[at]), max(steps, key=lambda at: steps[at])
    expect(
        steps[fewest] == steps[most],
        f"Your code runs {steps[fewest]} lines for a key whose byte {fewest} is wrong, and {steps[most]} where byte {most} "
        "is. So the time says how many bytes were right. Look at all bytes in any case.",
    )
    same_size = [bytes(14), *(key[:14].ljust(14, b"0") for key in KEYS)]
    keys = [each[:14].ljust(14, b"0") for each in KEYS]
    counts = [_lines(is_allowed, each, keys) for each in same_size]
    expect(
        len(set(counts)) == 1,
        f"Your code runs {counts[0]} lines where no key is right, and {counts[1:]} for the first, the second and the third "
        "key. So the time says which it was. Compare with all keys, even after one that is right.",
    )


def _lines(is_allowed: Callable[..., Any], given: bytes, keys: Sequence[bytes] = KEYS) -> int:
    """How many lines of Python it runs, in the student's code and in what that calls."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return note

    keys, before = list(keys), sys.gettrace()
    sys.settrace(note)
    try:
        is_allowed(given, keys)
    finally:
        sys.settrace(before)
    return count
