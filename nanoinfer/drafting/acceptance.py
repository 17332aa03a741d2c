"""Acceptance: how likely the next draft is right, by how often drafts were right so far."""

from dataclasses import dataclass

EXPECTED = 0.6  # before anything is known
WEIGHT = 2.0  # how many drafts that expectation is worth
MEMORY = 48.0  # how many of the last drafts are remembered


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
