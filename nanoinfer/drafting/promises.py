"""Promises: whether drafts have brought what was expected of them."""

from collections import defaultdict
from dataclasses import dataclass
from math import exp

BELIEF = 32.0  # the trust at first weighs as much as so many tokens per request
MEMORY = 384.0  # how many of them are remembered
FORGIVENESS = 512.0  # after so many passes without drafts, the memory is a third
WORST = 4.0  # a plan counts as at most so many times slower than it promised: perhaps something else ran


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
            kept.fade(exp(-brought / MEMORY))
            kept.promised += min((end - start) * self._speed / self._batch, WORST * brought)
            kept.brought += brought
        self._speed = None
