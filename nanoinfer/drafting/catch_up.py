"""CatchUp: what it costs a drafter to get to know tokens that it has not seen, such as a prompt."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from nanoinfer.drafting.pass_costs import PassCosts
from nanoinfer.model.captured_passes import coarse_size
from nanoinfer.requests.req import Req


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
