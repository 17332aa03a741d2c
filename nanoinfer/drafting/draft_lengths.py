"""DraftLengths: how many drafts each request gets in the next pass, so that drafting pays or stops."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from nanoinfer.drafting.acceptance import Acceptance
from nanoinfer.drafting.drafter import Drafter
from nanoinfer.drafting.pass_costs import PassCosts
from nanoinfer.requests.req import Req

LEAST_GAIN = 1.1  # how many times as fast a pass with drafts must seem, for each token it gives
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
class Plan:
    """Which drafter each request gets, None for none, and at most how many drafts."""

    drafters: list[int | None] = field(default_factory=list)
    most: list[int] = field(default_factory=list)


class DraftLengths:
    """Weighs what drafts bring against what they cost, both measured while serving.

    The `j`-th draft of a request with acceptance rate `p` brings `p ** j` tokens. It costs one more row in the pass (see
    PassCosts) and perhaps a step of the drafter. So the requests' drafts are taken in the order of what they bring, as
    long as the tokens per second of the pass grow. If the best such pass is not `LEAST_GAIN` times as fast as one without
    drafts, there are none: as a batch grows, rows cost as much as they bring, and drafting stops by itself.

    Of several drafters, a request gets the one that seems to bring most tokens per second, the first of equal ones.
    """

    def __init__(self, drafters: Sequence[Drafter], num_draft_tokens: int, adaptive: bool):
        self._drafters, self._num_draft_tokens, self._adaptive = drafters, num_draft_tokens, adaptive
        self._known: WeakKeyDictionary[Req, _Known] = WeakKeyDictionary()
        self._costs = {True: PassCosts(), False: PassCosts()}  # by `only_likeliest`
        self._step_costs = [PassCosts() for _ in drafters]  # of one draft for each of so many requests
        self._passes = 0
        self._key: Any = None  # what the last plan was made for
        self._plan: list[int] = []
        self._same = 0  # how many passes the last plan has been used again

    def choose(self, reqs: Sequence[Req], only_likeliest: bool) -> Plan:
        """The plan for the next pass of `reqs`. `only_likeliest`: as in Batch, because sampling takes time, too."""
        limits = [self._limit(req) for req in reqs]
        if not self._adaptive:
            return Plan([0 if limit else None for limit in limits], limits)
        known = [self._of(req) for req in reqs]
        costs = self._costs[only_likeliest]
        drafters = [
            self._best_drafter(each, limit, costs, len(reqs)) for each, limit in zip(known, limits, strict=True)
        ]
        rates = [each.acceptances[drafter].rate for each, drafter in zip(known, drafters, strict=True)]
        most = self._most_again(limits, rates, drafters, costs)
        for req, each, count, limit in zip(reqs, known, most, limits, strict=True):
            self._note_rest(req, each, bool(count) or not limit)
        return Plan([drafter if count else None for drafter, count in zip(drafters, most, strict=True)], most)

    def count_drafts(self, req: Req, drafter: int, drafted: int, accepted: int) -> None:
        """A pass has checked drafts of a request."""
        self._of(req).acceptances[drafter].add(drafted, accepted)

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
            known = self._known[req] = _Known([Acceptance() for _ in self._drafters])
        return known

    def _best_drafter(self, known: _Known, limit: int, costs: PassCosts, batch: int) -> int:
        if len(self._drafters) == 1:
            return 0
        pass_seconds = costs.seconds(batch) or 1.0
        speeds = []
        for acceptance, step_costs in zip(known.acceptances, self._step_costs, strict=True):
            tokens = sum(acceptance.rate**j for j in range(limit + 1))
            speeds.append(tokens / (pass_seconds + limit * step_costs.seconds(batch)))
        return speeds.index(max(speeds))

    def _most_again(self, limits: list[int], rates: list[float], drafters: list[int], costs: PassCosts) -> list[int]:
        """Optimisation: `_most`, or for some passes what it was the last time, if only costs can have changed since."""
        key = limits, rates, drafters, costs
        self._same = self._same + 1 if key == self._key else 0
        if self._same % SAME_PLAN == 0:
            self._key, self._plan = key, self._most(limits, rates, drafters, costs)
        return list(self._plan)

    def _most(
        self, limits: Sequence[int], rates: Sequence[float], drafters: Sequence[int], costs: PassCosts
    ) -> list[int]:
        """How many drafts each request gets: those that bring most, as many as make the pass fastest."""
        batch, most = len(limits), [0] * len(limits)
        if not costs.knows(batch):
            return most  # first, what a pass takes without drafts
        largest = max(GROWTH * max(costs.largest, batch), FEW_ROWS)
        drafts = [
            (rate**j, i, j)
            for i, (rate, limit) in enumerate(zip(rates, limits, strict=True))
            for j in range(1, limit + 1)
        ]
        drafts.sort(key=lambda draft: (-draft[0], draft[2]))
        tokens, best, chosen = float(batch), LEAST_GAIN * batch / (costs.seconds(batch) or 1.0), 0
        steps = [0] * len(self._drafters)
        step_seconds = [each.seconds(batch) for each in self._step_costs]
        for count, (value, i, j) in enumerate(drafts[: largest - batch], start=1):
            tokens += value
            steps[drafters[i]] = max(steps[drafters[i]], j)
            drafting = sum(each * seconds for each, seconds in zip(steps, step_seconds, strict=True))
            speed = tokens / ((costs.seconds(batch + count) or 1.0) + drafting)
            if speed > best:
                best, chosen = speed, count
        for _, i, _ in drafts[:chosen]:
            most[i] += 1
        return most

    def _note_rest(self, req: Req, known: _Known, drafted: bool) -> None:
        """Forget what is known about a request that has had no drafts for long: its text may have changed."""
        if drafted:
            known.rested = 0
            return
        known.rested += 1
        if known.rested >= known.patience:
            self._known[req] = _Known([Acceptance() for _ in self._drafters], 0, min(2 * known.patience, LAST_DOUBT))
