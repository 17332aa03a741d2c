"""DraftLengths: how many drafts each request gets in the next pass, so that drafting pays or stops."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from nanoinfer.drafting.acceptance import EXPECTED, MEMORY, Acceptance
from nanoinfer.drafting.drafter import Drafter
from nanoinfer.drafting.pass_costs import PassCosts
from nanoinfer.requests.req import Req

LEAST_GAIN = 1.2  # a pass with drafts must promise so many times the tokens per second of one without
FEW_ROWS = 16  # a pass of so many rows is tried at once; a larger one has
GROWTH = 2  # at most so many times the rows of the largest one that was measured
FIRST_DOUBT, LAST_DOUBT = 256, 1024  # after so many passes without drafts, a request gets another chance
SAME_PLAN = 8  # for so many passes a plan holds, if only costs change
COST_DOUBT = 256  # a cost that was not measured for so many passes counts no longer


@dataclass(eq=False)
class _Known:
    """What is known about one request: how often each drafter was right, and how long it has had no drafts."""

    acceptances: list[Acceptance]
    rested: int = 0
    patience: int = FIRST_DOUBT


@dataclass
class Turn:
    """A drafter (its number), at most how many drafts of it each request gets, and the tokens per second that are expected
    of it."""

    drafter: int
    most: list[int]
    speed: float = 0.0


class DraftLengths:
    """Weighs what drafts bring against what they cost, both measured while serving.

    The `j`-th draft of a request with acceptance rate `p` brings `p ** j` tokens. It costs one more row in the pass (see
    PassCosts) and perhaps a step of the drafter. So the requests' drafts are taken in the order of what they bring, as
    long as the tokens per second of the pass grow. If the best such pass is not `LEAST_GAIN` times as fast as one without
    drafts, there are none: as a batch grows, rows cost as much as they bring, and drafting stops by itself.

    Each drafter is weighed by itself. The one that promises the fastest pass is asked first (of equal ones, the first), and
    where it has no idea, the next one, for as many drafts as pay with that one.
    """

    def __init__(self, drafters: Sequence[Drafter], num_draft_tokens: int, adaptive: bool):
        self._drafters, self._num_draft_tokens, self._adaptive = drafters, num_draft_tokens, adaptive
        self._known: WeakKeyDictionary[Req, _Known] = WeakKeyDictionary()
        self._acceptances = [Acceptance(memory=8 * MEMORY) for _ in drafters]  # of all requests
        self._costs = {True: PassCosts(), False: PassCosts()}  # by `only_likeliest`
        self._step_costs = [PassCosts() for _ in drafters]  # of one draft for each of so many requests
        self._passes = 0
        self._keys: list[Any] = [None for _ in drafters]  # what the last turns were made for
        self._turns = [Turn(i, []) for i in range(len(drafters))]
        self._same = [0 for _ in drafters]  # how many passes the last turns have been used again

    def choose(self, reqs: Sequence[Req], only_likeliest: bool) -> list[Turn]:
        """Who is asked for drafts for the next pass of `reqs`, in this order; nobody if drafts do not pay.
        `only_likeliest`: as in Batch, because sampling takes time, too."""
        limits = [self._limit(req) for req in reqs]
        if not self._adaptive:
            return [Turn(i, limits) for i in range(len(self._drafters)) if any(limits)]
        known, costs = [self._of(req) for req in reqs], self._costs[only_likeliest]
        turns = [
            self._turn_again(i, limits, [each.acceptances[i].rate for each in known], costs)
            for i in range(len(self._drafters))
        ]
        turns = sorted((turn for turn in turns if any(turn.most)), key=lambda turn: -turn.speed)
        for i, (req, each, limit) in enumerate(zip(reqs, known, limits, strict=True)):
            self._note_rest(req, each, not limit or any(turn.most[i] for turn in turns))
        return turns

    def count_drafts(self, req: Req, drafter: int, drafted: int, accepted: int) -> None:
        """A pass has checked drafts of a request."""
        self._of(req).acceptances[drafter].add(drafted, accepted)
        self._acceptances[drafter].add(drafted, accepted)

    def count_pass(self, rows: int, only_likeliest: bool, seconds: float) -> None:
        """A DECODE or VERIFY pass of so many rows has taken so long, without the time of the drafters."""
        self._passes += 1
        self._costs[only_likeliest].add(rows, seconds, self._passes)
        if self._passes % (COST_DOUBT // 4) == 0:
            for costs in (*self._costs.values(), *self._step_costs):
                costs.forget(self._passes - COST_DOUBT)

    def count_proposal(self, drafter: int, num_reqs: int, steps: int, seconds: float) -> None:
        """A drafter has proposed up to `steps` tokens for each of so many requests in so many seconds."""
        self._step_costs[drafter].add(num_reqs, seconds / steps, self._passes)

    def _limit(self, req: Req) -> int:
        """The most drafts that a request may get: not so many that a token would be left over."""
        if req.params.logits_processors:  # they may keep state, and must see each token once
            return 0
        return max(min(self._num_draft_tokens, req.params.max_new_tokens - req.num_output_tokens - 1), 0)

    def _of(self, req: Req) -> _Known:
        known = self._known.get(req)
        if known is None:
            known = self._known[req] = self._newly_known()
        return known

    def _newly_known(self) -> _Known:
        """Of a new request, something between what was hoped for at first and what others had is expected."""
        return _Known([Acceptance((EXPECTED + of_all.rate) / 2) for of_all in self._acceptances])

    def _turn_again(self, drafter: int, limits: list[int], rates: list[float], costs: PassCosts) -> Turn:
        """Optimisation: `_turn`, or for some passes what it was the last time, if only costs can have changed since."""
        key = limits, rates, costs
        self._same[drafter] = self._same[drafter] + 1 if key == self._keys[drafter] else 0
        if self._same[drafter] % SAME_PLAN == 0:
            self._keys[drafter], self._turns[drafter] = key, self._turn(drafter, limits, rates, costs)
        turn = self._turns[drafter]
        return Turn(drafter, list(turn.most), turn.speed)

    def _turn(self, drafter: int, limits: Sequence[int], rates: Sequence[float], costs: PassCosts) -> Turn:
        """How many drafts each request gets: those that bring most, as many as make the pass fastest."""
        batch, most = len(limits), [0] * len(limits)
        if not costs.knows(batch):
            return Turn(drafter, most)  # first, what a pass takes without drafts
        largest = max(GROWTH * max(costs.largest, batch), FEW_ROWS)
        drafts = [
            (rate**j, i, j)
            for i, (rate, limit) in enumerate(zip(rates, limits, strict=True))
            for j in range(1, limit + 1)
        ]
        drafts.sort(key=lambda draft: (-draft[0], draft[2]))
        tokens, best, chosen = float(batch), LEAST_GAIN * batch / (costs.seconds(batch) or 1.0), 0
        steps, step_seconds = 0, self._step_costs[drafter].seconds(batch)
        for count, (value, _, j) in enumerate(drafts[: largest - batch], start=1):
            tokens, steps = tokens + value, max(steps, j)
            speed = tokens / ((costs.seconds(batch + count) or 1.0) + steps * step_seconds)
            if speed > best:
                best, chosen = speed, count
        for _, i, _ in drafts[:chosen]:
            most[i] += 1
        return Turn(drafter, most, best)

    def _note_rest(self, req: Req, known: _Known, drafted: bool) -> None:
        """Forget what is known about a request that has had no drafts for long: its text may have changed."""
        if drafted:
            known.rested = 0
            return
        known.rested += 1
        if known.rested >= known.patience:
            fresh = self._known[req] = self._newly_known()
            fresh.patience = min(2 * known.patience, LAST_DOUBT)
