"""Checks of notebook 16: a token bucket, and a queue that serves several at once."""

import math
import random

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal
from notebooks.course.tables import Mistake, Wrong, compare, expect_refused


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


@exercise("16.1", "A token bucket", points=2)
def _(given: Given) -> str:
    kind, rng = given["Bucket"], random.Random(163)
    plays: list[tuple[float, float, list[tuple[float, float]]]] = [
        (2.0, 8.0, [(0, 3), (0, 5), (0, 1), (0.25, 1), (0.5, 1), (0.5, 1), (100, 8), (100, 0.5)]),
        (1.0, 4.0, [(0, 4), (0, 4), (1, 4), (2, 4), (3.5, 4), (4, 4)]),
        (0.5, 2.0, [(0, 2), (0, 2), (1, 2), (2, 2), (4, 2)]),
    ]
    for _ in range(60):
        rate, burst, now, calls = rng.choice((0.25, 0.5, 1.0, 2.0, 8.0)), float(rng.randrange(1, 17)), 0.0, []
        for _ in range(30):
            now += rng.choice((0, 0, 1, 1, 2, 5, 40)) / 8
            calls.append((now, rng.randrange(1, int(8 * burst) + 1) / 8))
        plays.append((rate, burst, calls))
    for rate, burst, calls in plays:
        mine, right = kind(rate, burst), _Bucket(rate, burst)
        for i, (now, cost) in enumerate(calls):
            want, got = right.admit(now, cost), mine.admit(now, cost)
            there = right.level + (cost if want is None else 0)
            said = (
                f"rate={rate:g}, burst={burst:g}, after {calls[max(0, i - 3) : i]}: admit(now={now:g}, cost={cost:g}). "
            )
            said += f"There are {there:g} tokens"
            if want is None:
                enough = (
                    "Exactly enough is enough; a request that is refused takes nothing, and time goes on in any case"
                )
                expect(got is None, f"{said}, so it is admitted: return None, not {got!r}. {enough}.")
                continue
            burst_only = "The bucket never has more than `burst` tokens, and what was admitted before has taken some"
            expect(got is not None, f"{said}, so it must be refused, but you admit it. {burst_only}.")
            whole = (
                "Round up: a whole number of seconds (int), after which there is enough; Retry-After has no fractions."
            )
            expect_equal(got, want, f"{said}, and {cost - there:g} are missing. {whole}")
            expect(isinstance(got, int), f"{said}. {whole}")
    bucket = kind(1.0, 4.0)
    why = "cost=5 with burst=4 can never be admitted, however long it waits."
    expect_refused(lambda: bucket.admit(0.0, 5.0), (5, 4), why)
    expect(bucket.admit(0.0, 4.0) is None, "A request that was refused with a ValueError must not have taken anything.")
    return "63 buckets, about 1,800 requests"


@exercise("16.2", "A queue that serves several at once", points=2)
def _(given: Given) -> str:
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
    mistakes: dict[str, Mistake] = {
        "That is how long a request waits; the time until its end is wanted.": "waiting",
        "That is when a request ends; count from its arrival.": "from_0",
        "It can't begin before it arrives, even if nothing else runs.": "never_idle",
        "It follows the running request that ends first. You let it follow them in turn.": "in_turn",
        "At most `max_running` run at a time: the requests before it come first.": (
            lambda arrivals, services, max_running: list(services)
        ),
        "Several may run at a time, and you let one run.": lambda arrivals, services, max_running: _times(
            arrivals, services, 1
        ),
    }
    hint = "the time of each request from its arrival to its end"
    compare(lambda *queue: list(map(float, given["times_of"](*queue))), _times, cases, mistakes, hint=hint)
    return "48 queues, with 1 to 8 running requests"


def _times(arrivals: list[float], services: list[float], max_running: int, wrong: Wrong = ()) -> list[float]:
    free_at, times = [0.0] * max_running, list[float]()
    for i, (arrival, service) in enumerate(zip(arrivals, services, strict=True)):
        after = i % max_running if "in_turn" in wrong else free_at.index(min(free_at))
        free_at[after] = free_at[after] + service if "never_idle" in wrong else max(arrival, free_at[after]) + service
        times.append(free_at[after] - arrival * ("from_0" not in wrong) - service * ("waiting" in wrong))
    return times
