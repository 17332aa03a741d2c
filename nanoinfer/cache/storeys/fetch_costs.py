"""FetchCosts: whether it pays to fetch K/V, or is faster to compute it again. Both are measured."""

from collections import deque
from collections.abc import Callable

RECENT = 8  # fetches whose fastest counts: a slow one tells more about the machine's other work than about fetching
TRY_AGAIN = 16  # how many fetches are declined before one is made to measure anew


class FetchCosts:
    """Compares seconds per token. `computing`: what computing takes, in EXTEND passes so far; 0 as long as it is not known.

    As long as one of the two is not known, it pays: fetching is how it becomes known.
    """

    def __init__(self, computing: Callable[[], float]):
        self._computing = computing
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._declined = 0

    @property
    def computing(self) -> float:
        """What computing takes; 0 as long as it is not known."""
        return self._computing()

    @property
    def fetching(self) -> float:
        """What fetching takes; 0 as long as it is not known."""
        return min(self._recent, default=0.0)

    def pays(self) -> bool:
        """Whether to fetch now."""
        computing, fetching = self.computing, self.fetching
        if not computing or not fetching or fetching < computing:
            return True
        self._declined += 1
        return self._declined % TRY_AGAIN == 0

    def note(self, tokens: int, seconds: float) -> None:
        """So many tokens were fetched in so many seconds."""
        self._recent.append(seconds / tokens)
