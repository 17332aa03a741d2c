"""Routers of large simulations: the rules of the policies in nanoinfer.cluster, on runs in place of blocks, and on arrays.

Each keeps account of the requests that it sent itself. What other routers have sent, it learns from reports (`hear`).
"""

from abc import ABC, abstractmethod

import numpy as np

from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.simulate.request import SimRequest
from nanoinfer.cluster.simulate.run_cache import Key
from nanoinfer.cluster.simulate.run_index import Pending, RunIndex
from nanoinfer.cluster.simulate.segments import chain, mixed

HASHED_TOKENS = 64  # so many tokens of a prompt decide in PrefixHash, as in plain_policies.py
PREFILL_WEIGHT, TIE = 2.0, 0.05  # as in prefix_router.py
FIRST_GUESS, OUTPUT_MEMORY, MOST_ROUTERS = 128.0, 32, 64  # likewise: how many tokens a request produces

# Rows of an account of replicas: requests; seconds of prefill that wait; seconds by which each DECODE takes longer.
REQUESTS, WAIT, SLOWDOWN = range(3)


class BlockRouter(ABC):
    """`own` [3, replicas]: the account of the requests that this router has sent and that have not ended (see above).
    `others`: that of the other routers, by the last report."""

    def __init__(self, replicas: int, costs: PassCosts, index: RunIndex, seed: int = 0):
        if replicas < 1:
            raise ValueError(f"replicas={replicas}: must be at least 1")
        self.costs, self.index = costs, index
        self.own, self.others = np.zeros((3, replicas)), np.zeros((3, replicas))
        self.fresh = np.zeros((3, replicas))  # what was sent since the last report
        self.factor = 1.0  # how many routers of this one's kind there seem to be
        self.replicas = replicas
        self._rng = np.random.default_rng(seed)
        self._sent: dict[int, tuple[float, float]] = {}  # what each request adds to WAIT and to SLOWDOWN
        self._output_tokens = FIRST_GUESS

    @abstractmethod
    def pick(self, request: SimRequest, keys: list[Key]) -> tuple[int, int]:
        """The replica for this request, and how many of its prompt's tokens are cached there as far as is known."""

    def prepare(self, request: SimRequest) -> None:  # noqa: B027 - nothing is needed
        """Nothing."""

    def choose(self, request: SimRequest) -> int:
        """Choose by `pick`, and count the request as sent."""
        replica, cached = self.pick(request, chain(request.turn.prompt))
        tokens = request.turn.prompt_tokens
        wait = self.costs.prefill_seconds(tokens, min(cached, tokens - 1))
        slowdown = self.costs.seconds_per_decode_row + tokens * self.costs.seconds_per_context_token
        self._sent[request.id] = wait, slowdown
        self.own[:, replica] += (1, wait, slowdown)
        if self.factor > 1:
            self.fresh[:, replica] += (1, wait, slowdown)
        return replica

    def first_token(self, request: SimRequest) -> None:
        """Its prompt is computed."""
        wait, slowdown = self._sent[request.id]
        self._sent[request.id] = 0.0, slowdown
        self.own[WAIT, request.replica] -= wait

    def end(self, request: SimRequest) -> None:
        """It is over."""
        wait, slowdown = self._sent.pop(request.id)
        self.own[:, request.replica] -= (1, wait, slowdown)
        self._output_tokens += (request.turn.answer.length - self._output_tokens) / OUTPUT_MEMORY

    def hear(self, everybody: np.ndarray) -> None:
        """What replicas report: the account of all routers together."""
        self.others = np.maximum(everybody - self.own, 0.0)
        own = self.own[REQUESTS].sum()
        self.factor = min(1 + self.others[REQUESTS].sum() / max(own, 1.0), MOST_ROUTERS)
        self.fresh[:] = 0.0


class RoundRobin(BlockRouter):
    """One after another."""

    _next = -1

    def pick(self, request: SimRequest, keys: list[Key]) -> tuple[int, int]:
        self._next = (self._next + 1) % self.replicas
        return self._next, 0


