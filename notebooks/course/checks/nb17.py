"""Checks of notebook 17: a routing policy, and a router's memory of what it has sent where."""

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nanoinfer.cluster import LeastLoaded
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, a_kind, expect
from notebooks.course.replicas import Informed, View, draw_chats, serve_chats

MOST = 0.7  # of the time with least loaded
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


@exercise("17.1", "Beat least loaded", points=3)
def _(given: Given) -> str:
    best = given["best"]
    for tokens, states, right, why in CASES:
        for turned in range(3):  # the place in the list must not matter
            places = [(i + turned) % 3 for i in range(3)]
            views = [View("ABC"[at], *states[place]) for at, place in enumerate(places)]
            chosen, wanted = _chosen(best, tokens, views), views[places.index(right)]
            had = "; ".join(f"{v.name}: cached={v.cached}, queued={v.queued}, requests={v.requests}" for v in views)
            said = f"A prompt of {tokens} tokens, {had}. You choose {chosen.name}, but {wanted.name} is the best. {why}"
            expect(states[places[views.index(chosen)]] == states[right], said)
    chance, best_of = random.Random(172), partial(_chosen, best)
    drawn = [[chance.randrange(2, 2000) for _ in range(size)] for size in (256,) * 12 + (16,) * 60]
    traffic = draw_chats(1, drawn[:12], [1] * 12, drawn[12:], count=60, turns=1, per_second=12, new_tokens=4)
    mine, others = (
        serve_chats(traffic, policy, max_total_tokens=4096).mean_ttft for policy in (Informed(best_of), LeastLoaded())
    )
    took = f"Twelve stories, 60 requests: the first token takes {mine / others:.2f} × as long as with least loaded"
    expect(mine <= MOST * others, f"{took}; it must be at most {MOST} ×.")
    return f"the time to the first token is {mine / others:.2f} × that of least loaded"


def _chosen(best: Callable[..., Any], tokens: int, views: Sequence[View]) -> View:
    """The view that the student's `best` returns."""
    kept = [View(v.name, v.cached, v.queued, v.requests) for v in views]
    got = best(tokens, list(views))
    expect(list(views) == kept, "You changed a view. `best` only chooses; the router does the counting.")
    for view in views:
        if got is view:
            return view
    raise Hint(f"Return one of the views that you are given, not {a_kind(got)}.")


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


@exercise("17.2", "Mend the herd", points=3)
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
