"""What DraftLengths measures while serving: how often drafts are right (Acceptance), what a pass of so many tokens takes
(PassCosts) and how fast the machine is now (Drift), what it takes a drafter to catch up on a request (CatchUp), and whether
plans bring what they promise (Promises).
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from weakref import WeakKeyDictionary

from nanoinfer.model.captured_passes import coarse_size
from nanoinfer.requests.req import Req

EXPECTED = 0.6  # before anything is known
WEIGHT = 2.0  # how many drafts that expectation is worth
MEMORY = 48.0  # how many of the last drafts are remembered
ENOUGH = 3  # how many measurements make a size known
MEASUREMENTS = 64  # how many of them count
OUTLIER = 1.5  # a measurement counts as at most so many times what is known
HOPED_SHARE = 0.8  # beyond what was measured, a token is hoped to cost so many times what tokens have cost so far
UNKNOWN_SLOPE = 0.05  # where that is unknown, too: what twice the tokens are hoped to cost more, as a share of the pass
HOPE, HOPE_AFTER = 0.1, 1024  # what was measured so many passes ago is hoped to take so much less now
DRIFT_MEMORY = 16  # how many passes tell how fast the machine is now
BELIEF = 32.0  # the trust at first weighs as much as so many tokens per request
REMEMBERED = 384.0  # how many of them are remembered
FORGIVENESS = 512.0  # after so many passes without drafts, the memory is a third
WORST = 4.0  # a plan counts as at most so many times slower than it promised: perhaps something else ran


@dataclass
class Acceptance:
    """Counts drafts that were checked: those accepted, and the first wrong one of each pass. The drafts behind a wrong one
    say nothing. Older drafts count less and less. `expected`: the rate that counts until drafts were checked."""

    expected: float = EXPECTED
    memory: float = MEMORY
    right: float = 0.0
    checked: float = 0.0

    def add(self, drafted: int, accepted: int) -> None:
        """A pass has checked `drafted` drafts, and accepted the first `accepted` of them."""
        checked = min(accepted + 1, drafted)
        kept = max(1.0 - checked / self.memory, 0.0)
        self.right, self.checked = kept * self.right + accepted, kept * self.checked + checked

    @property
    def rate(self) -> float:
        """The probability that a draft is right if those before it are."""
        return (self.right + WEIGHT * self.expected) / (self.checked + WEIGHT)


class Drift:
    """How many times as long everything takes now as at first. Machines slow down and speed up, because of other programs
    or of heat. Without this, costs that were measured at different times could not be compared."""

    def __init__(self) -> None:
        self.factor = 1.0

    def note(self, seconds: float, expected: float) -> None:
        """A pass has taken so long; at first, it took `expected`."""
        ratio = min(max(seconds / expected / self.factor, 1 / OUTLIER), OUTLIER)
        self.factor *= ratio ** (1 / DRIFT_MEMORY)


class PassCosts:
    """What passes have taken, by their size, which is how many new tokens they have. A DECODE of B requests has B, a VERIFY
    has the drafts as well: both are the same computation, so each tells about the other."""

    def __init__(self, enough: int = ENOUGH) -> None:
        self._enough = enough
        self._sizes: list[int] = []  # those that are known, in order
        self._seconds: dict[int, float] = {}
        self._newest: dict[int, int] = {}  # when each of them was measured last
        self._counts: dict[int, int] = {}  # how often each of them was measured
        self._first: dict[int, list[float]] = {}  # measurements of sizes that are not known yet

    @property
    def largest(self) -> int:
        """The most tokens that are known; 0 at first."""
        return self._sizes[-1] if self._sizes else 0

    def has(self, size: int) -> bool:
        """Whether passes of just so many tokens were measured."""
        return size in self._seconds

    def knows(self, size: int) -> bool:
        """Whether so many tokens are within what was measured."""
        return bool(self._sizes) and self._sizes[0] <= size <= self._sizes[-1]

    def age(self, size: int, now: int) -> int:
        """How many passes ago passes of so many tokens were measured; 0 if never."""
        return now - self._newest.get(size, now)

    def add(self, size: int, seconds: float, now: int = 0) -> None:
        """Pass number `now` had so many tokens, and has taken so long. Of the first ones, the fastest counts, because new
        sizes are slow at first; then the mean of the last ones."""
        self._newest[size] = now
        known = self._seconds.get(size)
        if known is not None:
            self._counts[size] = count = min(self._counts[size] + 1, MEASUREMENTS)
            self._seconds[size] = known + (min(max(seconds, known / OUTLIER), known * OUTLIER) - known) / count
            return
        first = self._first.setdefault(size, [])
        first.append(seconds)
        if len(first) == self._enough:
            insort(self._sizes, size)
            self._seconds[size], self._counts[size] = min(first), self._enough

    def seconds(self, size: int, now: int | None = None) -> float:
        """How long a pass of so many tokens takes; 0 as long as nothing is known.

        What was not measured is guessed. Between two sizes, it is on the line between them. Beyond the largest, the guess
        is hopeful, so that the size will be tried and measured. And so is, given the number of the pass that is planned
        `now`, what was measured long ago.
        """
        if size in self._seconds:
            age = 0 if now is None else now - self._newest[size]
            return self._seconds[size] * (1 - HOPE * min(age / HOPE_AFTER, 1))
        if not self._sizes:
            return 0.0
        at = bisect_left(self._sizes, size)
        if at == 0:
            first = self._sizes[0]
            return self._seconds[first] * size / first
        below = self._sizes[at - 1]
        if at < len(self._sizes):
            above = self._sizes[at]
            share = (size - below) / (above - below)
            return (1 - share) * self._seconds[below] + share * self._seconds[above]
        first = self._sizes[0]
        of_a_token = UNKNOWN_SLOPE * self._seconds[below] / below
        if first < below:
            of_a_token = max(of_a_token, HOPED_SHARE * (self._seconds[below] - self._seconds[first]) / (below - first))
        return self._seconds[below] + of_a_token * (size - below)


@dataclass
class _Kept:
    """Sums over the plans for batches of about the same size, in tokens per request, in which older plans count less and
    less: how many were promised for the time that they took, and how many there were.

    Tokens are added up, not ratios: of many short plans that bring 1 or 5 tokens by chance, the mean ratio would say that
    they break their promises even if together they keep them."""

    promised: float = 0.0
    brought: float = 0.0

    @property
    def share(self) -> float:
        return (self.brought + BELIEF) / (self.promised + BELIEF)

    def fade(self, kept: float) -> None:
        self.promised, self.brought = self.promised * kept, self.brought * kept


class Promises:
    """Compares the tokens per second of the passes of a plan with those that the plan promised.

    A plan is made of many measurements, each a little wrong, and of all plans the one that looks best is chosen: most often
    one that looks better than it is. And some costs are in no measurement, such as that of the first pass after a prompt,
    which takes longer. How promises for batches of about the same size were kept tells how much to believe
    of the next one: compared with how well passes without drafts keep to what is known of them, because whatever else runs
    on the machine slows both.
    """

    def __init__(self) -> None:
        # By the size of the batch, in powers of two, and by whether there are drafts.
        self._kept: defaultdict[tuple[int, bool], _Kept] = defaultdict(_Kept)
        self._drafts = False  # of the plan that is followed now
        self._speed: float | None = None  # of the plan that is followed now, if there is one
        self._batch = 0
        self._start = self._end = (0.0, 0)  # its first and its newest time, and how many tokens there were
        self._excused = 0.0  # seconds of it that do not count

    def trust(self, batch: int) -> float:
        """By what to multiply a promise for so many requests; 1 at most."""
        without, drafts = (self._kept[batch.bit_length(), drafts].share for drafts in (False, True))
        return min(drafts / without, 1.0)

    def begin(self, batch: int, speed: float, drafts: bool, now: float, tokens: int) -> None:
        """A plan for so many requests begins, with drafts or without, which promises so many tokens per second; 0: it
        cannot tell. There are so many tokens `now`."""
        self.end()
        self._speed, self._batch, self._drafts, self._excused = speed, batch, drafts, 0.0
        self._start = self._end = now, tokens

    def note(self, now: float, tokens: int) -> None:
        """The next pass of the plan begins."""
        self._end = now - self._excused, tokens

    def excuse(self, seconds: float) -> None:
        """So many seconds of the plan, before its next pass, do not count."""
        self._excused += seconds

    def end(self) -> None:
        """The plan has come to its end, or something else comes before its next pass: its passes so far are judged."""
        if self._speed is None:
            return
        (start, before), (end, after) = self._start, self._end
        kept, brought = self._kept[self._batch.bit_length(), self._drafts], (after - before) / self._batch
        if not self._drafts:
            self._kept[self._batch.bit_length(), True].fade(exp(-brought / FORGIVENESS))
        if self._speed and brought:
            kept.fade(exp(-brought / REMEMBERED))
            kept.promised += min((end - start) * self._speed / self._batch, WORST * brought)
            kept.brought += brought
        self._speed = None


class CatchUp:
    """Knows which tokens of each request a drafter has not seen, and what so many of them cost it together.

    A draft model has to compute them before it can propose anything; an index has to add them. As many tokens as one pass
    may bring, `usual`, belong to every proposal and are not counted.
    """

    def __init__(self, usual: int):
        self._usual = usual
        self._seen: WeakKeyDictionary[Req, tuple[int, int]] = WeakKeyDictionary()  # tokens, and admissions by then
        self._costs = PassCosts(enough=1)  # of so many tokens at once: ten times as many may cost little more

    def missing(self, req: Req) -> int:
        """How many tokens of the request the drafter has not seen; 0 if no more than one pass may bring. A request that was
        retracted has lost its slots, and what a drafter kept there."""
        tokens, admissions = self._seen.get(req, (0, 0))
        missing = req.num_tokens - (tokens if admissions == req.num_admissions else 0)
        return missing if missing > self._usual else 0

    def note_seen(self, reqs: Sequence[Req]) -> None:
        """The drafter has just proposed for these."""
        for req in reqs:
            self._seen[req] = req.num_tokens, req.num_admissions

    def add(self, seconds: float, tokens: int, now: int = 0) -> None:
        """It took so many seconds to catch up on so many tokens."""
        self._costs.add(coarse_size(tokens), seconds, now)

    def seconds(self, req: Req, now: int | None = None) -> float:
        """How long it takes to catch up on the request; 0 as long as nothing is known."""
        missing = self.missing(req)
        return self._costs.seconds(coarse_size(missing), now) if missing else 0.0
