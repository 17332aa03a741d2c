"""LengthController on a simulated machine: drafts where they pay, few where not, and another chance now and then."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nanoinfer import SamplingParams
from nanoinfer.requests.req import Req
from nanoinfer.speculative.length_controller import LONGEST_REST, OUTLIER, LengthController, Seconds

Costs = Callable[[int], float]


def flat(rows: int) -> float:
    """Rows are free: passes wait for memory."""
    return 1.0


def steep(rows: int) -> float:
    """A row costs as much as another pass."""
    return float(rows)


def cheap(rows: int) -> float:
    return 1 + 0.05 * rows


def make_req(max_new_tokens: int = 10**6, **params: Any) -> Req:
    return Req(0, np.array([1, 2]), SamplingParams(max_new_tokens=max_new_tokens, temperature=0, **params))


class Machine:
    """Makes passes of `batch` requests whose times are known. `rates`: of each drafter, how likely a draft is right;
    `step_seconds`: what each draft of a request takes it."""

    def __init__(
        self, costs: Costs, rates: list[float], batch: int = 1, step_seconds: float = 0.0, ideas: float = 1.0
    ) -> None:
        self.costs, self.rates, self.step_seconds, self.ideas = costs, rates, step_seconds, ideas
        self.controller = LengthController(len(rates), 7, adaptive=True)
        self.reqs = [make_req() for _ in range(batch)]
        self.random = random.Random(0)
        self.asked = 0  # so many times, drafters were asked
        self.around = 0.0  # seconds that drafting takes beside them
        self.disturbed_every = 0  # of so many passes, one takes 20 times as long

    def serve(self, passes: int) -> tuple[float, list[list[int]]]:
        """How many times the tokens per second of passes without drafts there were; and the drafts of each pass."""
        tokens, seconds, history = 0, 0.0, []
        for number in range(1, passes + 1):
            counts, by, proposing = [0] * len(self.reqs), [0] * len(self.reqs), 0.0
            for drafter, most in enumerate(self.controller.choose(self.reqs, True)):
                asked = [limit if not count else 0 for limit, count in zip(most, counts, strict=True)]
                if not any(asked):
                    continue
                for i, limit in enumerate(asked):
                    if limit and self.random.random() < self.ideas:
                        counts[i], by[i] = limit, drafter
                self.controller.count_proposal(
                    drafter,
                    sum(count for count, a in zip(counts, asked, strict=True) if a),
                    self.step_seconds * max(asked),
                )
                proposing += self.step_seconds * max(asked) + self.around
                self.asked += 1
            for req, count, drafter in zip(self.reqs, counts, by, strict=True):
                accepted = 0
                while accepted < count and self.random.random() < self.rates[drafter]:
                    accepted += 1
                tokens += accepted + 1
                if count:
                    self.controller.count_drafts(req, drafter, count, accepted)
            size = len(self.reqs) + sum(counts)
            factor = 20 if self.disturbed_every and not number % self.disturbed_every else 1
            self.controller.count_pass(len(self.reqs), size, factor * self.costs(size), factor * proposing)
            seconds += proposing + self.costs(size)
            history.append(counts)
        return tokens / seconds * self.costs(len(self.reqs)) / len(self.reqs), history


def best_gain(costs: Costs, rate: float, batch: int, step_seconds: float) -> float:
    """What the best constant number of drafts brings."""
    gains = []
    for drafts in range(8):
        tokens = sum(rate**j for j in range(drafts + 1))
        gains.append(tokens * costs(batch) / (costs(batch * (1 + drafts)) + drafts * step_seconds))
    return max(gains)


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize(
    ("costs", "step_seconds", "rate"),
    [(flat, 0.0, 0.0), (flat, 0.5, 0.2), (steep, 0.0, 0.5), (steep, 0.2, 0.95), (cheap, 0.2, 0.05)],
)
def test_where_drafts_do_not_pay_little_is_lost(costs: Costs, step_seconds: float, rate: float, batch: int) -> None:
    gain, _ = Machine(costs, [rate], batch, step_seconds).serve(4000)
    assert 0.95 < gain < 1.05


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("costs", "step_seconds"), [(flat, 0.0), (cheap, 0.0), (cheap, 0.02)])
@pytest.mark.parametrize("rate", [0.6, 0.95, 1.0])
def test_where_drafts_pay_nearly_all_is_gained(costs: Costs, step_seconds: float, rate: float, batch: int) -> None:
    gain, _ = Machine(costs, [rate], batch, step_seconds).serve(4000)
    assert gain - 1 > 0.85 * (best_gain(costs, rate, batch, step_seconds) - 1)


def test_drafts_that_are_rare_but_right_are_made() -> None:
    machine = Machine(cheap, [1.0], step_seconds=0.001, ideas=0.02)
    assert machine.serve(8000)[0] > 1.08, "of 1.13 at most"


def test_measurements_that_are_disturbed_change_little() -> None:
    machine = Machine(cheap, [0.8])
    machine.disturbed_every = 7
    assert machine.serve(4000)[0] - 1 > 0.85 * (best_gain(cheap, 0.8, 1, 0.0) - 1)
    seconds = Seconds()
    for i in range(100):
        seconds.add(200.0 if i % 10 == 0 else 2.0)  # something else ran
    assert 2.0 <= seconds.value < 2.0 * (1 + (OUTLIER - 1) / 5)
    for _ in range(400):
        seconds.add(5.0)
    assert seconds.value == pytest.approx(5.0, rel=0.01), "slower for good"


def test_when_a_text_becomes_predictable_drafts_begin_again() -> None:
    machine = Machine(cheap, [0.0])
    machine.serve(3000)
    machine.rates = [1.0]
    _, history = machine.serve(LONGEST_REST + 50)
    assert sum(any(counts) for counts in history[-30:]) >= 29, "now and then, a DECODE is measured"


def test_requests_that_accept_more_get_more_drafts() -> None:
    machine = Machine(lambda rows: 1 + 0.04 * rows, [0.6], batch=3)
    machine.serve(100)
    for req, right in zip(machine.reqs, (0, 1, 7), strict=True):
        for _ in range(20):
            machine.controller.count_drafts(req, 0, 7, right)
    low, middle, high = machine.controller.choose(machine.reqs, True)[0]
    assert low < middle < high == 7


def test_the_drafter_whose_drafts_do_not_pay_is_left_out() -> None:
    machine = Machine(cheap, [0.0, 0.9])
    machine.serve(300)
    first, second = machine.controller.choose(machine.reqs, True)
    assert (first, second) == ([0], [7])


def test_greedy_passes_and_others_have_costs_of_their_own() -> None:
    machine = Machine(flat, [0.9])
    machine.serve(100)
    assert machine.controller.choose(machine.reqs, True)
    assert machine.controller.choose(machine.reqs, False) == [], "nothing was measured yet"


@pytest.mark.parametrize("adaptive", [True, False])
def test_no_request_gets_more_drafts_than_it_can_still_use(adaptive: bool) -> None:
    """The token behind the last accepted draft comes with the pass, so one less than are missing. A logits processor may
    keep state, so it must see each token once."""
    machine = Machine(flat, [1.0])
    machine.controller = LengthController(1, 5, adaptive)
    machine.serve(100)
    reqs = [make_req(missing + 1) for missing in (1, 2, 4, 6, 30)]
    for req in reqs:
        req.append(7)
    reqs.append(make_req(logits_processors=(lambda ids, scores: scores,)))
    most = [machine.controller.choose([req], True) for req in reqs]
    if not adaptive:
        assert most == [[[count]] for count in (0, 1, 3, 5, 5, 0)]
    else:
        assert [sum(map(sum, each)) for each in most] == [0, 1, 3, 5, 5, 0]


def test_without_adaptation_every_request_gets_all_drafts_whatever_they_bring() -> None:
    machine = Machine(steep, [0.0, 0.0], batch=3)
    machine.controller = LengthController(2, 4, adaptive=False)
    machine.serve(100)
    assert machine.controller.choose(machine.reqs, True) == [[4, 4, 4], [4, 4, 4]]
    for batch in (1, 3):  # batches of any sizes may follow each other
        machine.controller.count_pass(batch, batch + 1, 1.0, 0.0)


def test_while_drafts_rest_a_pass_of_the_same_requests_counts_at_once_and_one_of_others_is_looked_up() -> None:
    machine = Machine(steep, [0.0])
    while not machine.controller.resting:
        machine.serve(1)
    left = 0
    while machine.controller.rest_on(machine.reqs):
        left += 1
    assert 0 < left <= LONGEST_REST
    while not machine.controller.resting:
        machine.serve(1)
    assert not machine.controller.rest_on([make_req()])
    assert machine.controller.rest_on(machine.reqs)


def test_what_is_around_the_drafter_counts_as_lost_too() -> None:
    """The time of a drafter decides how many drafts there are; that of all drafting, how long they rest."""
    asked = []
    for around in (0.0, 0.5):
        machine = Machine(flat, [0.0], step_seconds=0.01, ideas=0.0)
        machine.around = around
        machine.serve(1000)  # until it knows
        before = machine.asked
        machine.serve(7000)
        asked.append(machine.asked - before)
    assert asked[1] < asked[0] / 4
