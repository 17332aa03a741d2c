"""Checks of notebook 08: admission, chunks of a prompt, the order of waiting requests, retraction, the whole decision.

They run the reader's functions on small stand-ins for requests: exact cases first, then many random ones, against answers
that follow the rules but are computed in another way than in the notebook.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from nanoinfer.teaching.checks.small_scheduler import Tiny, ask_for_pass, simulate
from nanoinfer.teaching.exercises import Given, exercise
from nanoinfer.teaching.expectations import Hint, expect, expect_equal

RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)  # exact in binary, so that no result depends on rounding


@dataclass
class Wish:
    """What admission needs to know about a request."""

    num_tokens: int
    max_kv_len: int
    held: int


@dataclass
class Running:
    """What retraction needs to know about a running request."""

    ticket: int
    outputs: int
    slots: int


@dataclass
class Waiting:
    """What the policy needs to know about a waiting request."""

    ticket: int
    cached: int


# --- 8.1 -------------------------------------------------------------------------------------------------------------


def _still_needed(wish: Wish, ratio: float, page_size: int) -> int:
    """The slots that a request may still need, counted token by token."""
    to_come, slots = ratio * (wish.max_kv_len - wish.num_tokens), 0
    tokens = wish.num_tokens
    while tokens < wish.num_tokens + to_come:
        tokens += 1
    while slots < tokens:
        slots += page_size
    return slots - wish.held


@exercise("8.1", "Does it fit?")
def _(given: Given) -> str:
    fits = given["fits"]

    def ask(candidate: Wish, running: list[Wish], free: int, evictable: int, ratio: float, page_size: int) -> bool:
        answer = fits(replace(candidate), [replace(wish) for wish in running], free, evictable, ratio, page_size)
        expect(isinstance(answer, bool), f"fits must return True or False, not {answer!r}")
        return answer

    new, one = Wish(6, 21, 0), Wish(10, 16, 10)
    expect(
        ask(new, [], 21, 0, 1.0, 1), "No request runs, 21 slots are free and the request can fill at most 21: it fits"
    )
    expect(not ask(new, [], 20, 0, 1.0, 1), "With ratio 1 a request that may need 21 slots does not fit into 20")
    expect(
        ask(new, [], 5, 16, 1.0, 1),
        "Slots that are only cached are available as well: eviction frees them. Do not count the free slots alone",
    )
    expect(
        not ask(new, [one], 21, 0, 1.0, 1),
        "The 21 free slots are not all for the candidate: the running request holds 10 and may still need 6",
    )
    expect(
        ask(new, [one], 27, 0, 1.0, 1),
        "21 for the candidate and 6 more for the running request are 27. The 10 slots that it holds are no longer free "
        "and must not be counted again",
    )
    expect(
        ask(Wish(30, 45, 24), [], 21, 0, 1.0, 1),
        "A candidate whose first 24 tokens are in the tree holds those slots already: it needs the other 21",
    )
    expect(
        ask(new, [], 14, 0, 0.5, 1) and not ask(new, [], 13, 0, 0.5, 1),
        "With ratio 0.5, slots for half of the 15 tokens to come are reserved, rounded up: exactly 6 + 8 = 14 slots",
    )
    expect(
        not ask(new, [], 5, 0, 0.0, 1),
        "Even with ratio 0 a request needs slots for the tokens it has: the ratio applies to the tokens to come",
    )
    expect(
        not ask(new, [], 23, 0, 1.0, 4) and ask(new, [], 24, 0, 1.0, 4),
        "Slots come in whole pages: 21 tokens fill 6 pages of 4, which are 24 slots",
    )
    expect(
        ask(Wish(6, 9, 4), [Wish(7, 9, 8)], 12, 0, 1.0, 4) and not ask(Wish(6, 9, 4), [Wish(7, 9, 8)], 11, 0, 1.0, 4),
        "Round each request's tokens up to pages, not the sum: requests do not share a page. Two requests that reach 9 "
        "tokens fill 12 slots each and hold 4 and 8: they need 12 more",
    )
    rng, cases = Random(8), 0
    for _ in range(300):
        page_size, ratio = rng.choice((1, 2, 4, 16)), rng.choice(RATIOS)
        wishes = []
        for _ in range(rng.randint(1, 5)):
            tokens = rng.randint(1, 60)
            held = rng.randint(0, tokens // page_size) * page_size
            wishes.append(Wish(tokens, tokens + rng.randint(0, 40), held))
        wanted = sum(_still_needed(wish, ratio, page_size) for wish in wishes)
        obtainable = max(wanted + rng.choice((-1, 0, 1, rng.randint(-30, 30))), 0)
        evictable = rng.randint(0, obtainable)
        arguments = (wishes[0], wishes[1:], obtainable - evictable, evictable, ratio, page_size)
        expect_equal(ask(*arguments), wanted <= obtainable, f"fits{arguments}: {wanted} slots are needed in total")
        cases += 1
    return f"{cases} admissions decided right"


# --- 8.2 -------------------------------------------------------------------------------------------------------------


def _chunks_by_hand(prefix_len: int, num_tokens: int, size: int, spent: int, page_size: int) -> list[tuple[int, int]]:
    """Token by token: a chunk grows until the turn's budget is spent, then shrinks to the last page boundary."""
    found, done, left = [], prefix_len, size - spent
    while done < num_tokens:
        end = done
        while end < num_tokens and end - done < left:
            end += 1
        while end < num_tokens and end % page_size:
            end -= 1
        if end > done:
            found.append((done, end))
        done, left = max(done, end), size
    return found


