"""batch_limit: rate of arrivals and most requests that run at a time → how long requests wait, and how long they take."""

from collections import deque
from dataclasses import dataclass
from functools import cache
from math import ceil
from random import Random

from nanoinfer.cluster.simulate.distributions import Around, Arrivals
from nanoinfer.frontends.llm import LLM
from notebooks.course.explore import Control, Explorable, Frame, Lines, Mark, Number, Numbers, Series
from notebooks.course.replicas import COSTS

RATES = (1, 2, 3, 4, 6, 8, 10)  # requests per second
LIMITS = (1, 2, 4, 8, 16, 32)
SECONDS, WARM_UP = 300.0, 20.0  # of arrivals; those of the first ones are not counted
PROMPT, ANSWER = Around(50, 0.5), Around(40, 0.5)  # tokens
ENOUGH = 0.97  # the share of the arrivals that a server which is not overloaded has served when the last one comes
X_RANGE, Y_RANGE = (0.0, 10.5), (0.2, 1500.0)


@dataclass
class Arrived:
    """A request that came at `at` seconds: tokens of its prompt, and how many of its answer are `left`. `first_at`: when it
    had its first one."""

    at: float
    prompt: int
    answer: int
    left: int
    first_at: float = 0.0


@dataclass(frozen=True)
class Load:
    """One run. Seconds of each measured request, rising: to its `first` token, to its `last`, and `between` two tokens (the
    mean of the request). `utilisation`: the share of the time in which passes are made. `served`: requests per second that
    have ended while others arrived."""

    first: tuple[float, ...]
    last: tuple[float, ...]
    between: tuple[float, ...]
    utilisation: float
    served: float

    @property
    def is_too_much(self) -> bool:
        """Whether more arrives than can be served."""
        return self.served < ENOUGH * self.arrived

    @property
    def arrived(self) -> float:
        """Requests per second."""
        return len(self.last) / (SECONDS - WARM_UP)


@cache
def load_of(rate: float, limit: int) -> Load:
    """Requests that arrive at random, `rate` per second, for SECONDS, until all have ended; at most `limit` run at a time.
    As in the engine, new prompts come first, all in one pass; when there are none, all that run get one token more.

    The same requests whatever the limit, and whatever the rate in the same order.
    """
    rng, waiting = Random(16), deque[Arrived]()
    for at in Arrivals(rate).times(Random(61), SECONDS):
        prompt, answer = PROMPT.draw(rng), ANSWER.draw(rng)
        waiting.append(Arrived(at, prompt, answer, answer))
    now, busy, served = 0.0, 0.0, 0
    running, spans = list[Arrived](), list[tuple[float, float, int]]()
    while waiting or running:
        if not running:
            now = max(now, waiting[0].at)
        in_pass = list[Arrived]()
        while waiting and waiting[0].at <= now and len(running) + len(in_pass) < limit:
            in_pass.append(waiting.popleft())
        if in_pass:
            running += in_pass
            took = COSTS.extend_seconds(len(in_pass), sum(each.prompt for each in in_pass), pairs=0)
        else:
            in_pass = running
            took = COSTS.decode_seconds(len(running), context_tokens=0)  # which cost nothing, as pairs do
        now += took
        for each in in_pass:
            each.left -= 1
            each.first_at = each.first_at or now
            if not each.left and each.at >= WARM_UP:
                spans.append((each.first_at - each.at, now - each.at, each.answer - 1))
        if now < SECONDS:
            busy += took
            served += sum(not each.left for each in in_pass)
        running = [each for each in running if each.left]
    return Load(
        tuple(sorted(first for first, _, _ in spans)),
        tuple(sorted(last for _, last, _ in spans)),
        tuple(sorted((last - first) / more for first, last, more in spans)),
        busy / SECONDS,
        served / SECONDS,
    )


def percentile(values: tuple[float, ...], percent: float) -> float:
    """Of rising `values`, the one that so many percent do not exceed."""
    return values[ceil(len(values) * percent / 100) - 1]


