"""The small scheduler of exercise 10.3: its requests, a run pass by pass, and the pass that its rules require."""

from dataclasses import dataclass
from typing import Any

from notebooks.course.expectations import Hint, expect, expect_equal


@dataclass(eq=False)
class Tiny:
    """A request of the small scheduler."""

    name: str
    prompt_len: int
    outputs: int = 0
    slots: int = 0

    @property
    def num_tokens(self) -> int:
        return self.prompt_len + self.outputs

    def __repr__(self) -> str:
        return self.name


def simulate(next_pass: Any, wanted: list[tuple[int, int, int]], size: int, max_running: int) -> list[str]:
    """Serve requests (turn of arrival, prompt tokens, new tokens) and check every pass; returns the passes as text."""
    arriving = [
        (at, Tiny(f"r{i}", prompt_len), new)
        for i, (at, prompt_len, new) in enumerate(sorted(wanted, key=lambda w: w[0]))
    ]
    limit = {req: new for _, req, new in arriving}
    waiting: list[Tiny] = []
    running: list[Tiny] = []
    passes: list[str] = []
    for turn in range(2000):
        waiting += [req for at, req, _ in arriving if at == turn]
        before, mode, members, retracted = ask_for_pass(next_pass, waiting, running, size, max_running)
        expected = by_the_rules(waiting, running, size, max_running)
        expect_equal(
            (mode, [req.name for req in members], [req.name for req in retracted]),
            expected,
            f"{before}: wrong mode, requests in the pass, or retracted requests",
        )
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


def by_the_rules(waiting: list[Tiny], running: list[Tiny], size: int, rows: int) -> tuple[str, list[str], list[str]]:
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
        return "EXTEND", [req.name for req in waiting[:admitted]], []
    if not running:
        return "IDLE", [], []
    leaving = sorted(enumerate(running), key=lambda item: (item[1].outputs, -item[0]))
    for count in range(len(running)):
        gone = {i for i, _ in leaving[:count]}
        staying = [req for i, req in enumerate(running) if i not in gone]
        if sum(req.slots for req in staying) + len(staying) <= size or len(staying) == 1:
            break
    return "DECODE", [req.name for req in staying], [req.name for _, req in leaving[:count]]
