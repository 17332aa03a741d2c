"""More checks of notebook 17: a routing policy, a burst that it loses to, and the memory that mends it."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from notebooks.course.checks.nb17_cluster import (
    PASS,
    STORY,
    Arrival,
    Seen,
    by_story,
    least_loaded,
    simulate,
    weighed,
)
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, a_kind, expect

# --- 17.2 -------------------------------------------------------------------------------------------------------------

# tokens, (cached, queued, requests) of each replica, the right one, and why
CASES = [
    (272, [(0, 0, 0), (256, 0, 0), (0, 0, 0)], 1, "It has the whole story, and all are idle."),
    (272, [(64, 0, 0), (0, 0, 0), (128, 0, 0)], 2, "It has the most of this prompt, and all are idle."),
    (272, [(0, 900, 4), (0, 300, 4), (0, 600, 4)], 1, "Nothing is cached anywhere, and it has the fewest tokens ahead."),
    (272, [(0, 0, 0), (256, 5000, 20), (0, 0, 0)], 0, "It would compute 272 tokens, but the other one has 5,000 ahead."),
    (272, [(256, 100, 1), (0, 0, 0), (0, 0, 0)], 0, "Waiting for 100 tokens is quicker than computing 256."),
    (272, [(16, 600, 3), (0, 0, 0), (0, 50, 1)], 1, "One block more isn't worth waiting for 600 tokens."),
    (272, [(0, 20, 9), (0, 2000, 1), (0, 2000, 2)], 0,
     "Nine requests that are computed already are less to wait for than 2,000 tokens."),
    (272, [(256, 0, 3), (256, 0, 0), (256, 0, 8)], 1, "All have the story, and it has the fewest requests."),
    (40, [(0, 0, 0), (32, 300, 1), (0, 0, 0)], 0, "For a short prompt, no match is worth waiting for 300 tokens."),
]  # fmt: skip


@exercise("17.2", "Beat least loaded", points=3)
def _(given: Given) -> str:
    best = given["best"]
    for tokens, states, right, why in CASES:
        for turned in range(3):  # the place in the list must not matter
            places = [(i + turned) % 3 for i in range(3)]
            views = [Seen("ABC"[at], *states[place]) for at, place in enumerate(places)]
            chosen = _chosen(best, tokens, views)
            at = places.index(right)
            same = states[places[chosen]] == states[right]
            expect(
                same,
                f"A prompt of {tokens} tokens, and {_said(views)}. You choose {views[chosen].name}, but {views[at].name} "
                f"is the best. {why}",
            )
    ratios = []
    for name, traffic, most in (
        ("Twelve stories", _many(1, 12, 18), 0.7),
        ("A single story", _many(3, 1, 40), 1.1),
        ("No story twice", _different(_many(4, 1, 7)), 1.1),
    ):
        mine = simulate(traffic, lambda arrival, views: views[_chosen(best, STORY + arrival.own, views)])
        theirs = simulate(traffic, least_loaded)
        ratios.append(mine.mean / theirs.mean)
        expect(
            ratios[-1] <= most,
            f"{name}, {len(traffic)} requests: the first token takes {mine.mean:.3f} s on average, and {theirs.mean:.3f} s "
            f"with least loaded. That is {ratios[-1]:.2f} ×; it must be at most {most} ×.",
        )
    return "the time to the first token is " + ", ".join(f"{ratio:.2f}" for ratio in ratios) + " × that of least loaded"


def _said(views: Sequence[Seen]) -> str:
    return "; ".join(f"{v.name} has cached={v.cached}, queued={v.queued}, requests={v.requests}" for v in views)


def _chosen(best: Callable[..., Any], tokens: int, views: Sequence[Seen]) -> int:
    """The index of the view that the student's `best` returns."""
    kept = [Seen(v.name, v.cached, v.queued, v.requests) for v in views]
    got = best(tokens, list(views))
    expect(list(views) == kept, "You changed a view. `best` only chooses; the router does the counting.")
    for i, view in enumerate(views):
        if got is view:
            return i
    raise Hint(f"Return one of the views that you are given, not {a_kind(got)}.")


def _many(seed: int, stories: int, rate: float) -> list[Arrival]:
    """120 requests for `stories` stories that arrive at random, `rate` per second."""
    rng, now, found = random.Random(seed), 0.0, []
    for _ in range(120):
        now += rng.expovariate(rate)
        found.append(Arrival(now, rng.randrange(stories), 16))
    return found


def _different(arrivals: Sequence[Arrival]) -> list[Arrival]:
    return [Arrival(each.at, i, each.own) for i, each in enumerate(arrivals)]