def batch_limit(llm: LLM | None = None) -> Explorable:
    """Every rate and limit. (`llm` is not needed: passes take as long as a cost model says.)"""
    frames = {(r, i): _frame(rate, limit) for r, rate in enumerate(RATES) for i, limit in enumerate(LIMITS)}
    return Explorable(
        "How many requests should run at a time?",
        f"Requests arrive at random, with about {PROMPT.mean:g} tokens each and {ANSWER.mean:g} tokens of answer. A pass "
        f"takes {1000 * COSTS.seconds_per_pass:g} ms, and {1000 * COSTS.seconds_per_prompt_token:g} ms more per prompt "
        f"token or {1000 * COSTS.seconds_per_decode_row:g} ms more per request that decodes. Raise the rate until p99 "
        "leaves the floor of the picture. Then raise the limit, and look at what each token takes.",
        [
            Control("rate", "requests that arrive per second", list(RATES), start=3),
            Control("limit", "most requests that run at a time (max_running_requests)", list(LIMITS), start=2),
        ],
        frames,
        height=1176,
        source=f"Simulated in Python by nanoinfer.cluster.simulate, {SECONDS:g} seconds of arrivals for each of "
        f"{len(frames)} settings; not measured.",
    )


def _frame(rate: int, limit: int) -> Frame:
    chosen = load_of(rate, limit)
    curves = {
        percent: [(float(each), _rounded(percentile(load_of(each, limit).last, percent))) for each in RATES]
        for percent in (99, 50)
    }
    marks = [
        Mark(
            rate,
            _rounded(percentile(chosen.last, percent)),
            f"p{percent}: {seconds(percentile(chosen.last, percent))}",
            i,
        )
        for i, percent in enumerate(curves)
    ]
    panels = [
        Lines(
            f"From arrival to the last token, if at most {limit} run at a time",
            "requests that arrive per second",
            "seconds",
            [
                Series(f"p{percent}", points, label_at=None, colour=i)
                for i, (percent, points) in enumerate(curves.items())
            ],
            X_RANGE,
            Y_RANGE,
            marks,
            log_y=True,
        ),
        Numbers(
            f"{rate} per second, and a limit of …: to the first token (p50, p99); per further token (p50)",
            [Number(f"{each} at a time", _line(load_of(rate, each)), strong=each == limit) for each in LIMITS],
        ),
    ]
    return Frame(panels, _sentence(rate, limit))


def _line(load: Load) -> str:
    first = f"{seconds(percentile(load.first, 50))}, {seconds(percentile(load.first, 99))}"
    return f"{first}; {1000 * percentile(load.between, 50):.1f} ms{' (too much)' if load.is_too_much else ''}"


def _sentence(rate: int, limit: int) -> str:
    load = load_of(rate, limit)
    said = f"At {rate} per second, with at most {limit} at a time, passes are made for {load.utilisation:.0%} of the time. "
    if load.is_too_much:
        said += (
            f"More arrives than can be served ({load.served:.1f} per second): the queue grows as long as this lasts. "
        )
        enough = next((each for each in LIMITS if each > limit and not load_of(rate, each).is_too_much), None)
        return said + (
            f"With {enough} at a time, more requests share each pass, and there is no such queue."
            if enough
            else "No limit here helps: some must be refused."
        )
    p50, p99 = (percentile(load.last, percent) for percent in (50, 99))
    said += (
        f"Half of the requests have their last token after {seconds(p50)}, and one in a hundred takes {seconds(p99)}. "
    )
    alone = 1000 * percentile(load_of(RATES[0], 1).between, 50)
    token = 1000 * percentile(load.between, 50)
    if token > 1.5 * alone:
        return (
            said
            + f"Few wait to begin, but each token takes {token:.0f} ms instead of {alone:.1f}: many share each pass."
        )
    if percentile(load.first, 99) > 1:
        return said + "What takes long is the wait for the first token: the limit is reached."
    return said + "Hardly any waits."


def seconds(value: float) -> str:
    """In words, with two or three digits."""
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