@exercise("8.2", "Divide a prompt into chunks")
def _(given: Given) -> str:
    prompt_chunks = given["prompt_chunks"]

    def ask(*arguments: int) -> list[tuple[int, int]]:
        answer = prompt_chunks(*arguments)
        expect(isinstance(answer, list), f"prompt_chunks must return a list of (start, end), not {answer!r}")
        expect(
            all(isinstance(chunk, tuple | list) for chunk in answer),
            f"prompt_chunks must return a list of (start, end), not {answer!r}",
        )
        return [tuple(chunk) for chunk in answer]

    expect_equal(ask(0, 10, 64, 0, 1), [(0, 10)], "A prompt that fits into the first turn is one chunk")
    expect_equal(ask(0, 100, 40, 0, 1), [(0, 40), (40, 80), (80, 100)], "40 tokens per turn, until the prompt ends")
    expect_equal(
        ask(30, 100, 40, 0, 1), [(30, 70), (70, 100)], "Cached tokens are not computed: the chunks begin at prefix_len"
    )
    expect_equal(
        ask(0, 100, 40, 15, 1),
        [(0, 25), (25, 65), (65, 100)],
        "Other requests have spent 15 of the first turn's 40 tokens; every later turn has 40 again",
    )
    expect_equal(
        ask(0, 50, 20, 20, 1),
        [(0, 20), (20, 40), (40, 50)],
        "A turn without budget has no chunk, not an empty one",
    )
    expect_equal(
        ask(0, 20, 11, 0, 4), [(0, 8), (8, 16), (16, 20)], "A chunk in the middle of a prompt ends at a page boundary"
    )
    expect_equal(
        ask(0, 13, 7, 0, 4),
        [(0, 4), (4, 8), (8, 13)],
        "The last chunk ends where the prompt ends, not at a page boundary: the rest of a page is computed, too",
    )
    expect_equal(
        ask(16, 40, 20, 18, 8),
        [(16, 32), (32, 40)],
        "Two tokens are left in the first turn, less than a page of 8: no chunk",
    )
    expect_equal(
        ask(16, 18, 20, 18, 8),
        [(16, 18)],
        "The rest of the prompt fits into the rest of the turn: one last chunk",
    )
    rng = Random(82)
    for _ in range(300):
        page_size = rng.choice((1, 2, 4, 8))
        size = rng.randint(page_size, 40)
        prefix_len = rng.randint(0, 5) * page_size
        arguments = (prefix_len, prefix_len + rng.randint(1, 150), size, rng.randint(0, size), page_size)
        expect_equal(ask(*arguments), _chunks_by_hand(*arguments), f"prompt_chunks{arguments}")
    return "every token is computed once, and no turn computes too many"


# --- 8.3 -------------------------------------------------------------------------------------------------------------


