"""A cluster in virtual time: real trees and feeds, queues that are served one prompt at a time, and no model.

Events and reports reach the routers late. Everything follows from what is fed in, so the same traffic gives the same run.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanoinfer.cache.block_events import BlockStored, EventBatch, block_hashes
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cluster import LeastLoaded, PrefixHash, PrefixRouter, RoundRobin
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policy import Policy, RoutedRequest
from nanoinfer.cluster.simulate.replica import Clock
from tests.helpers.trees import make_cache, put

COSTS = PassCosts(0.005, 0.001, 0.0005, 0.0)  # 1,000 prompt tokens per second
EVENT_S = 0.05
Make = Callable[[Callable[[], float]], Policy]  # from a clock


@dataclass
class Done:
    """What became of a request."""

    replica: str
    arrived: float
    prompt_tokens: int
    cached_tokens: int
    first_token: float

    @property
    def waited(self) -> float:
        return self.first_token - self.arrived


@dataclass
class FakeReplica:
    """A tree and a queue."""

    name: str
    size: int
    queue: list[tuple[RoutedRequest, int]] = field(default_factory=list)  # and the router that has sent it
    is_busy: bool = False

    def __post_init__(self) -> None:
        self.tree = make_cache(self.size)
        self.feed = BlockFeed(self.tree, 16, source=self.name, clock=lambda: 0.0)
        self.sent = 0

    def cached(self, request: RoutedRequest) -> int:
        return len(self.tree.match_prefix([*request.token_ids][:-1], request.extra_key).indices)

    def keep(self, request: RoutedRequest) -> None:
        missing = len(request.token_ids) - self.tree.token_to_kv_pool.available_size()
        if missing > 0:
            self.tree.evict(missing)
        put(self.tree, [*request.token_ids], request.extra_key)
        self.feed.cut()


class FakeCluster(Clock):
    """`routers` policies in front of `replicas` replicas, on this clock; requests go to the routers in turn.

    `size`: slots of a tree. Events are EVENT_S late.
    """

    def __init__(self, make: Make, replicas: int = 4, routers: int = 1, size: int = 1 << 14):
        super().__init__()
        self.routers, self.size = [make(self) for _ in range(routers)], size
        self.replicas: dict[str, FakeReplica] = {}
        self.done: dict[str, Done] = {}
        self.arrived: dict[str, float] = {}
        self.arrivals = 0
        self.retried = Counter[str]()
        for i in range(replicas):
            self.join(f"replica-{i}")

    # --- what can happen -------------------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        self.replicas[name] = FakeReplica(name, self.size)
        for router in self.routers:
            router.add_replica(name)

    def leave(self, name: str) -> None:
        """It dies, and its requests are sent elsewhere."""
        gone = self.replicas.pop(name)
        for router in self.routers:
            router.remove_replica(name)
        for request, number in gone.queue:
            self.retried[request.request_id] += 1
            self._send(request, number)

    def arrive(self, seconds: float, request: RoutedRequest) -> None:
        number, self.arrivals = self.arrivals % len(self.routers), self.arrivals + 1
        self.arrived[request.request_id] = seconds
        self.at(seconds, lambda: self._send(request, number))

    # --- what came of it -------------------------------------------------------------------------------------------

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that was cached."""
        done = self.done.values()
        return sum(each.cached_tokens for each in done) / sum(each.prompt_tokens for each in done)

    @property
    def mean_wait(self) -> float:
        """Seconds until the first token."""
        return sum(each.waited for each in self.done.values()) / len(self.done)

    def counts(self) -> Counter[str]:
        """How many requests each replica had."""
        return Counter(each.replica for each in self.done.values())

    # --- how it works ----------------------------------------------------------------------------------------------

    def _send(self, request: RoutedRequest, number: int) -> None:
        replica = self.replicas[self.routers[number].choose(request)]
        replica.queue.append((request, number))
        self._serve(replica)

    def _serve(self, replica: FakeReplica) -> None:
        if replica.is_busy or not replica.queue:
            return
        replica.is_busy = True
        request, number = replica.queue[0]
        cached, tokens = replica.cached(request), len(request.token_ids)
        seconds = COSTS.extend_seconds(1, tokens - cached, 0)

        def computed() -> None:
            if self.replicas.get(replica.name) is not replica:
                return
            replica.queue.pop(0)
            replica.is_busy = False
            name, count, router = request.request_id, request.max_new_tokens, self.routers[number]
            self.done[name] = Done(replica.name, self.arrived[name], tokens, cached, self.now)
            replica.keep(request)
            self.after(EVENT_S, lambda: self._tell(replica))
            router.note_first_token(name, cached)
            self.after(count * COSTS.seconds_per_pass, lambda: router.note_end(name, count))
            self._serve(replica)

        self.after(seconds, computed)

    def _tell(self, replica: FakeReplica) -> None:
        if self.replicas.get(replica.name) is not replica:
            return
        batches = replica.feed.since(replica.sent) or []
        replica.sent += len(batches)
        for router in self.routers:
            for batch in batches:
                assert router.note_events(replica.name, batch)


# --- policies and traffic ------------------------------------------------------------------------------------------


def router(**options: Any) -> Make:
    return lambda clock: PrefixRouter(COSTS, clock=clock, **options)


def request(name: str, tokens: list[int], max_new_tokens: int = 8, **fields: Any) -> RoutedRequest:
    return RoutedRequest(name, tokens, max_new_tokens, **fields)


def tokens_of(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50_000, size=length).tolist()


def stored(name: str, tokens: list[int], seq: int = 0) -> EventBatch:
    return EventBatch(seq, 0.0, [BlockStored(block_hashes(tokens, 16), None, tokens, 16, None, None)], name)


def chats(cluster: FakeCluster, users: int = 48, turns: int = 5, seconds: float = 1.5) -> None:
    """Conversations under one of eight system prompts; a turn repeats everything before it."""
    rng = np.random.default_rng(7)
    systems = [tokens_of(100 + i, 200) for i in range(8)]
    for user in range(users):
        history, start = list(systems[user % 8]), float(rng.uniform(0, 4))
        for turn in range(turns):
            history = history + tokens_of(1000 * user + turn, 120)
            cluster.arrive(start + turn * seconds, request(f"{user}.{turn}", history))


POLICIES: dict[str, Make] = {
    "round robin": lambda clock: RoundRobin(),
    "least loaded": lambda clock: LeastLoaded(),
    "prefix hash": lambda clock: PrefixHash(),
    "prefix router": router(),
}


def burst(make: Make, size: int = 30, prefix_tokens: int = 1000, **options: Any) -> FakeCluster:
    """Requests with one new prefix, all within the time that it takes to compute it."""
    cluster = FakeCluster(make, **options)
    prefix = tokens_of(1, prefix_tokens)
    for i in range(size):
        cluster.arrive(0.01 * i, request(f"{i}", prefix + tokens_of(50 + i, 20)))
    cluster.run()
    return cluster


def times_computed(cluster: FakeCluster) -> int:
    return sum(done.cached_tokens == 0 for done in cluster.done.values())
