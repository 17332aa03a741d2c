"""Retraction: which request gives way when there are too few slots for a DECODE, and how admission learns from it.

Admission takes a risk. Most requests end long before `max_new_tokens`, so it sets aside only a share (NewTokenRatio) of
what the running requests may still produce, and lets more of them run. If that turns out to be too little, and not even
eviction frees enough, a running request is retracted. Its computed tokens go to the tree, unlocked; its row and its other
slots are freed; and it waits again, ahead of every request that was never admitted. When it is admitted again, one EXTEND
computes those tokens of its prompt *and* of its output so far that the tree no longer has. Then it continues with its
next token as if nothing had happened: tokens, random numbers (a function of seed and token index), log-probabilities,
penalties and text are all kept in the Req.

**Order.** The request with the fewest output tokens goes first (SGLang's order), since it loses least if the tree cannot
keep them. A request whose prompt is not fully computed has none, so it goes before others. Ties: the last to arrive.

**Why every request makes progress.** A retraction happens only while a DECODE pass is planned, and that pass does run: at
least one request stays in it, because a single request always has room (if its longest output did not fit into the whole
pool, it was refused on arrival; everything else can then be evicted). The pass gives each of its requests a token, and
tokens are never taken back. So two requests cannot retract each other forever: at most `Σ max_new_tokens` passes can
produce a token. New requests cannot keep a retracted one out either: while it waits, no request is admitted for the first
time. The requests that it waits for (the running ones, and those retracted later, which are ahead of it) are a fixed
group with a limited number of tokens left, so they end one by one.
"""

from collections.abc import Sequence

from nanoinfer.requests.req import Req

INITIAL_RATIO = 0.7
FLOOR_SHARE = 0.14  # the floor, as a share of the initial ratio
DECAY_STEPS = 600  # how many decode passes take the initial ratio down to the floor
HEADROOM_TOKENS = 20  # how many further decode passes a retraction should make room for


def first_to_retract(reqs: Sequence[Req]) -> Req:
    """The first of the requests with slots to give way: the one with the fewest output tokens; ties: the last to arrive."""
    return min(reqs, key=lambda req: (req.num_output_tokens, -req.ticket))


class NewTokenRatio:
    """For what share of the tokens that requests may still produce admission sets slots aside (SGLang's `new_token_ratio`).

    With c = `schedule_conservativeness`:

    - It starts at `min(0.7 c, 1)`, and returns to that value whenever the engine runs out of work.
    - Every DECODE pass without a retraction lowers it by the same amount. After 600 of them it reaches its floor,
      `min(0.7 · 0.14 c, 1)`. So as long as all goes well, more and more requests run side by side.
    - A retraction raises it to the share that the requests still running have used so far, plus 20 tokens each:
      `min((Σ output tokens + 20 · requests) / Σ max_new_tokens, 1)`. It never lowers it.

    For c of 10.3 or more, the floor is 1 too (0.7 · 0.14 · 10.3 > 1), so the share is always 1: slots are set aside for
    every token, fewer requests run, and none is ever retracted.
    """

    def __init__(self, schedule_conservativeness: float = 1.0):
        self.initial = min(INITIAL_RATIO * schedule_conservativeness, 1.0)
        self.floor = min(INITIAL_RATIO * FLOOR_SHARE * schedule_conservativeness, 1.0)
        self.value = self.initial

    def reset(self) -> None:
        """Go back to the initial value, because the engine is idle."""
        self.value = self.initial

    def decay(self) -> None:
        """Go down by one step, because a DECODE pass got its slots without a retraction."""
        self.value = max(self.value - (self.initial - self.floor) / DECAY_STEPS, self.floor)

    def rise(self, left: Sequence[Req]) -> None:
        """Go up, because a request was retracted. `left`: the requests that continue."""
        produced = sum(req.num_output_tokens for req in left) + HEADROOM_TOKENS * len(left)
        self.value = max(self.value, min(produced / sum(req.params.max_new_tokens for req in left), 1.0))
