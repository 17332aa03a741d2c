"""Checks of notebook 10: admission, and which pass is next."""

from dataclasses import dataclass
from random import Random
from typing import Any

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, expect, expect_equal
from notebooks.course.tables import compare, expect_rows

RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)  # exact in binary, so that no result depends on rounding


@dataclass
class RequestSize:
    """What admission needs to know about a request."""

    num_tokens: int
    max_kv_len: int
    held: int


@exercise("10.1", "Does it fit?")
def _(given: Given) -> str:
    fits, new, one = given["fits"], RequestSize(6, 21, 0), RequestSize(10, 16, 10)
    candidates = "The candidate can't have all 21 free slots: the running request holds 10 slots and may need 6 more"
    again = "The 10 slots that the running request holds aren't free, so don't count them again: 21 + 6 are needed"
    half = "With ratio 0.5, reserve half of the 15 tokens to come, rounded up: 6 + 8"
    pages = "Slots come in whole pages: 21 tokens need 6 pages of 4 slots, which makes 24 slots"
    each = "Round up each request's tokens to whole pages, not the sum, because requests don't share a page"
    rows: list[tuple[Any, ...]] = [
        (new, [], 21, 0, 1.0, 1, True, "No request is running, 21 slots are free, and it needs at most 21: it fits"),
        (new, [], 20, 0, 1.0, 1, False, "With ratio 1, a request that may need 21 slots doesn't fit into 20"),
        (new, [], 5, 16, 1.0, 1, True, "Evictable slots are available too, because eviction frees them"),
        (new, [one], 21, 0, 1.0, 1, False, candidates),
        (new, [one], 27, 0, 1.0, 1, True, again),
        (
            RequestSize(30, 45, 24),
            [],
            21,
            0,
            1.0,
            1,
            True,
            "It already holds the slots of its first 24 tokens: 21 more",
        ),
        (new, [], 14, 0, 0.5, 1, True, half),
        (new, [], 13, 0, 0.5, 1, False, half),
        (new, [], 5, 0, 0.0, 1, False, "Even with ratio 0, a request needs slots for the tokens it has"),
        (new, [], 23, 0, 1.0, 4, False, pages),
        (new, [], 24, 0, 1.0, 4, True, pages),
        (RequestSize(6, 9, 4), [RequestSize(7, 9, 8)], 12, 0, 1.0, 4, True, each),
        (RequestSize(6, 9, 4), [RequestSize(7, 9, 8)], 11, 0, 1.0, 4, False, each),
    ]
    expect_rows(fits, rows)
    rng, cases = Random(8), []
    for _ in range(300):
        page_size, ratio, requests = rng.choice((1, 2, 4, 16)), rng.choice(RATIOS), list[RequestSize]()
        for _ in range(rng.randint(1, 5)):
            tokens = rng.randint(1, 60)
            held = rng.randint(0, tokens // page_size) * page_size
            requests.append(RequestSize(tokens, tokens + rng.randint(0, 40), held))
        wanted = sum(_still_needed(request, ratio, page_size) for request in requests)
        obtainable = max(wanted + rng.choice((-1, 0, 1, rng.randint(-30, 30))), 0)
        evictable = rng.randint(0, obtainable)
        cases.append((requests[0], requests[1:], obtainable - evictable, evictable, ratio, page_size))
    compare(fits, _fits, cases, hint="count what all of them may still need")
    return f"{len(cases)} admissions decided right"


def _still_needed(request: RequestSize, ratio: float, page_size: int) -> int:
    """The slots that a request may still need, counted token by token."""
    to_come, tokens, slots = ratio * (request.max_kv_len - request.num_tokens), request.num_tokens, 0
    while tokens < request.num_tokens + to_come:
        tokens += 1
    while slots < tokens:
        slots += page_size
    return slots - request.held


def _fits(
    candidate: RequestSize, running: list[RequestSize], free: int, evictable: int, ratio: float, page_size: int
) -> bool:
    return sum(_still_needed(request, ratio, page_size) for request in (candidate, *running)) <= free + evictable


@dataclass(eq=False)
class Tiny:
    """A request of the small scheduler."""

    name: str
    prompt_len: int
    outputs: int = 0
    slots: int = 0
    ticket: int = 0

    @property
    def num_tokens(self) -> int:
        return self.prompt_len + self.outputs

    def __repr__(self) -> str:
        return self.name


def simulate(next_pass: Any, wanted: list[tuple[int, int, int]], size: int, max_running: int) -> list[str]:
    """Serve requests (turn of arrival, prompt tokens, new tokens) and check every pass; returns the passes as text."""
    in_order = enumerate(sorted(wanted, key=lambda each: each[0]))
    arriving = [(at, Tiny(f"r{i}", prompt_len, ticket=i), new) for i, (at, prompt_len, new) in in_order]
    limit = {req: new for _, req, new in arriving}
    waiting: list[Tiny] = []
    running: list[Tiny] = []
    passes: list[str] = []
    for turn in range(2000):
        waiting += [req for at, req, _ in arriving if at == turn]
        before, mode, members, retracted = ask_for_pass(next_pass, waiting, running, size, max_running)
        got, want = (mode, members, retracted), by_the_rules(waiting, running, size, max_running)
        expect_equal(got, want, f"{before}: wrong mode, requests in the pass, or retracted requests")
        passes.append(f"{mode[0]}({' '.join(req.name for req in members)})")
        for req in retracted:
            running.remove(req)
            req.slots = 0
            waiting.insert(0, req)
        if mode == "EXTEND":
            for req in members:
                waiting.remove(req)
                running.append(req)
                req.slots = req.num_tokens
        for req in members:
            req.slots += mode == "DECODE"
            req.outputs += 1
        if sum(req.slots for req in running) > size:
            raise Hint(f"{before}: the pass uses more slots than the pool has")
        for req in [req for req in running if req.outputs == limit[req]]:
            running.remove(req)
        if mode == "IDLE" and all(at <= turn for at, _, _ in arriving):
            return passes
    raise Hint("after 2000 passes, some requests are still waiting")


def ask_for_pass(
    next_pass: Any, waiting: list[Tiny], running: list[Tiny], size: int, max_running: int
) -> tuple[str, str, list[Tiny], list[Tiny]]:
    """Ask `next_pass` once and check the form of its answer. Returns the state it was given, mode, members, retracted."""
    before = f"{_listed('waiting', waiting)}, {_listed('running', running)}, {size} slots, {max_running} rows"
    lists = list(waiting), list(running)
    state = [(req, req.outputs, req.slots) for req in (*waiting, *running)]
    answer = next_pass(*lists, size, max_running)
    expect(
        lists == (waiting, running) and all((req.outputs, req.slots) == (o, s) for req, o, s in state),
        "next_pass must not change the lists or the requests: its caller does that",
    )
    expect(
        isinstance(answer, tuple) and len(answer) == 3,
        f"next_pass must return (mode, members, retracted), not {answer!r}",
    )
    mode, members, retracted = answer
    expect(mode in ("EXTEND", "DECODE", "IDLE"), f"mode must be 'EXTEND', 'DECODE' or 'IDLE', not {mode!r}")
    for req in (*members, *retracted):
        expect(any(req is other for other in (*waiting, *running)), f"{req!r} is neither waiting nor running")
    return before, mode, list(members), list(retracted)


def _listed(name: str, reqs: list[Tiny]) -> str:
    return f"{name}: " + (", ".join(f"{r.name} ({r.num_tokens} tokens, {r.slots} slots)" for r in reqs) or "none")


def by_the_rules(waiting: list[Tiny], running: list[Tiny], size: int, rows: int) -> tuple[str, list[Tiny], list[Tiny]]:
    """The right answer, by trial: the longest prefix of the queue that fits, or the fewest retractions that suffice."""
    held = sum(req.slots for req in running)
    admitted = 0
    while admitted < len(waiting):
        some = waiting[: admitted + 1]
        members = len(running) + len(some)
        if members > rows or held + sum(req.num_tokens for req in some) + members > size:
            break
        admitted += 1
    if admitted:
        return "EXTEND", waiting[:admitted], []
    if not running:
        return "IDLE", [], []
    leaving = sorted(running, key=lambda req: (req.outputs, -req.ticket))
    for count in range(len(running)):
        staying = [req for req in running if req not in leaving[:count]]
        if sum(req.slots for req in staying) + len(staying) <= size or len(staying) == 1:
            break
    return "DECODE", staying, leaving[:count]


@exercise("10.2", "The whole decision", points=3)
def _(given: Given) -> str:
    next_pass = given["next_pass"]
    a, b, c = Tiny("a", 5), Tiny("b", 8), Tiny("c", 2)
    x, y = Tiny("x", 4, outputs=3, slots=6), Tiny("y", 6, outputs=1, slots=6)
    u, v, w = (Tiny(name, 3, outputs=2, slots=4, ticket=ticket) for ticket, name in enumerate("uvw"))
    first = "A row and enough slots are free, so EXTEND goes first. It contains only the newly admitted requests"
    third = "a takes 5 slots and b 8. c needs 2 for its tokens, and the next DECODE one more for each of the three"
    after = "12 slots are held, a's tokens need 5, and the next DECODE needs one more for each of the three"
    big = "b is first and doesn't fit. c would fit, but no request may overtake b: small ones could starve a big one"
    again = "`back` was retracted: its prompt *and* its 6 output tokens must be extended again, which takes 10 slots"
    latest = "Among equals, the request that arrived last (the highest ticket) gives way"
    full = "The pool is full, so no request is admitted and w gives way. That frees 4 slots, enough for u and v"
    for waiting, running, size, rows, want, hint in (
        ([], [], 32, 4, "IDLE", "No request is waiting or running"),
        ([a], [x, y], 32, 4, "EXTEND a", first),
        ([], [x, y], 32, 4, "DECODE x y", "No request is waiting, so all running requests decode"),
        ([a], [x, y], 32, 2, "DECODE x y", "Both rows are taken, so a waits and the others decode"),
        ([a, b, c], [], 32, 4, "EXTEND a b c", "All three fit, so one pass extends all of them"),
        ([a, b, c], [], 17, 4, "EXTEND a b", third),
        ([a, b, c], [], 32, 2, "EXTEND a b", "There are two rows, so the first two are admitted"),
        ([a], [x, y], 20, 4, "EXTEND a", f"{after}: 20 are enough"),
        ([a], [x, y], 19, 4, "DECODE x y", f"{after}: a doesn't fit into 19"),
        ([b, c], [x], 15, 4, "DECODE x", big),
        ([Tiny("back", 4, outputs=6)], [x], 17, 4, "DECODE x", again),
        ([], [x, y], 13, 4, "DECODE x, without y", "Two more slots are needed. y has fewer outputs: it gives way"),
        ([], [u, v, w], 14, 4, "DECODE u v, without w", latest),
        ([], [w, u, v], 14, 4, "DECODE u v, without w", f"{latest}, wherever it is in the list"),
        ([], [u], 4, 4, "DECODE u", "One request always stays, so that some request makes progress"),
        ([Tiny("small", 1)], [u, v, w], 12, 4, "DECODE u v, without w", full),
    ):
        _, mode, members, retracted = ask_for_pass(next_pass, waiting, running, size, rows)
        got = " ".join([mode, *(req.name for req in members)])
        without = f", without {' '.join(req.name for req in retracted)}" if retracted else ""
        expect_equal(got + without, want, hint)
    rng, passes = Random(86), 0
    for _ in range(40):
        size, rows, wanted = rng.randint(14, 40), rng.randint(1, 5), []
        for _ in range(rng.randint(1, 8)):
            new = rng.randint(1, 9)
            wanted.append((rng.randint(0, 12), rng.randint(1, size - 1 - new), new))
        passes += sum(not entry.startswith("I") for entry in simulate(next_pass, wanted, size, rows))
    return f"40 workloads served to the end, in {passes} passes"
