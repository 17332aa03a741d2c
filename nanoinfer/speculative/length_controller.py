"""LengthController: how many drafts each request gets in the next pass, so that speculation pays or stops."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from weakref import WeakKeyDictionary

from nanoinfer.model.graph_runner import coarse_size
from nanoinfer.requests.req import Req

EXPECTED = 0.6  # the acceptance rate before any drafts were checked
MEMORY = 32  # how many of the last measurements count, or drafts
FIRST = 3  # so many of them are needed
OUTLIER = 3.0  # one counts as at most so many times the average: something else may have run
PROBE = 4  # drafts are tried for so many requests, in one pass or in several
LOSS = 0.01  # so much of the time at most may be lost by that
FIRST_REST, LONGEST_REST = 64, 2048  # after so many passes at most, drafts are tried again
STALE = 512  # after so many passes without a DECODE, there is one, so that its time is known


class Seconds:
    """A moving average of what something takes. It falls fast and rises slowly: what is slow for a while, as passes of a
    new size are, or while something else runs, must not look slow for long."""

    def __init__(self) -> None:
        self.value, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.count += 1
        if self.count <= FIRST:
            self.value = min(self.value or value, value)
        else:
            weight = 1 / 2 if value < self.value else 1 / MEMORY
            self.value += weight * (min(value, OUTLIER * self.value) - self.value)


@dataclass
class Acceptance:
    """How often drafts were right: counts those accepted, and the first wrong one of each pass. The drafts behind a wrong
    one say nothing. Older drafts count less and less."""

    memory: float
    right: float = 0.0
    checked: float = 0.0

    def add(self, drafted: int, accepted: int) -> None:
        """A pass has checked `drafted` drafts, and accepted the first `accepted` of them."""
        checked = min(accepted + 1, drafted)
        kept = max(1.0 - checked / self.memory, 0.0)
        self.right, self.checked = kept * self.right + accepted, kept * self.checked + checked

    def rate(self, expected: float) -> float:
        """The probability that a draft is right if those before it are. What is `expected` weighs as much as two drafts."""
        return (self.right + 2 * expected) / (self.checked + 2)


def worthwhile(rate: float, price: float, limit: int) -> int:
    """How many drafts, at most `limit`, are worth their price: draft `j` is accepted with probability `rate ** j`."""
    if price >= 1:
        return 0
    if price <= 0 or rate >= 1:
        return limit
    return min(int(log(price) / log(rate)), limit)


class _Costs:
    """What was measured in passes of about as many requests."""

    def __init__(self, num_drafters: int) -> None:
        self.decode = Seconds()  # of a pass without drafts
        self.verify: defaultdict[int, Seconds] = defaultdict(Seconds)  # of one with drafts, by its size
        self.of_a_row = 0.0  # seconds longer per draft
        self.calls = [Seconds() for _ in range(num_drafters)]  # of drafters
        self.ideas = [EXPECTED] * num_drafters  # drafts in a call, a moving average
        self.since_decode = 0  # passes with drafts since the newest without them
        self.gained = 0.0  # seconds, by drafts since they were last tried anew
        self.rest_left, self.most_rest = 0, FIRST_REST  # passes
        self.probe_left = PROBE

    def extra(self, size: int) -> float:
        """How many seconds longer a pass with drafts takes. A larger one takes no less, unless this one was disturbed."""
        known = [each.value for other, each in self.verify.items() if other >= size and each.count >= FIRST]
        return max(min(known, default=0.0) - self.decode.value, 0.0)

    def update_price(self, batch: int) -> None:
        """Average what a row of a pass with drafts costs. This takes a while: once per such pass is enough."""
        counts = {size: min(seconds.count, MEMORY) for size, seconds in self.verify.items()}
        rows = sum(count * (size - batch) for size, count in counts.items())
        self.of_a_row = sum(count * self.extra(size) for size, count in counts.items()) / rows

    def price(self, drafter: int, batch: int) -> float:
        """What a draft costs: the tokens that DECODE passes would make in the time that it takes."""
        if not self.decode.value:
            return 0.0
        return (self.of_a_row + self.calls[drafter].value / self.ideas[drafter]) * batch / self.decode.value

    def rest(self) -> None:
        """Drafts do not pay now. They rest for so long that what was lost by trying them is a small share of the time, but
        at first for less: the first measurements may be wrong."""
        lost = max(-self.gained, 0.0) / self.decode.value if self.decode.value else 0.0
        self.rest_left, self.probe_left = min(int(lost / LOSS) + FIRST, self.most_rest), PROBE
        self.most_rest = FIRST_REST if self.gained > 0 else min(4 * self.most_rest, LONGEST_REST)
        self.gained, self.since_decode = 0.0, STALE


class LengthController:
    """Compares how often drafts are accepted with what they cost, both moving averages of what was measured while serving.

    A draft costs a row of the VERIFY pass and time of its drafter: as much as some number of tokens would, the price. Draft
    `j` of a request is accepted with probability `p ** j`, so a request gets drafts as long as that is above the price. If
    that is none for all requests, drafts rest, the longer the more was lost by trying them: no drafter is asked and nothing
    is measured. Then they are tried again.
    """

    def __init__(self, num_drafters: int, num_draft_tokens: int, adaptive: bool):
        self._num_drafters, self._num_draft_tokens, self._adaptive = num_drafters, num_draft_tokens, adaptive
        self._of_all = [Acceptance(memory=8 * MEMORY) for _ in range(num_drafters)]
        self._of_req: WeakKeyDictionary[Req, list[Acceptance]] = WeakKeyDictionary()
        # By whether `only_likeliest` holds, as sampling takes time, and the size of the batch.
        self._costs: defaultdict[tuple[bool, int], _Costs] = defaultdict(lambda: _Costs(num_drafters))
        self._now = _Costs(num_drafters)  # those of the current pass
        self._reqs: list[Req] = []  # of the current pass
        self._accepted = 0  # drafts in it

    @property
    def resting(self) -> bool:
        """Whether drafts rest in the next pass, too, so that the current one needs not be measured."""
        return self._now.rest_left > 0

    def rest_on(self, reqs: list[Req]) -> bool:
        """Whether the next pass has the requests of the current one, and drafts rest in it; then it is counted. As
        `choose`, but it takes next to no time."""
        if not self.resting or reqs != self._reqs:
            return False
        self._now.rest_left -= 1
        return True

    def choose(self, reqs: Sequence[Req], only_likeliest: bool) -> list[list[int]]:
        """For each drafter, how many drafts of it each request may get at most in the next pass; [] for none at all."""
        if not self._adaptive:
            return [[self._limit(req) for req in reqs]] * self._num_drafters
        self._reqs = list(reqs)
        costs = self._now = self._costs[only_likeliest, coarse_size(len(reqs))]
        self._accepted = 0
        if costs.rest_left:
            costs.rest_left -= 1
            return []
        if costs.decode.count < FIRST or costs.since_decode >= STALE:
            return []
        costs.since_decode += 1
        limits = [self._limit(req) for req in reqs]
        if costs.probe_left:
            costs.probe_left = max(costs.probe_left - len(reqs), 0)
            return [limits] * self._num_drafters
        most = [self._lengths(drafter, reqs, limits) for drafter in range(self._num_drafters)]
        if any(limits) and not any(map(any, most)):
            costs.rest()
            return []
        return most

    def _lengths(self, drafter: int, reqs: Sequence[Req], limits: Sequence[int]) -> list[int]:
        """For each request, as many drafts as are more likely accepted than the price."""
        price, expected = self._now.price(drafter, len(reqs)), self._of_all[drafter].rate(EXPECTED)
        known = [self._of_req.get(req) for req in reqs]
        rates = [expected if each is None else each[drafter].rate(expected) for each in known]
        return [worthwhile(rate, price, limit) for rate, limit in zip(rates, limits, strict=True)]

    def _limit(self, req: Req) -> int:
        """The most drafts that a request may get: not so many that a token would be left over."""
        if req.params.logits_processors:  # they may keep state, and must see each token once
            return 0
        if req.matcher is not None and not req.matcher.takes_drafts:
            return 0
        return max(min(self._num_draft_tokens, req.params.max_new_tokens - req.num_output_tokens - 1), 0)

    def count_proposal(self, drafter: int, drafts: int, seconds: float) -> None:
        """A drafter was asked for the next pass, and has made so many drafts in so many seconds."""
        costs = self._now
        costs.calls[drafter].add(seconds)
        costs.ideas[drafter] += (drafts - costs.ideas[drafter]) / MEMORY

    def count_drafts(self, req: Req, drafter: int, drafted: int, accepted: int) -> None:
        """A pass has checked drafts of a request."""
        known = self._of_req.get(req)
        if known is None:
            known = self._of_req[req] = [Acceptance(memory=MEMORY) for _ in self._of_all]
        for acceptance in (known[drafter], self._of_all[drafter]):
            acceptance.add(drafted, accepted)
        self._accepted += accepted

    def count_pass(self, batch: int, size: int, seconds: float, drafting: float) -> None:
        """A pass of `batch` requests and `size` tokens has taken so many seconds, after `drafting` seconds of drafters and
        what is around them."""
        if not self._adaptive:
            return
        costs = self._now
        costs.gained -= drafting
        if size == batch:
            costs.decode.add(seconds)
            costs.since_decode = 0
            return
        size = coarse_size(size)
        costs.verify[size].add(seconds)
        costs.gained += self._accepted * costs.decode.value / batch - costs.extra(size)
        costs.update_price(batch)
