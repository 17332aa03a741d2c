"""Retraction: which request gives way when a DECODE cannot have its slots, and how admission learns from it.

Admission takes a risk: most requests end long before `max_new_tokens`, so it sets aside only a share (NewTokenRatio) of
what the running requests may still produce, and more of them run. When that was too little, and not even eviction frees
enough, a running request is retracted: its computed tokens go to the tree, unlocked; its row and its other slots are
freed; and it waits again, ahead of every request that was never admitted. When it is admitted again, one EXTEND computes
what the tree no longer has of its prompt *and* its output so far, and it goes on with its next token as if nothing had
happened: tokens, random numbers (a function of seed and token index), log-probabilities, penalties and text
are all kept in the Req.

**Order.** Fewest output tokens first (SGLang's order): such a request loses the least if the tree cannot keep them. One
whose prompt is not yet computed has none and goes first; among equals the one that arrived last.

**Why every request makes progress.** A retraction happens only while a DECODE pass is made, and that pass runs: at
least one request stays in it, because one alone always has room (it was refused on arrival if its longest would not fit
into the whole pool, and everything else is then evictable). The pass gives each of its requests a token, and tokens are
never taken back. So two requests cannot retract each other forever: at most `Σ max_new_tokens` passes can produce a
token. New requests cannot keep a retracted one out either: while it waits, no request is admitted for the first time.
Those it waits for (the running requests, and those retracted later, which are in front of it) are a fixed group with so
many tokens left, and end one by one.
"""

from collections.abc import Sequence

from nanoinfer.requests.req import Req

INITIAL_RATIO = 0.7
FLOOR_SHARE = 0.14  # of the initial ratio
DECAY_STEPS = 600  # decode passes from the initial ratio down to the floor
HEADROOM_TOKENS = 20  # decode passes that a retraction should buy


def first_to_retract(reqs: Sequence[Req]) -> Req:
    """Which of the requests that hold slots gives way first: fewest output tokens, among equals the last to arrive."""
    return min(reqs, key=lambda req: (req.num_output_tokens, -req.ticket))


class NewTokenRatio:
    """The share that admission sets aside of the tokens which requests may still produce: SGLang's `new_token_ratio`.

    With c = `schedule_conservativeness`:

    - It starts at `min(0.7 c, 1)`, and is there again whenever the engine has run out of work.
    - Every DECODE pass without a retraction lowers it by the same amount, so that 600 of them bring it down to its
      floor, `min(0.7 · 0.14 c, 1)`: as long as all goes well, more and more requests run side by side.
    - A retraction raises it to the share that the requests left running have turned out to need, plus 20 tokens each:
      `min((Σ output tokens + 20 · requests) / Σ max_new_tokens, 1)`, when that is more.

    From c = 10.3 on the floor is 1 as well (0.7 · 0.14 · 10.3 > 1), so the share is always 1: every token is set aside,
    fewer requests run, and none is ever retracted.
    """

    def __init__(self, schedule_conservativeness: float = 1.0):
        self.initial = min(INITIAL_RATIO * schedule_conservativeness, 1.0)
        self.floor = min(INITIAL_RATIO * FLOOR_SHARE * schedule_conservativeness, 1.0)
        self.value = self.initial

    def reset(self) -> None:
        """The engine is idle."""
        self.value = self.initial

    def decay(self) -> None:
        """A DECODE pass had its slots."""
        self.value = max(self.value - (self.initial - self.floor) / DECAY_STEPS, self.floor)

    def rise(self, left: Sequence[Req]) -> None:
        """A request was retracted; `left` are those that go on."""
        produced = sum(req.num_output_tokens for req in left) + HEADROOM_TOKENS * len(left)
        self.value = max(self.value, min(produced / sum(req.params.max_new_tokens for req in left), 1.0))