class LeastLoaded(BlockRouter):
    """The one with the fewest requests; among equals, any."""

    def pick(self, request: SimRequest, keys: list[Key]) -> tuple[int, int]:
        requests = self.own[REQUESTS] + self.others[REQUESTS]
        return int(self._rng.choice(np.flatnonzero(requests <= requests.min() + 0.5))), 0


class PrefixHash(BlockRouter):
    """By a hash of the parts of the prompt that begin within its first HASHED_TOKENS tokens, whatever the load."""

    def pick(self, request: SimRequest, keys: list[Key]) -> tuple[int, int]:
        at, chosen = 0, keys[0]
        for key, segment in zip(keys, request.turn.prompt, strict=True):
            if at >= HASHED_TOKENS:
                break
            chosen, at = key, at + segment.length
        return mixed(chosen) % self.replicas, 0


class Prefix(BlockRouter):
    """PrefixRouter's rule: the work that is ahead, and twice the prefill of what is not cached.

    A run that was sent somewhere a moment ago counts as cached there. Replicas whose costs are almost equal are chosen
    by how much they have cached, then by a hash, so that several routers send a new prefix to the same one.
    """

    def __init__(self, replicas: int, costs: PassCosts, index: RunIndex, seed: int = 0):
        super().__init__(replicas, costs, index, seed)
        self._pending = Pending()
        self._keys: dict[int, list[Key]] = {}
        self._salts = np.array([mixed(number) for number in range(replicas)], dtype=np.uint64)

    def pick(self, request: SimRequest, keys: list[Key]) -> tuple[int, int]:
        # Between two reports, the others send what this one sends: where they all see little work, all of them go.
        turn, (_, wait, slowdown) = request.turn, self.own + self.others + (self.factor - 1) * self.fresh
        ahead = wait + min(turn.answer.length, self._output_tokens) * slowdown
        total = turn.prompt_tokens
        whole = PREFILL_WEIGHT * self.costs.prefill_seconds(total)
        found = list[tuple[float, int, int]]()  # cost, replica, tokens cached there
        matched = total
        for key, segment in zip(reversed(keys), reversed(turn.prompt), strict=True):
            left = PREFILL_WEIGHT * self.costs.prefill_seconds(total, min(matched, total - 1))
            for known in (self.index, self._pending):
                holder = known.least_loaded(key, ahead)
                if holder is not None:
                    found.append((float(ahead[holder]) + left, holder, matched))
            matched -= segment.length
        tie = TIE * self.costs.prefill_seconds(total)
        least = float(ahead.min()) + whole
        limit = min(least, *(cost for cost, _, _ in found)) + tie if found else least + tie
        best = max((each for each in found if each[0] <= limit), key=lambda each: each[2], default=None)
        if best is None:
            best = limit, self._by_hash(np.flatnonzero(ahead + whole <= limit), keys[-1]), 0
        self._remember(request, keys, best[1])
        return best[1], best[2]

    def end(self, request: SimRequest) -> None:
        """As BlockRouter; by now its replica has reported what it holds."""
        super().end(request)
        assert request.replica is not None
        self._pending.remove(request.replica, self._keys.pop(request.id))

    def _by_hash(self, candidates: np.ndarray, key: Key) -> int:
        """One of them, the same for every router."""
        salted = (self._salts[candidates] ^ np.uint64(key)) * np.uint64(0x9E3779B97F4A7C15)
        return int(candidates[salted.argmax()])

    def _remember(self, request: SimRequest, keys: list[Key], replica: int) -> None:
        self._keys[request.id] = keys
        self._pending.add(replica, keys)
        if self.index.only is not None:
            self.index.only.update(keys, chain((*request.turn.prompt, request.turn.answer))[-1:])


BLOCK_POLICIES: dict[str, type[BlockRouter]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-hash": PrefixHash,
    "prefix": Prefix,
}