def _hits(prompt: Sequence[int], cached: Sequence[Sequence[int]], page_size: int) -> int:
    """Length of the longest prefix of `prompt` without its last token, in whole pages, that begins a cached sequence."""
    pages = range((len(prompt) - 1) // page_size, 0, -1)
    known = (n * page_size for n in pages if any(list(c[: n * page_size]) == prompt[: n * page_size] for c in cached))
    return next(known, 0)


@exercise("8.3", "Longest prefix first")
def _(given: Given) -> str:
    order = given["longest_prefix_first"]

    def ask(prompts: list[list[int]], cached: list[list[int]], page_size: int = 1) -> list[int]:
        answer = order([list(prompt) for prompt in prompts], [list(tokens) for tokens in cached], page_size)
        expect(isinstance(answer, list), f"longest_prefix_first must return a list of indices, not {answer!r}")
        expect_equal(
            sorted(answer),
            list(range(len(prompts))),
            "Each request must be in the order exactly once",
        )
        return answer

    cached = [[1, 2, 3, 4, 5, 6], [1, 2, 8, 9]]
    expect_equal(ask([[7, 7], [1, 2, 3, 4, 0], [1, 5, 5]], cached), [1, 2, 0], "Most cached tokens first")
    expect_equal(
        ask([[9, 9, 9], [8, 8, 8], [7, 7, 7]], cached),
        [0, 1, 2],
        "None of them has cached tokens: in order of arrival",
    )
    expect_equal(
        ask([[1, 2, 3, 0], [1, 2, 8, 9, 9], [1, 0]], cached),
        [1, 0, 2],
        "Compare with every cached sequence, not only the first: a tree has many branches",
    )
    expect_equal(
        ask([[0, 1, 2, 3, 4], [1, 9, 9, 9, 9]], cached),
        [1, 0],
        "Only a common *beginning* counts: K/V depends on all tokens before it, so equal tokens further on are useless",
    )
    expect_equal(
        ask([[1, 2, 3, 0, 0, 0], [1, 2, 8, 9]], cached),
        [0, 1],
        "[1, 2, 8, 9] is in the tree in full, but its last token is computed for its logits: 3 tokens count, as for the "
        "other request",
    )
    expect_equal(
        ask([[1, 2, 0, 0, 0, 0], [1, 2, 3, 0, 0, 0]], [[1, 2, 3, 4]], 2),
        [0, 1],
        "A hit is a whole number of pages: with pages of 2, three common tokens count as two",
    )
    expect_equal(ask([], cached), [], "Without waiting requests the order is empty")
    expect_equal(ask([[1, 2, 3], [4, 5]], []), [0, 1], "With an empty tree: in order of arrival")
    rng = Random(83)
    for _ in range(200):
        page_size = rng.choice((1, 1, 2, 3))
        prompts, known = (
            [[rng.randint(0, 1) for _ in range(rng.randint(1, 9))] for _ in range(count)]
            for count in (rng.randint(1, 8), rng.randint(0, 4))
        )
        wanted = [i for _, i in sorted((-_hits(prompt, known, page_size), i) for i, prompt in enumerate(prompts))]
        expect_equal(ask(prompts, known, page_size), wanted, f"prompts {prompts}, cached {known}, pages of {page_size}")
    return "most cached first, equals in order of arrival"


# --- 8.4 -------------------------------------------------------------------------------------------------------------


@exercise("8.4", "Which requests give way?")
def _(given: Given) -> str:
    to_retract = given["to_retract"]

    def ask(running: list[Running], obtainable: int) -> list[int]:
        given_list = [replace(req) for req in running]
        answer = to_retract(given_list, obtainable)
        expect_equal(given_list, running, "`running` must not change: work on a copy")
        expect(
            isinstance(answer, list) and all(hasattr(req, "ticket") for req in answer),
            f"to_retract must return a list of requests, not {answer!r}",
        )
        return [req.ticket for req in answer]

    three = [Running(0, 9, 20), Running(1, 3, 10), Running(2, 5, 8)]
    expect_equal(ask(three, 3), [], "Three requests decode with three slots: no request has to give way")
    expect_equal(
        ask(three, 2),
        [1],
        "One slot is missing: the request with the fewest output tokens gives way, and that is enough",
    )
    expect_equal(
        ask(three, 0), [1], "The slots of a retracted request are free at once: 10 slots for the two that stay"
    )
    expect_equal(
        ask([Running(0, 4, 6), Running(1, 4, 6), Running(2, 4, 6)], 1),
        [2],
        "Among equals the request that arrived last (the highest ticket) gives way: the first has waited longest",
    )
    expect_equal(
        ask([Running(2, 4, 6), Running(0, 4, 6), Running(1, 4, 6)], 1),
        [2],
        "The highest ticket, wherever it is in the list",
    )
    expect_equal(ask([Running(0, 4, 9)], 0), [], "One request always stays, so that some request makes progress")
    expect_equal(
        ask([Running(0, 9, 1), Running(1, 2, 0), Running(2, 1, 0), Running(3, 0, 0)], 0),
        [3, 2, 1],
        "These requests hold so few slots that one retraction is not enough: retract until the rest has slots, or one is "
        "left",
    )
    expect_equal(
        ask([Running(0, 9, 5), Running(1, 1, 0), Running(2, 2, 0), Running(3, 7, 5)], 2),
        [1, 2],
        "After each retraction fewer slots are needed: two requests stay, and two slots are obtainable",
    )
    rng = Random(84)
    for _ in range(300):
        tickets = rng.sample(range(20), rng.randint(1, 7))
        running = [Running(ticket, rng.randint(0, 4), rng.randint(0, 3)) for ticket in tickets]
        obtainable = rng.randint(0, 7)
        gone = ask(running, obtainable)
        ranked = [req.ticket for req in sorted(running, key=lambda req: (req.outputs, -req.ticket))]
        expect_equal(gone, ranked[: len(gone)], f"{running}: fewest outputs first, among equals the highest ticket")
        slots = {req.ticket: req.slots for req in running}
        enough = [
            count
            for count in range(len(running))
            if len(running) - count <= obtainable + sum(slots[ticket] for ticket in ranked[:count])
        ]
        wanted = enough[0] if enough else len(running) - 1
        expect_equal(len(gone), wanted, f"{running}, {obtainable} obtainable: exactly this many requests give way")
    return "as few requests as possible give way, and the pass has its slots"


# --- 8.5 -------------------------------------------------------------------------------------------------------------


def _admit_all(choose: Any, arrivals: list[list[int]], max_overtakes: int) -> list[int]:
    """Feed `choose`: in each turn some requests arrive (their cached tokens), then one is admitted. Tickets in order."""
    waiting: list[Waiting] = []
    order: list[int] = []
    turns, number = list(arrivals), 0
    while turns or waiting:
        for cached in turns.pop(0) if turns else ():
            waiting.append(Waiting(number, cached))
            number += 1
        if not waiting:
            continue
        chosen = choose([replace(req) for req in waiting], len(order), max_overtakes)
        ticket = getattr(chosen, "ticket", None)
        if ticket not in [req.ticket for req in waiting]:
            raise Hint(f"choose must return one of the waiting requests, not {chosen!r}")
        waiting = [req for req in waiting if req.ticket != ticket]
        order.append(ticket)
    return order


def _overtakes(order: list[int], ticket: int) -> int:
    return sum(other > ticket for other in order[: order.index(ticket)])


@exercise("8.5", "Prefer, but let no request starve", points=2)
def _(given: Given) -> str:
    choose = given["choose"]
    waiting = [Waiting(0, 0), Waiting(1, 8), Waiting(2, 8)]
    first = choose([replace(req) for req in waiting], 0, 4)
    expect_equal(
        getattr(first, "ticket", first),
        1,
        "No request has been overtaken yet: choose the most cached tokens, among equals the first",
    )
    lonely = [[0, 8], *[[8]] * 30]
    for bound in (1, 2, 5, 10):
        order = _admit_all(choose, lonely, bound)
        times = _overtakes(order, 0)
        expect(
            times <= bound,
            f"Request 0 has no cached tokens, and in every turn one with 8 cached tokens arrives. With "
            f"max_overtakes={bound} it was overtaken {times} times: without a firm bound a request can starve",
        )
        expect(
            times == bound,
            f"Request 0 was overtaken {times} times with max_overtakes={bound}: use the bound in full. Until it is reached "
            "the cached tokens decide",
        )
    late = [[9, 9, 9], [0, 9], *[[9]] * 20]
    for bound in (1, 3):
        expect_equal(
            _overtakes(_admit_all(choose, late, bound), 3),
            bound,
            f"Request 3 arrives when other requests have left already (`left` is not 0 then). How often it is overtaken "
            f"with max_overtakes={bound}",
        )
    rng, most = Random(85), 0
    for _ in range(150):
        bound = rng.choice((1, 2, 3, 6))
        arrivals = [[rng.choice((0, 0, 4, 8)) for _ in range(rng.randint(0, 3))] for _ in range(rng.randint(5, 30))]
        order = _admit_all(choose, arrivals, bound)
        for ticket in order:
            times = _overtakes(order, ticket)
            expect(
                times <= bound,
                f"arrivals (cached tokens, turn by turn) {arrivals}: request {ticket} was overtaken {times} times, "
                f"max_overtakes={bound}",
            )
            most = max(most, times)
    waiting = [Waiting(7, 0), Waiting(9, 2), Waiting(12, 6), Waiting(13, 6)]
    for left, wanted in ((7, 12), (9, 12), (10, 7), (11, 7)):
        chosen = choose([replace(req) for req in waiting], left, 3)
        expect_equal(
            getattr(chosen, "ticket", chosen),
            wanted,
            f"Tickets 7, 9, 12 and 13 wait and {left} requests have left, with max_overtakes=3. All of 0 to 6 have left: "
            "all others that left came after 7",
        )
    return f"no request is overtaken more often than allowed; the most is {most} times"


# --- 8.6 -------------------------------------------------------------------------------------------------------------


@exercise("8.6", "The whole decision", points=3)
def _(given: Given) -> str:
    next_pass = given["next_pass"]

    def ask(waiting: list[Tiny], running: list[Tiny], size: int, rows: int) -> tuple[str, list[str], list[str]]:
        _, mode, members, retracted = ask_for_pass(next_pass, waiting, running, size, rows)
        return mode, [req.name for req in members], [req.name for req in retracted]

    a, b, c = Tiny("a", 5), Tiny("b", 8), Tiny("c", 2)
    x, y = Tiny("x", 4, outputs=3, slots=6), Tiny("y", 6, outputs=1, slots=6)
    expect_equal(ask([], [], 32, 4), ("IDLE", [], []), "No request waits or runs")
    expect_equal(
        ask([a], [x, y], 32, 4),
        ("EXTEND", ["a"], []),
        "A row and enough slots are free: EXTEND goes first, so that `a` is in all DECODE passes that follow. An EXTEND "
        "has only the newly admitted requests",
    )
    expect_equal(ask([], [x, y], 32, 4), ("DECODE", ["x", "y"], []), "No request waits: all running requests decode")
    expect_equal(ask([a], [x, y], 32, 2), ("DECODE", ["x", "y"], []), "Both rows are taken: a waits, the others decode")
    expect_equal(ask([a, b, c], [], 32, 4), ("EXTEND", ["a", "b", "c"], []), "All three fit: one pass for all of them")
    expect_equal(
        ask([a, b, c], [], 17, 4),
        ("EXTEND", ["a", "b"], []),
        "a takes 5 slots and b 8, so 4 of 17 are left: not enough for c's 2 tokens and one more for each of the three",
    )
    expect_equal(ask([a, b, c], [], 32, 2), ("EXTEND", ["a", "b"], []), "Two rows: the first two are admitted")
    expect_equal(
        ask([a], [x, y], 20, 4),
        ("EXTEND", ["a"], []),
        "12 slots are held, 5 more for a's tokens, and one more for each of the three in the next DECODE: 20 are enough",
    )
    expect_equal(
        ask([a], [x, y], 19, 4),
        ("DECODE", ["x", "y"], []),
        "12 slots are held and a's tokens fill 5. Then 2 are left, and the next DECODE of three needs 3: a does not fit",
    )
    expect_equal(
        ask([b, c], [x], 15, 4),
        ("DECODE", ["x"], []),
        "b is first and does not fit. c would, but no request passes b: a big request would starve behind small ones",
    )
    back = Tiny("back", 4, outputs=6)
    expect_equal(
        ask([back], [x], 17, 4),
        ("DECODE", ["x"], []),
        "`back` was retracted: its prompt *and* its 6 output tokens must be extended again, which takes 10 slots",
    )
    expect_equal(
        ask([], [x, y], 13, 4),
        ("DECODE", ["x"], ["y"]),
        "12 of 13 slots are held and two are needed: y has fewer output tokens and gives way",
    )
    u, v, w = (Tiny(name, 3, outputs=2, slots=4) for name in "uvw")
    expect_equal(
        ask([], [u, v, w], 14, 4),
        ("DECODE", ["u", "v"], ["w"]),
        "Among equals the request admitted last gives way, and no more than necessary: its 4 slots are enough",
    )
    expect_equal(
        ask([Tiny("small", 1)], [u, v, w], 12, 4),
        ("DECODE", ["u", "v"], ["w"]),
        "The pool is full: no request is admitted, and w gives way. Its 4 slots are then free: enough for u and v",
    )
    rng, passes = Random(86), 0
    for _ in range(40):
        size, rows = rng.randint(14, 40), rng.randint(1, 5)
        wanted = []
        for _ in range(rng.randint(1, 8)):
            new = rng.randint(1, 9)
            wanted.append((rng.randint(0, 12), rng.randint(1, size - 1 - new), new))
        served = simulate(next_pass, wanted, size, rows)
        passes += sum(not entry.startswith("I") for entry in served)
    return f"40 workloads served to the end, in {passes} passes"
