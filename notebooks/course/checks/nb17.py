"""Checks of notebook 17: chained hashes, the heads of a process, a routing policy, a burst that it loses to, and the memory
that mends it."""

import math
import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from nanoinfer.cache.block_events import chained_hashes
from notebooks.course.checks.nb17_cluster import STORY, Arrival, Seen, by_story, least_loaded, simulate, weighed
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, a_kind, expect
from notebooks.course.tables import Mistake, Wrong, compare, expect_refused


def _chain(tokens: list[int], size: int, namespace: int, wrong: Wrong = ()) -> list[int]:
    width, order = 4 if "narrow" in wrong else 8, "big" if "big" in wrong else "little"
    found, parent = list[int](), 0 if "from_0" in wrong else namespace
    for at in range(0, len(tokens) - (0 if "rest" in wrong else size - 1), size):
        data = b"".join(token.to_bytes(width, order) for token in tokens[at : at + size])  # type: ignore[arg-type]
        data = (parent if "single" not in wrong or not at else namespace).to_bytes(8, order) + data  # type: ignore[arg-type]
        parent = int.from_bytes(blake2b(data, digest_size=8).digest(), order)  # type: ignore[arg-type]
        found.append(parent)
    return found


@exercise("17.1", "A chain of hashes", points=2)
def _(given: Given) -> str:
    rng = random.Random(171)
    cases = [([7, 8, 9, 10], 4, 0), ([7, 8, 9, 10] * 2, 4, 5), ([1, 2, 3], 4, 0), ([], 4, 0), ([1, 2, 3, 4, 5], 4, 3)]
    for _ in range(60):
        tokens = [rng.randrange(2048) for _ in range(rng.randrange(40))]
        cases.append((tokens, rng.choice((1, 2, 4, 16)), rng.randrange(2**64)))
    mistakes: dict[str, Mistake] = {
        "The first block's data begin with the namespace, not 0.": "from_0",
        "Your second hash doesn't depend on the first block. Then equal words after different beginnings would have equal "
        "hashes, and a router would send requests to K/V that doesn't fit. Begin its data with the hash before.": "single",
        "The bytes are in big-endian order; all of them are `little`.": "big",
        "Each token has 8 bytes, and not 4.": "narrow",
        "Only complete blocks have a hash; tokens that are left over at the end have none.": "rest",
    }

    def right(tokens: list[int], size: int, namespace: int, wrong: Wrong = ()) -> list[int]:
        if wrong:
            return _chain(tokens, size, namespace, wrong)
        return chained_hashes(np.array(tokens, dtype=np.int64), size, namespace)

    hint = "a list: for each complete block a hash of 64 bits, of the hash before (first the namespace) and its tokens"
    compare(given["hashes_of"], right, cases, mistakes, hint=hint)
    return "65 prompts, in blocks of 1 to 16 tokens"


@exercise("17.5", "The heads of a process")
def _(given: Given) -> str:
    heads_of, cases = given["heads_of"], []
    for query_heads, kv_heads in ((8, 8), (8, 2), (8, 1), (4, 2), (12, 4), (32, 8), (6, 3), (6, 2), (1, 1)):
        for parts in range(1, query_heads + 1):
            if query_heads % parts == 0:
                cases += [(part, parts, query_heads, kv_heads) for part in range(parts)]
                continue
            why = f"{query_heads} query heads can't be divided over {parts} processes."
            call = lambda args=(0, parts, query_heads, kv_heads): heads_of(*args)  # noqa: E731
            expect_refused(call, (parts, query_heads), why)
    mistakes: dict[str, Mistake] = {
        "Its query heads are neighbours, so that they use few K/V heads.": "apart",
        "List a K/V head once, however many query heads use it.": "repeated",
        "It needs only the K/V heads of its own query heads; others would only take memory.": "every",
    }
    hint = "two lists: its query heads, which are neighbours, and the K/V heads that they use, sorted. With fewer of these "
    hint += "than processes, several processes have the same one"
    compare(heads_of, _heads, cases, mistakes, hint=hint)
    return f"{len(cases)} processes, with K/V heads divided and with K/V heads in several processes"