# --- 17.3 -------------------------------------------------------------------------------------------------------------

MOST, TIMES = 24, 1.5


@exercise("17.3", "Lose to a burst", points=2)
def _(given: Given) -> str:
    got = given["losing_burst"]()
    expect(
        isinstance(got, list) and got,
        f"Return a list of pairs (seconds, story), not {a_kind(got)}, and not an empty one.",
    )
    expect(len(got) <= MOST, f"At most {MOST} requests; you have {len(got)}.")
    arrivals, before = [], 0.0
    for i, pair in enumerate(got):
        expect(isinstance(pair, tuple | list) and len(pair) == 2, f"Request {i} is {pair!r}: must be (seconds, story).")
        at, story = pair
        is_time = isinstance(at, int | float) and not isinstance(at, bool) and math.isfinite(at) and at >= before
        expect(
            is_time, f"Request {i} arrives at {at!r}: must be a number of seconds, not before the request before it."
        )
        is_story = isinstance(story, int) and not isinstance(story, bool) and story >= 0
        expect(is_story, f"Request {i} is for story {story!r}: must be a whole number, at least 0.")
        arrivals.append(Arrival(float(at), story))
        before = at
    lost, could = simulate(arrivals, weighed), simulate(arrivals, by_story)
    ratio, stories = lost.mean / could.mean, len({each.story for each in arrivals})
    facts = (
        f"The first token takes {lost.mean:.2f} s on average, and {could.mean:.2f} s if each story has its replica. That "
        f"is {ratio:.2f} ×, and must be at least {TIMES} ×. ({lost.computed} tokens are computed for {stories} stories of "
        f"{STORY}.)"
    )
    if ratio < TIMES and lost.computed == STORY * stories:
        last = arrivals[-1].at - arrivals[0].at
        if stories == len(arrivals):
            expect(False, f"{facts} No story comes twice, so no router could do better.")
        expect(
            last < STORY * 0.001 + PASS,
            f"{facts} Each story is computed once: when it comes again, the router has heard of it. Let it come earlier.",
        )
        expect(False, f"{facts} Each story goes to the same replica each time, by accident: all are equally busy in turn. "
               "Change the order.")  # fmt: skip
    expect(
        ratio >= TIMES or stories > 1,
        f"{facts} With a single story, three replicas compute it side by side, and nothing waits for it. What if there are "
        "several?",
    )
    expect(ratio >= TIMES, f"{facts} How many replicas compute each story? And what do the others wait for meanwhile?")
    return f"{ratio:.1f} × the time, and {lost.computed} tokens computed for {stories} stories of {STORY}"


# --- 17.4 -------------------------------------------------------------------------------------------------------------


class _Memory:
    """What is right."""

    def __init__(self, seconds: float):
        self.seconds, self.sent_at = seconds, dict[tuple[str, int], float]()

    def sent(self, replica: str, hashes: Sequence[int], now: float) -> None:
        self.sent_at = {key: at for key, at in self.sent_at.items() if now - at <= self.seconds}
        self.sent_at |= {(replica, block): now for block in hashes}

    def matched(self, replica: str, hashes: Sequence[int], held: set[int], now: float) -> int:
        for i, block in enumerate(hashes):
            if block not in held and now - self.sent_at.get((replica, block), -math.inf) > self.seconds:
                return i
        return len(hashes)

    def died(self, replica: str) -> None:
        self.sent_at = {key: at for key, at in self.sent_at.items() if key[0] != replica}


