"""WaitingQueue: the requests that wait for admission, and the order in which they are considered."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

import numpy as np

from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.config import EngineConfig
from nanoinfer.registry import SCHEDULE_POLICIES
from nanoinfer.requests.req import Req
from nanoinfer.scheduler.policy import Policy


class WaitingQueue:
    """Requests in order of arrival, with retracted ones in front (the last retracted first: it had come furthest).

    They are considered in the policy's order (among the `policy_window` requests that have waited longest), with two
    exceptions. These go to the front and stay there until they fit:

    - **retracted** requests, and resumed ones that had been admitted before: their callers have seen some of their tokens.
    - **overtaken** requests: `lpm` and `dfs-weight` prefer what is cached, and this keeps other requests from starving.
      Requests are numbered 0, 1, 2, ... as they arrive, and `left` counts those that have left the queue (admitted for
      the first time, paused, or ended while waiting). Request i goes to the front once `left >= i + max_overtakes`.

    This gives a bound: **at most `max_overtakes` requests that arrived after request i are admitted before it.** Why?
    Suppose one of them is admitted now, and j <= i is the request that has waited longest. All of 0..j-1 have left.
    Request j has not moved to the front, so `left < j + max_overtakes`. So fewer than `max_overtakes` others have left,
    and only those can have overtaken i before. Under `fcfs` no request is ever overtaken, except while it waits for its
    adapter.
    """

    def __init__(self, config: EngineConfig, radix_cache: RadixCache):
        self._reqs: OrderedDict[Req, None] = OrderedDict()
        self._radix_cache = radix_cache
        self._policy_name = config.schedule_policy
        self._policy: Policy = SCHEDULE_POLICIES[config.schedule_policy]
        self.in_order = config.schedule_policy == "fcfs"  # True: a request that must wait holds up those behind it
        self._window, self._max_overtakes = config.policy_window, config.max_overtakes
        self._rng = np.random.default_rng(config.random_seed)
        self.arrivals = self.left = 0
        self._ranked: list[Req] = []
        self._ranked_for: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)

    def __contains__(self, req: object) -> bool:
        return req in self._reqs

    def add(self, req: Req) -> None:
        """Queue a request that has just arrived."""
        req.ticket = self.arrivals
        self.arrivals += 1
        self._reqs[req] = None

    def put_back(self, req: Req) -> None:
        """Put a request that had been admitted before at the front of the queue."""
        self._reqs[req] = None
        self._reqs.move_to_end(req, last=False)

    def remove(self, req: Req) -> None:
        """Take out a request that was admitted or paused, or that has ended."""
        del self._reqs[req]
        if not req.num_admissions:
            self.left += 1

    def goes_first(self, req: Req) -> bool:
        """True when no other request may be admitted before `req`, which is the first in the queue."""
        return bool(req.num_admissions) or self.left >= req.ticket + self._max_overtakes

    def candidates(self) -> Iterator[Req]:
        """Yield requests in the order in which admission considers them. When the caller admits one, it must remove it
        before it asks for the next one.

        Ends after a request that goes first but was not removed.
        """
        ranked: Iterator[Req] | None = None
        while self._reqs:
            first = next(iter(self._reqs))
            if self.goes_first(first):
                yield first
                if first in self._reqs:
                    return
                continue
            if ranked is None:
                ranked = iter(self._in_policy_order())
            following = next((req for req in ranked if req in self._reqs), None)
            if following is None:
                return
            yield following

    def _in_policy_order(self) -> list[Req]:
        """The requests that have waited longest, in the policy's order.

        They are ranked again only after an arrival or an insertion into the tree. So a step that can admit nothing
        costs little, however many requests wait. (Eviction only makes prefixes shorter, so the order stays good enough.)
        """
        made_for = (self.arrivals, self._radix_cache.insertions)
        if made_for != self._ranked_for or not any(req in self._reqs for req in self._ranked):
            longest_waiting = list(islice(self._reqs, self._window))
            self._ranked = list(self._policy(longest_waiting, self._radix_cache, self._rng))
            if set(self._ranked) != set(longest_waiting):
                raise RuntimeError(f"schedule_policy={self._policy_name!r}: must return every request that it is given")
            self._ranked_for = made_for
        return self._ranked
