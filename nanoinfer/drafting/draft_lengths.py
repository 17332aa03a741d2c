"""DraftLengths: how many drafts each request gets in the next pass, so that drafting pays or stops."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from nanoinfer.drafting.drafter import Drafter
from nanoinfer.drafting.measurements import EXPECTED, MEMORY, Acceptance, CatchUp, Drift, PassCosts, Promises
from nanoinfer.model.captured_passes import coarse_size
from nanoinfer.requests.req import Req

LEAST_GAIN = 1.05  # a pass with drafts must promise so many times the tokens per second of one without
FEW_ROWS = 16  # a pass of so many tokens is tried at once; a larger one has
GROWTH = 2  # at most so many times the tokens of the largest one that was measured
FIRST_DOUBT, LAST_DOUBT = 32, 1024  # after so many passes without drafts, a request gets another chance
HOPE_AGAIN = 128  # from the one after so many on, more is hoped than others got: perhaps all texts have changed
SAME_PLAN = 8  # for so many passes a plan holds: work that changes all the time takes longer, and cannot be measured
LONGEST_PLAN = 512  # a plan without drafts behind one that brought none holds twice as long, up to so many passes
NEWCOMERS = 4  # such a plan holds for other requests, too, unless this part of it is over
MEASURED = 2  # so many of its passes are measured, behind the first
STALE = 1024  # after so many passes, drafts pause for a plan: what a pass takes without them is measured again
MOST_SILENT = 3  # if nobody has an idea, at most so many passes go by until somebody is asked again


def expected_tokens(rate: float, drafts: int) -> float:
    """How many of so many drafts in a row are accepted on average, if each is right with this probability."""
    return sum(rate**j for j in range(1, drafts + 1))


@dataclass(eq=False)
class _Known:
    """What is known about one request: how often each drafter had an idea, how often it was right, and for how many passes
    the request has had no drafts."""

    ideas: list[Acceptance]
    acceptances: list[Acceptance]
    rested: int = 0
    patience: int = FIRST_DOUBT


@dataclass(frozen=True)
class Prospect:
    """What drafts of one drafter would be for a request: at most `limit`, the drafter has an `idea` so often, a draft is
    accepted at this `rate`, and catching up on the request takes so many seconds of each pass."""

    limit: int
    idea: float
    rate: float
    catch_up: float = 0.0


@dataclass
class Turn:
    """A drafter (its number), at most how many drafts of it each request gets, and the tokens per second that are expected
    of it. `promise`: those that it makes after it has caught up; 0 if such passes were not measured yet."""

    drafter: int
    most: list[int]
    speed: float = 0.0
    promise: float = 0.0


class DraftLengths:
    """Weighs what drafts bring against what they cost, both measured while serving.

    The `j`-th draft of a request brings `i * p ** j` tokens, where `i` is how often the drafter has an idea and `p` how
    often a draft is accepted. It costs one more token in the pass (see PassCosts), and perhaps a step of the drafter. So
    requests' drafts are taken in the order of what they bring, as many as make the pass fastest, in tokens per second. If
    that is not `LEAST_GAIN` times the speed of a pass without drafts, there are none: as a batch grows, drafts cost as much
    as they bring, and drafting stops by itself. Where promises were not kept, new ones count for less (see Promises).

    Each drafter is weighed by itself. The one that promises the fastest pass is asked first (of equal ones, the first), and
    where it has no idea, the next one, for as many drafts as pay with that one.
    """

    def __init__(self, drafters: Sequence[Drafter], num_draft_tokens: int, adaptive: bool):
        self._drafters, self._num_draft_tokens, self._adaptive = drafters, num_draft_tokens, adaptive
        self._known: WeakKeyDictionary[Req, _Known] = WeakKeyDictionary()
        self._of_all = self._known_of_all()  # requests together
        self._costs = {True: PassCosts(), False: PassCosts()}  # by `only_likeliest`
        # What proposing takes for so many requests, by drafter and number of steps.
        self._proposal_costs: list[list[PassCosts]] = [
            [PassCosts() for _ in range(num_draft_tokens + 1)] for _ in drafters
        ]
        self._catch_up = [CatchUp(num_draft_tokens + 1) for _ in drafters]
        self._drift, self._promises, self._passes = Drift(), Promises(), 0
        self._newest: bool | None = None  # `only_likeliest` of the pass before; None if that was none of this kind
        self._now = (0.0, 0)  # when the current pass began, and how many tokens there were
        self._plan: list[Turn] = []
        self._planned: Sequence[Req] = ()  # for which requests it was made
        self._likeliest = True  # and for which kind of pass
        self._had_ideas = False  # whether it brought any drafts
        self._rest_length = SAME_PLAN  # for how many passes the next one holds if it is without drafts
        self._plan_length = SAME_PLAN  # for how many passes this one holds
        self._plan_left = 0  # and for how many of them still
        self._silent_for = self._silent_left = 0  # for how many passes nobody is asked, and for how many of them still

    def rests(self, reqs: Sequence[Req], now: float, tokens: int) -> bool:
        """The next pass of `reqs` begins `now`; so many tokens were made before. Optimisation: True while it was found not
        long ago that drafts do not pay, or that nobody has an idea. Then neither `choose` nor `count_pass` needs to be
        called for this pass. The first passes of a plan without drafts are measured all the same."""
        self._now = now, tokens
        self._promises.note(now, tokens)
        if not self._plan:
            if self._plan_length - self._plan_left <= MEASURED or not self._holds(reqs):
                return False
        elif not self._silent_left or not self._holds(reqs):
            return False
        else:
            self._silent_left -= 1
        self._plan_left, self._newest = self._plan_left - 1, None
        self._passes += 1
        return True

    def _holds(self, reqs: Sequence[Req]) -> bool:
        """Whether the plan is one for the next pass, too. One without drafts is kept as requests come and go, so that full
        batches, in which they often do, do not plan all the time."""
        if not self._plan_left or self._planned == reqs:
            return self._plan_left > 0
        over = self._plan_length - self._plan_left
        is_new = over >= max(self._plan_length // NEWCOMERS, 2 * SAME_PLAN)
        return not self._plan and not is_new and self._is_similar(reqs)

    def _is_similar(self, reqs: Sequence[Req]) -> bool:
        return len(self._planned) < 2 * len(reqs) < 4 * len(self._planned)

    def choose(self, reqs: Sequence[Req], only_likeliest: bool) -> list[Turn]:
        """Who is asked for drafts for the next pass of `reqs`, in this order; nobody if drafts do not pay.
        `only_likeliest`: as in Batch, because sampling takes time, too."""
        if not self._adaptive:
            limits = [self._limit(req) for req in reqs]
            return [Turn(i, limits) for i in range(len(self._drafters)) if any(limits)]
        if self._holds(reqs) and (not self._plan or self._likeliest == only_likeliest):
            self._plan_left -= 1
        else:
            if self._planned != reqs:
                self._silent_for = self._silent_left = 0
            backs_off = not self._had_ideas and self._is_similar(reqs) and self._knows(len(reqs), only_likeliest)
            self._rest_length = min(2 * self._rest_length, LONGEST_PLAN) if backs_off else SAME_PLAN
            self._plan = self._new_plan(reqs, only_likeliest)
            self._planned, self._likeliest, self._had_ideas = list(reqs), only_likeliest, False
            self._plan_length = SAME_PLAN if self._plan else self._rest_length
            self._plan_left = self._plan_length - 1
            promise = self._plan[0].promise if self._plan else self._promise_without(len(reqs), only_likeliest)
            self._promises.begin(len(reqs), promise / self._drift.factor, bool(self._plan), *self._now)
        if not self._plan:
            return []
        limits = [self._limit(req) for req in reqs]
        turns = [replace(turn, most=list(map(min, turn.most, limits))) for turn in self._plan]
        return [turn for turn in turns if any(turn.most)]

    def _new_plan(self, reqs: Sequence[Req], only_likeliest: bool) -> list[Turn]:
        """The turns of the next passes, the fastest first. There are none before it is known what a pass takes without."""
        if not self._knows(len(reqs), only_likeliest):
            return []
        limits, costs = [self._limit(req) for req in reqs], self._costs[only_likeliest]
        turns = []
        for drafter in range(len(self._drafters)):
            prospects = [self._prospect(drafter, req, limit) for req, limit in zip(reqs, limits, strict=True)]
            turns.append(self._turn(drafter, prospects, costs))
        turns = sorted((turn for turn in turns if any(turn.most)), key=lambda turn: -turn.speed)
        for i, (req, limit) in enumerate(zip(reqs, limits, strict=True)):
            self._note_rest(req, self._of(req), not limit or any(turn.most[i] for turn in turns))
        return turns

    def _knows(self, batch: int, only_likeliest: bool) -> bool:
        """Whether it was measured not long ago what a pass of so many requests takes without drafts."""
        costs = self._costs[only_likeliest]
        return costs.knows(batch) and costs.age(batch, self._passes) <= STALE

    def _promise_without(self, batch: int, only_likeliest: bool) -> float:
        costs = self._costs[only_likeliest]
        return batch / costs.seconds(batch) if costs.has(batch) else 0.0

    def is_worth_asking(self, turn: Turn, reqs: Sequence[Req], counts: Sequence[int], by: Sequence[int | None]) -> bool:
        """Whether it pays to ask one more drafter for the next pass of `reqs`, of which `counts[i]` already have drafts,
        of the drafter `by[i]`. The plan weighed each drafter for all requests; now it is known which are left for this one.
        """
        if not self._adaptive:
            return True
        costs, tokens = self._costs[self._likeliest], float(len(reqs))
        more_tokens, more_drafts, catching_up, asked = 0.0, 0.0, 0.0, []
        for req, most, count, drafter in zip(reqs, turn.most, counts, by, strict=True):
            known = self._of(req)
            if drafter is not None:
                tokens += expected_tokens(known.acceptances[drafter].rate, count)
            elif most:
                idea = known.ideas[turn.drafter].rate
                more_tokens += idea * expected_tokens(known.acceptances[turn.drafter].rate, most)
                more_drafts += idea * most
                asked.append(most)
                catching_up += self._catch_up_seconds(turn.drafter, req, most)
        size = len(reqs) + sum(counts)
        seconds = costs.seconds(coarse_size(size) if any(counts) else size)
        with_more = costs.seconds(coarse_size(size + round(more_drafts)), self._passes)
        with_more += self._proposal_seconds(turn.drafter, len(asked), max(asked)) + catching_up
        return (tokens + more_tokens) / with_more > LEAST_GAIN * tokens / seconds

    def count_idea(self, req: Req, drafter: int, had_one: bool) -> None:
        """A drafter was asked for drafts of a request."""
        self._had_ideas |= had_one
        for known in (self._of(req), self._of_all):
            known.ideas[drafter].add(1, int(had_one))

    def count_ideas(self, number: int) -> None:
        """For so many requests of the next pass, somebody has had an idea. Without any, they are asked less and less often,
        at least once in `MOST_SILENT` passes."""
        self._silent_for = 0 if number else min(2 * self._silent_for + 1, MOST_SILENT)
        self._silent_left = self._silent_for

    def count_drafts(self, req: Req, drafter: int, drafted: int, accepted: int) -> None:
        """A pass has checked drafts of a request."""
        for known in (self._of(req), self._of_all):
            known.acceptances[drafter].add(drafted, accepted)

    def count_pass(self, size: int, only_likeliest: bool, seconds: float) -> None:
        """A DECODE or VERIFY pass has taken so long, without the time of the drafters. `size`: the tokens of a DECODE, or
        the `coarse_size` of a VERIFY. The first one after something else does not count: it takes longer. Nor does what
        took no time at all, by a coarse clock."""
        self._passes += 1
        if seconds <= 0:
            return
        if self._newest == only_likeliest:
            costs = self._costs[only_likeliest]
            if costs.has(size):
                self._drift.note(seconds, costs.seconds(size))
            costs.add(size, seconds / self._drift.factor, self._passes)
        self._newest = only_likeliest

    def count_proposal(self, drafter: int, reqs: Sequence[Req], steps: int, seconds: float) -> None:
        """A drafter has proposed up to `steps` tokens for each of the requests in so many seconds. If many of their tokens
        were new to it, what it took longer than usual counts as the price of these."""
        seconds /= self._drift.factor
        costs, catch_up = self._proposal_costs[drafter][steps], self._catch_up[drafter]
        missing = sum(map(catch_up.missing, reqs))
        catch_up.note_seen(reqs)
        if missing and costs.knows(len(reqs)):
            more = max(seconds - costs.seconds(len(reqs)), 0.0)
            catch_up.add(more, missing, self._passes)
            self.excuse(more * self._drift.factor)
        else:
            costs.add(len(reqs), seconds, self._passes)

    def excuse(self, seconds: float) -> None:
        """So many seconds before the next pass do not tell how fast passes are."""
        self._promises.excuse(seconds)

    def interrupt(self) -> None:
        """An EXTEND pass has been made: what follows it takes longer, and is not measured."""
        self._promises.end()
        self._newest = None

    def _limit(self, req: Req) -> int:
        """The most drafts that a request may get: not so many that a token would be left over."""
        if req.params.logits_processors:  # they may keep state, and must see each token once
            return 0
        if req.matcher is not None and not req.matcher.takes_drafts:
            return 0
        return max(min(self._num_draft_tokens, req.params.max_new_tokens - req.num_output_tokens - 1), 0)

    def _of(self, req: Req) -> _Known:
        known = self._known.get(req)
        if known is None:
            known = self._known[req] = self._newly_known()
        return known

    def _known_of_all(self) -> _Known:
        ideas, acceptances = ([Acceptance(memory=8 * MEMORY) for _ in self._drafters] for _ in range(2))
        return _Known(ideas, acceptances)

    def _newly_known(self, hopeful: bool = True) -> _Known:
        """Of a new request, what others had is expected, or, `hopeful`, something between that and what was hoped for at
        first."""

        def hoped(shares: Sequence[Acceptance]) -> list[Acceptance]:
            return [Acceptance(max(known.rate, (EXPECTED + known.rate) / 2 if hopeful else 0.0)) for known in shares]

        return _Known(hoped(self._of_all.ideas), hoped(self._of_all.acceptances))

    def _prospect(self, drafter: int, req: Req, limit: int) -> Prospect:
        known, late = self._of(req), self._catch_up_seconds(drafter, req, limit)
        return Prospect(limit, known.ideas[drafter].rate, known.acceptances[drafter].rate, late)

    def _turn(self, drafter: int, prospects: Sequence[Prospect], costs: PassCosts) -> Turn:
        """How many drafts each request gets: those that bring most, as many as make the pass fastest."""
        batch, most = len(prospects), [0] * len(prospects)
        largest = max(GROWTH * max(costs.largest, batch), FEW_ROWS)
        drafts = [(p.idea * p.rate**j, j, i, p) for i, p in enumerate(prospects) for j in range(1, p.limit + 1)]
        drafts.sort(key=lambda draft: (-draft[0], draft[1]))
        without = costs.seconds(batch)
        best, promise, chosen = LEAST_GAIN / self._promises.trust(batch) * batch / without, 0.0, 0
        tokens, ideas, size, steps, proposing, catching_up = float(batch), 0.0, 0, 0, 0.0, 0.0
        for count, (value, j, _, prospect) in enumerate(drafts[: largest - batch], start=1):
            tokens, ideas = tokens + value, ideas + prospect.idea
            if batch + count > size:
                size = coarse_size(batch + count)
                with_drafts = costs.seconds(size, self._passes)
            if j > steps:
                steps, proposing = j, self._proposal_seconds(drafter, batch, j)
            if j == 1:
                catching_up += prospect.catch_up
            seconds = without + ideas / count * (with_drafts - without) + proposing
            if tokens / (seconds + catching_up) > best:
                best, promise, chosen = tokens / (seconds + catching_up), tokens / seconds, count
        for _, _, i, _ in drafts[:chosen]:
            most[i] += 1
        steps, size = max(most), coarse_size(batch + chosen)
        is_known = costs.has(size) and self._proposal_costs[drafter][steps].has(batch)
        return Turn(drafter, most, best, promise if is_known else 0.0)

    def _proposal_seconds(self, drafter: int, num_reqs: int, steps: int) -> float:
        """How long so many steps take for so many requests; a hopeful guess if other numbers of steps were measured."""
        costs = self._proposal_costs[drafter]
        for known in (*range(steps, len(costs)), *range(steps - 1, 0, -1)):
            if costs[known].largest:
                return costs[known].seconds(num_reqs, self._passes) * min(steps / known, 1.0)
        return 0.0

    def _catch_up_seconds(self, drafter: int, req: Req, drafts: int) -> float:
        """The seconds that it takes to catch up on a request, divided by the number of passes that it still needs with so
        many drafts."""
        seconds = self._catch_up[drafter].seconds(req, self._passes)
        if not seconds:
            return 0.0
        of_a_pass = 1 + expected_tokens(self._of(req).acceptances[drafter].rate, drafts)
        return seconds * min(of_a_pass / (req.params.max_new_tokens - req.num_output_tokens), 1.0)

    def _note_rest(self, req: Req, known: _Known, drafted: bool) -> None:
        """Forget what is known about a request that has had no drafts for long: its text may have changed."""
        if drafted:
            known.rested = 0
            return
        known.rested += self._plan_length
        if known.rested >= known.patience:
            fresh = self._known[req] = self._newly_known(hopeful=known.patience >= HOPE_AGAIN)
            fresh.patience = min(2 * known.patience, LAST_DOUBT)