# What is done, and why the answer is what it is: ("sent", replica, hashes, now), ("died", replica), or
# ("matched", replica, hashes, held, now, right, why)
PLAYS: list[list[tuple[Any, ...]]] = [
    [("matched", "A", [1, 2], set(), 0.0, 0, "Nothing was sent.")],
    [("matched", "A", [1, 2, 3], {1, 2}, 0.0, 2, "The index knows two of them.")],
    [("sent", "A", [1, 2], 0.0), ("matched", "A", [1, 2, 3], set(), 0.5, 2, "They were sent half a second ago.")],
    [("sent", "A", [1, 2], 0.0), ("matched", "B", [1, 2], set(), 0.5, 0, "They were sent to A, and B doesn't have them.")],
    [("sent", "A", [1, 2], 0.0), ("matched", "A", [1, 2], set(), 1.0, 2, "Exactly `seconds` ago still counts.")],
    [("sent", "A", [1, 2], 0.0), ("matched", "A", [1, 2], set(), 1.125, 0, "They were sent too long ago.")],
    [("sent", "A", [1, 2], 0.0), ("matched", "A", [1, 2], {1, 2}, 9.0, 2, "The index knows them, however old they are.")],
    [("sent", "A", [3], 0.0), ("matched", "A", [1, 2, 3], {1}, 0.0, 1,
      "Block 2 is missing: what comes after it is of no use.")],
    [("sent", "A", [1, 2, 3], 0.0), ("matched", "A", [1, 2, 3, 4], {1}, 0.5, 3,
      "The first is in the index, the others were sent: both count together.")],
    [("sent", "A", [1, 2], 0.0), ("matched", "A", [2, 1], {2}, 0.5, 2,
      "Each block counts by itself, in the prompt's order.")],
    [("sent", "A", [1], 0.0), ("sent", "A", [1], 0.875), ("matched", "A", [1], set(), 1.5, 1,
      "It was sent again at 0.875.")],
    [("sent", "A", [1], 0.0), ("died", "A"), ("matched", "A", [1], set(), 0.5, 0, "A has died, and with it what it had.")],
    [("sent", "A", [1], 0.0), ("sent", "B", [1], 0.0), ("died", "A"), ("matched", "B", [1], set(), 0.5, 1,
      "Only A has died; B is still there.")],
]  # fmt: skip


@exercise("17.4", "Mend it", points=3)
def _(given: Given) -> str:
    kind = given["Memory"]
    for play in PLAYS:
        _play(kind, 1.0, play)
    _bounded(kind)
    rng = random.Random(174)
    for _ in range(40):
        right, now, play = _Memory(1.0), 0.0, list[tuple[Any, ...]]()
        for _ in range(25):
            now += rng.choice((0, 0, 1, 1, 2, 5)) / 8
            replica, start = rng.choice("AB"), rng.randrange(4)
            hashes, what = list(range(start, start + rng.randrange(1, 5))), rng.random()
            if what < 0.5:
                right.sent(replica, hashes, now)
                play.append(("sent", replica, hashes, now))
            elif what < 0.55:
                right.died(replica)
                play.append(("died", replica))
            else:
                held = {block for block in range(8) if rng.random() < 0.3}
                play.append(("matched", replica, hashes, held, now, right.matched(replica, hashes, held, now), ""))
        _play(kind, 1.0, play)
    return "53 plays, and the memory stays small"


def _play(kind: Callable[..., Any], seconds: float, play: Sequence[tuple[Any, ...]]) -> None:
    memory, told = kind(seconds), list[str]()
    for name in ("sent", "matched", "died", "size"):
        expect(
            callable(getattr(memory, name, None)),
            f"Memory({seconds:g}) is {a_kind(memory)}, which has no method {name}(); keep the four that the stub has.",
        )
    for what, *arguments in play:
        if what != "matched":
            getattr(memory, what)(*arguments)
            told.append(f"{what}({', '.join(map(repr, arguments))})")
            continue
        *asked, right, why = arguments
        replica, hashes, held, now = asked
        got = memory.matched(replica, list(hashes), set(held), now)
        before = f"after {', '.join(told[-4:])}: " if told else ""
        expect(
            isinstance(got, int) and not isinstance(got, bool) and got == right,
            f"Memory({seconds:g}), {before}matched({replica!r}, {hashes}, held={held or '{}'}, now={now:g}) is {got!r}, "
            f"and should be {right}. {why}",
        )


def _bounded(kind: Callable[..., Any]) -> None:
    memory = kind(1.0)
    for i in range(200):
        memory.sent("A", [10 * i + j for j in range(10)], i / 4)
    size = memory.size()
    expect(
        isinstance(size, int) and size <= 50,
        "200 prompts of 10 blocks were sent, four per second, and the memory keeps one second. So at most 50 blocks are "
        f"young enough, but size() is {size!r}. A router runs for months: forget what is too old.",
    )
    expect(size == 50, f"50 blocks were sent in the last second, the one before included, but size() is {size!r}.")
    memory.sent("A", [1], 49.75)
    expect(memory.size() == 51, "Nothing has become too old, and one more was sent: there should be 51 entries, not "
           f"{memory.size()}.")  # fmt: skip
    memory = kind(1.0)
    memory.sent("A", [1, 2], 0.0)
    memory.sent("A", [3], 0.5)
    memory.sent("A", [1], 0.75)  # so the oldest entry is no longer that of block 1
    memory.sent("B", [4], 1.5)
    expect(
        memory.size() == 3,
        "Blocks 1 and 2 were sent to A at 0, 3 at 0.5, 1 again at 0.75, and 4 to B at 1.5. With one second, block 2 is too "
        f"old then, and the other three aren't. size() is {memory.size()}, not 3.",
    )