def _heads(part: int, parts: int, query_heads: int, kv_heads: int, wrong: Wrong = ()) -> tuple[list[int], list[int]]:
    each, group = query_heads // parts, query_heads // kv_heads
    mine = list(range(part, query_heads, parts) if "apart" in wrong else range(part * each, (part + 1) * each))
    used = [head // group for head in (range(query_heads) if "every" in wrong else mine)]
    return mine, used if "repeated" in wrong else sorted(set(used))


# tokens, (cached, queued, requests) of each replica, the right one, and why
CASES = [
    (272, [(0, 0, 0), (256, 0, 0), (0, 0, 0)], 1, "It has the whole story, and all are idle."),
    (272, [(64, 0, 0), (0, 0, 0), (128, 0, 0)], 2, "It has the most of this prompt, and all are idle."),
    (272, [(0, 900, 4), (0, 300, 4), (0, 600, 4)], 1, "Nothing is cached, and it has the fewest tokens ahead."),
    (272, [(0, 0, 0), (256, 5000, 20), (0, 0, 0)], 0, "It would compute 272 tokens; the other has 5,000 ahead."),
    (272, [(256, 100, 1), (0, 0, 0), (0, 0, 0)], 0, "Waiting for 100 tokens is quicker than computing 256."),
    (272, [(16, 600, 3), (0, 0, 0), (0, 50, 1)], 1, "One block more isn't worth waiting for 600 tokens."),
    (272, [(0, 20, 9), (0, 2000, 1), (0, 2000, 2)], 0, "Nine computed requests are a shorter wait than 2,000 tokens."),
    (272, [(256, 0, 3), (256, 0, 0), (256, 0, 8)], 1, "All have the story, and it has the fewest requests."),
    (40, [(0, 0, 0), (32, 300, 1), (0, 0, 0)], 0, "For a short prompt, no match is worth waiting for 300 tokens."),
]


@exercise("17.2", "Beat least loaded", points=3)
def _(given: Given) -> str:
    best = given["best"]
    for tokens, states, right, why in CASES:
        for turned in range(3):  # the place in the list must not matter
            places = [(i + turned) % 3 for i in range(3)]
            views = [Seen("ABC"[at], *states[place]) for at, place in enumerate(places)]
            chosen, wanted = _chosen(best, tokens, views), views[places.index(right)]
            had = "; ".join(f"{v.name}: cached={v.cached}, queued={v.queued}, requests={v.requests}" for v in views)
            said = f"A prompt of {tokens} tokens, {had}. You choose {chosen.name}, but {wanted.name} is the best. {why}"
            expect(states[places[views.index(chosen)]] == states[right], said)
    ratios = []
    for name, traffic, most in (
        ("Twelve stories", _many(1, 12, 18), 0.7),
        ("A single story", _many(3, 1, 40), 1.1),
        ("No story twice", [Arrival(each.at, i, each.own) for i, each in enumerate(_many(4, 1, 7))], 1.1),
    ):
        mine = simulate(traffic, lambda arrival, views: _chosen(best, STORY + arrival.own, views))
        ratios.append(mine.mean / simulate(traffic, least_loaded).mean)
        took = f"{name}, {len(traffic)} requests: the first token takes {ratios[-1]:.2f} × as long as with least loaded"
        expect(ratios[-1] <= most, f"{took}; it must be at most {most} ×.")
    return "the time to the first token is " + ", ".join(f"{ratio:.2f}" for ratio in ratios) + " × that of least loaded"


def _chosen(best: Callable[..., Any], tokens: int, views: Sequence[Seen]) -> Seen:
    """The view that the student's `best` returns."""
    kept = [Seen(v.name, v.cached, v.queued, v.requests) for v in views]
    got = best(tokens, list(views))
    expect(list(views) == kept, "You changed a view. `best` only chooses; the router does the counting.")
    for view in views:
        if got is view:
            return view
    raise Hint(f"Return one of the views that you are given, not {a_kind(got)}.")


def _many(seed: int, stories: int, rate: float) -> list[Arrival]:
    """120 requests for `stories` stories that arrive at random, `rate` per second."""
    rng, now, found = random.Random(seed), 0.0, []
    for _ in range(120):
        now += rng.expovariate(rate)
        found.append(Arrival(now, rng.randrange(stories), 16))
    return found


MOST, TIMES = 24, 1.5


@exercise("17.3", "Lose to a burst", points=2)
def _(given: Given) -> str:
    got = given["losing_burst"]()
    expect(isinstance(got, list) and 0 < len(got) <= MOST, f"Return a list of 1 to {MOST} pairs (seconds, story).")
    arrivals, before = [], 0.0
    for i, (at, story) in enumerate(got):
        is_time = isinstance(at, int | float) and math.isfinite(at) and at >= before
        expect(is_time, f"Request {i} arrives at {at!r}: must be seconds, and not before the request before it.")
        is_story = isinstance(story, int) and story >= 0
        expect(is_story, f"Request {i} is for story {story!r}: must be a whole number, at least 0.")
        arrivals.append(Arrival(float(at), story))
        before = at
    lost, could = simulate(arrivals, weighed), simulate(arrivals, by_story)
    ratio, stories = lost.mean / could.mean, len({each.story for each in arrivals})
    facts = (
        f"The first token takes {ratio:.2f} × as long as if each story had its replica, and it must be at least {TIMES} ×. "
        f"({lost.computed} tokens are computed for {stories} stories of {STORY}.)"
    )
    expect(ratio >= TIMES or stories < len(arrivals), f"{facts} No story comes twice, so no router could do better.")
    once = "Each story is computed once: when it comes again, the router has heard of it, or goes there by accident."
    expect(ratio >= TIMES or lost.computed > STORY * stories, f"{facts} {once} Let it come earlier, in another order.")
    single = "With a single story, three replicas compute it side by side, and nothing waits for it."
    expect(ratio >= TIMES or stories > 1, f"{facts} {single} What if there are several?")
    expect(ratio >= TIMES, f"{facts} How many replicas compute each story? And what do the others wait for meanwhile?")
    return f"{ratio:.1f} × the time, and {lost.computed} tokens computed for {stories} stories of {STORY}"


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

    def size(self) -> int:
        return len(self.sent_at)


# What is done, and why the answer of the last, which is `matched`, is what it is.
A, B, NONE = "A", "B", set[int]()
SENT = ("sent", A, [1, 2], 0.0)
PLAYS: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("Nothing was sent.", [("matched", A, [1, 2], NONE, 0.0)]),
    ("The index knows two of them.", [("matched", A, [1, 2, 3], {1, 2}, 0.0)]),
    ("They were sent half a second ago.", [SENT, ("matched", A, [1, 2, 3], NONE, 0.5)]),
    ("They were sent to A, and B doesn't have them.", [SENT, ("matched", B, [1, 2], NONE, 0.5)]),
    ("Exactly `seconds` ago still counts.", [SENT, ("matched", A, [1, 2], NONE, 1.0)]),
    ("They were sent too long ago.", [SENT, ("matched", A, [1, 2], NONE, 1.125)]),
    ("The index knows them, however old they are.", [SENT, ("matched", A, [1, 2], {1, 2}, 9.0)]),
    ("Block 2 is missing: what comes after it is of no use.", [("matched", A, [1, 2, 3], {1, 3}, 0.0)]),
    ("The first is in the index, the others were sent.", [SENT, ("matched", A, [1, 2, 4], {1}, 0.5)]),
    ("Each block counts by itself, in the prompt's order.", [SENT, ("matched", A, [2, 1], {2}, 0.5)]),
    ("It was sent again at 0.875.", [SENT, ("sent", A, [1], 0.875), ("matched", A, [1], NONE, 1.5)]),
    ("A has died, and with it what it had.", [SENT, ("died", A), ("matched", A, [1], NONE, 0.5)]),
    ("Only A has died; B is there.", [SENT, ("sent", B, [1], 0.0), ("died", A), ("matched", B, [1], NONE, 0.5)]),
]


