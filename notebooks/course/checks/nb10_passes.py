"""Checks of notebook 10: which requests give way when slots run out, and which pass is next."""

from dataclasses import dataclass, replace
from random import Random

from notebooks.course.checks.small_scheduler import Tiny, ask_for_pass, simulate
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal


@dataclass
class Running:
    """What retraction needs to know about a running request."""

    ticket: int
    outputs: int
    slots: int


# --- 10.2 -------------------------------------------------------------------------------------------------------------


@exercise("10.2", "Which requests give way?")
def _(given: Given) -> str:
    to_retract = given["to_retract"]

    def ask(running: list[Running], obtainable: int) -> list[int]:
        given_list = [replace(req) for req in running]
        answer = to_retract(given_list, obtainable)
        expect_equal(given_list, running, "You changed `running`. Work on a copy")
        expect(
            isinstance(answer, list) and all(hasattr(req, "ticket") for req in answer),
            f"to_retract must return a list of requests, not {answer!r}",
        )
        return [req.ticket for req in answer]

    three = [Running(0, 9, 20), Running(1, 3, 10), Running(2, 5, 8)]
    expect_equal(
        ask(three, 3), [], "Three requests need three slots, and three are obtainable: no request has to give way"
    )
    expect_equal(
        ask(three, 2),
        [1],
        "One slot is missing: the request with the fewest output tokens gives way, and that is enough",
    )
    expect_equal(
        ask(three, 0), [1], "A retracted request's slots are free at once: 10 slots for the two requests that stay"
    )
    expect_equal(
        ask([Running(0, 4, 6), Running(1, 4, 6), Running(2, 4, 6)], 1),
        [2],
        "Among equals, the request that arrived last (the highest ticket) gives way",
    )
    expect_equal(
        ask([Running(2, 4, 6), Running(0, 4, 6), Running(1, 4, 6)], 1),
        [2],
        "The highest ticket gives way, wherever it is in the list",
    )
    expect_equal(ask([Running(0, 4, 9)], 0), [], "One request always stays, so that some request makes progress")
    expect_equal(
        ask([Running(0, 9, 1), Running(1, 2, 0), Running(2, 1, 0), Running(3, 0, 0)], 0),
        [3, 2, 1],
        "These requests hold so few slots that one retraction isn't enough. Retract until the rest have their slots, or "
        "only one request is left",
    )
    expect_equal(
        ask([Running(0, 9, 5), Running(1, 1, 0), Running(2, 2, 0), Running(3, 7, 5)], 2),
        [1, 2],
        "Each retraction lowers the number of slots that are needed: two requests stay, and two slots are obtainable",
    )
    rng = Random(84)
    for _ in range(300):
        tickets = rng.sample(range(20), rng.randint(1, 7))
        running = [Running(ticket, rng.randint(0, 4), rng.randint(0, 3)) for ticket in tickets]
        obtainable = rng.randint(0, 7)
        gone = ask(running, obtainable)
        ranked = [req.ticket for req in sorted(running, key=lambda req: (req.outputs, -req.ticket))]
        expect_equal(
            gone, ranked[: len(gone)], f"{running}: retract the fewest outputs first; among equals, the highest ticket"
        )
        slots = {req.ticket: req.slots for req in running}
        enough = [
            count
            for count in range(len(running))
            if len(running) - count <= obtainable + sum(slots[ticket] for ticket in ranked[:count])
        ]
        wanted = enough[0] if enough else len(running) - 1
        expect_equal(len(gone), wanted, f"{running}, {obtainable} obtainable: exactly this many requests must give way")
    return "as few requests as possible give way, and the pass has its slots"


# --- 10.3 -------------------------------------------------------------------------------------------------------------


@exercise("10.3", "The whole decision", points=3)
def _(given: Given) -> str:
    next_pass = given["next_pass"]

    def ask(waiting: list[Tiny], running: list[Tiny], size: int, rows: int) -> tuple[str, list[str], list[str]]:
        _, mode, members, retracted = ask_for_pass(next_pass, waiting, running, size, rows)
        return mode, [req.name for req in members], [req.name for req in retracted]

    a, b, c = Tiny("a", 5), Tiny("b", 8), Tiny("c", 2)
    x, y = Tiny("x", 4, outputs=3, slots=6), Tiny("y", 6, outputs=1, slots=6)
    expect_equal(ask([], [], 32, 4), ("IDLE", [], []), "No request is waiting or running")
    expect_equal(
        ask([a], [x, y], 32, 4),
        ("EXTEND", ["a"], []),
        "A row and enough slots are free, so EXTEND goes first: then `a` is in all DECODE passes that follow. An EXTEND "
        "contains only the newly admitted requests",
    )
    expect_equal(
        ask([], [x, y], 32, 4), ("DECODE", ["x", "y"], []), "No request is waiting, so all running requests decode"
    )
    expect_equal(
        ask([a], [x, y], 32, 2), ("DECODE", ["x", "y"], []), "Both rows are taken, so a waits and the others decode"
    )
    expect_equal(
        ask([a, b, c], [], 32, 4), ("EXTEND", ["a", "b", "c"], []), "All three fit, so one pass extends all of them"
    )
    expect_equal(
        ask([a, b, c], [], 17, 4),
        ("EXTEND", ["a", "b"], []),
        "a takes 5 slots and b 8, so 4 of 17 are left. c needs 2 for its tokens, and the next DECODE one more for each of "
        "the three: 4 aren't enough",
    )
    expect_equal(
        ask([a, b, c], [], 32, 2), ("EXTEND", ["a", "b"], []), "There are two rows, so the first two are admitted"
    )
    expect_equal(
        ask([a], [x, y], 20, 4),
        ("EXTEND", ["a"], []),
        "12 slots are held, a's tokens need 5, and the next DECODE needs one more for each of the three: 20 are enough",
    )
    expect_equal(
        ask([a], [x, y], 19, 4),
        ("DECODE", ["x", "y"], []),
        "12 slots are held and a's tokens need 5. That leaves 2, and the next DECODE of three needs 3: a doesn't fit",
    )
    expect_equal(
        ask([b, c], [x], 15, 4),
        ("DECODE", ["x"], []),
        "b is first and doesn't fit. c would fit, but no request may overtake b: small ones could starve a big one",
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
        "12 of 13 slots are held and two more are needed. y has fewer output tokens, so it gives way",
    )
    u, v, w = (Tiny(name, 3, outputs=2, slots=4) for name in "uvw")
    expect_equal(
        ask([], [u, v, w], 14, 4),
        ("DECODE", ["u", "v"], ["w"]),
        "Among equals, the request admitted last gives way. No other has to, because its 4 slots are enough",
    )
    expect_equal(
        ask([Tiny("small", 1)], [u, v, w], 12, 4),
        ("DECODE", ["u", "v"], ["w"]),
        "The pool is full, so no request is admitted and w gives way. That frees 4 slots, enough for u and v",
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
