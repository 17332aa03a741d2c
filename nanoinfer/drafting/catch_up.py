"""CatchUp: what it costs a drafter to get to know tokens that it has not seen, such as a prompt."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from nanoinfer.requests.req import Req

MEMORY = 16  # how many measurements are remembered


class CatchUp:
    """Knows which tokens of each request a drafter has not seen, and what each of them costs it on average.

    A draft model has to compute them before it can propose anything; an index has to add them. As many tokens as one pass
    may bring, `usual`, belong to every proposal and are not counted.
    """

    def __init__(self, usual: int):
        self._usual = usual
        self._seen: WeakKeyDictionary[Req, tuple[int, int]] = WeakKeyDictionary()  # tokens, and admissions by then
        self._seconds = self._tokens = 0.0  # sums, in which older measurements count less and less

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

    def add(self, seconds: float, tokens: int) -> None:
        """It took so many seconds to catch up on so many tokens."""
        kept = 1 - 1 / MEMORY
        self._seconds, self._tokens = kept * self._seconds + seconds, kept * self._tokens + tokens

    def seconds(self, req: Req) -> float:
        """How long it takes to catch up on the request; 0 as long as nothing is known."""
        return self.missing(req) * self._seconds / self._tokens if self._tokens else 0.0