@exercise("17.4", "Mend it", points=3)
def _(given: Given) -> str:
    kind = given["Memory"]
    for why, play in PLAYS:
        _play(kind, play, why)
    rng = random.Random(174)
    for _ in range(40):
        now, play = 0.0, list[tuple[Any, ...]]()
        for _ in range(25):
            now += rng.choice((0, 0, 1, 1, 2, 5)) / 8
            replica, start = rng.choice("AB"), rng.randrange(4)
            hashes, what = list(range(start, start + rng.randrange(1, 5))), rng.random()
            held = {block for block in range(8) if rng.random() < 0.3}
            sent, asked = ("sent", replica, hashes, now), ("matched", replica, hashes, held, now)
            play.append(sent if what < 0.5 else ("died", replica) if what < 0.55 else asked)
        _play(kind, play, "")
    memory, right = kind(1.0), _Memory(1.0)
    for each in (memory, right):
        for i in range(200):
            each.sent("A", [10 * i + j for j in range(10)], i / 4)
        each.sent("A", [1], 49.75)
    months = "A router runs for months: forget what is too old."
    expect(memory.size() == right.size(), f"size() is {memory.size()!r}, and must be {right.size()}. {months}")
    memory = kind(1.0)
    for hashes, now in (([1, 2], 0.0), ([3], 0.5), ([1], 0.75), ([4], 1.5)):
        memory.sent("A", hashes, now)
    again = f"Block 1 was sent again, so only block 2 is too old in the end. size() is {memory.size()}, not 3."
    expect(memory.size() == 3, again)
    return "53 plays, and the memory stays small"


def _play(kind: Callable[..., Any], play: Sequence[tuple[Any, ...]], why: str) -> None:
    memory, right, told = kind(1.0), _Memory(1.0), list[str]()
    for what, *arguments in play:
        want, got = getattr(right, what)(*arguments), getattr(memory, what)(*arguments)
        told.append(f"{what}({', '.join(map(repr, arguments))})")
        said = f"Memory(1), {', '.join(told[-4:])}: the last is {got!r}, and should be {want}. {why}"
        expect(what != "matched" or (got == want and isinstance(got, int)), said)
