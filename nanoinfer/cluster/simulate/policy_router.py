"""PolicyRouter: a policy of nanoinfer.cluster in the simulation, and how replicas report to policies."""

from collections.abc import Callable, Sequence

from nanoinfer.cache.block_events import EventBatch
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.plain_policies import LeastLoaded, PrefixHash, RoundRobin
from nanoinfer.cluster.policy import Policy, ReplicaLoad, RoutedRequest
from nanoinfer.cluster.prefix_router import PrefixRouter
from nanoinfer.cluster.simulate.clock import Clock
from nanoinfer.cluster.simulate.replica import Replica
from nanoinfer.cluster.simulate.request import SimRequest
from nanoinfer.config import EngineConfig

POLICIES = ("round-robin", "least-loaded", "prefix-hash", "prefix")


def make_policy(
    name: str, costs: PassCosts, config: EngineConfig, block_size: int, clock: Callable[[], float]
) -> Policy:
    """The policy of this name, for replicas with these costs and settings. ValueError for an unknown name."""
    if name not in POLICIES:
        raise ValueError(f"policy={name!r}: must be one of {', '.join(POLICIES)}")
    if name == "prefix":
        chunk = config.chunked_prefill_size or config.max_context_len
        return PrefixRouter(
            costs,
            block_size=block_size,
            chunk_tokens=chunk,
            max_running_requests=config.max_running_requests,
            clock=clock,
        )
    return {"round-robin": RoundRobin, "least-loaded": LeastLoaded, "prefix-hash": PrefixHash}[name]()


class PolicyRouter:
    """A Router around a Policy. Replica number `i` has the name `names[i]`."""

    def __init__(self, policy: Policy, replicas: int):
        self.policy = policy
        self.names = [f"replica-{number}" for number in range(replicas)]
        self._numbers = {name: number for number, name in enumerate(self.names)}
        for name in self.names:
            policy.add_replica(name)

    def prepare(self, request: SimRequest) -> None:
        """Make its tokens, as a tokenizer would."""
        self._next = RoutedRequest(str(request.id), request.token_ids.tolist(), request.turn.answer.length)

    def choose(self, request: SimRequest) -> int:
        """As Policy's, for the request that was prepared."""
        return self._numbers[self.policy.choose(self._next)]

    def first_token(self, request: SimRequest) -> None:
        """Tell the policy."""
        self.policy.note_first_token(str(request.id), request.cached_tokens)

    def end(self, request: SimRequest) -> None:
        """Tell the policy."""
        self.policy.note_end(str(request.id), request.output_tokens)

    def events(self, replica: int, batch: EventBatch) -> None:
        """Tell the policy. RuntimeError if it misses a batch: nothing is lost in a simulation."""
        if not self.policy.note_events(self.names[replica], batch):
            raise RuntimeError(f"{self.names[replica]}: batch {batch.seq} came, but one before it did not")

    def load(self, replica: int, load: ReplicaLoad) -> None:
        """Tell the policy."""
        self.policy.note_load(self.names[replica], load)


class FeedReporter:
    """After each pass of a replica, tells routers what its tree holds, `delay_s` later. Set it as `Replica.after_pass`."""

    def __init__(
        self, replica: Replica, routers: Sequence[PolicyRouter], clock: Clock, block_size: int, delay_s: float
    ):
        self._number, self._routers, self._clock, self._delay_s = replica.number, routers, clock, delay_s
        self._feed = BlockFeed(replica.cache.radix_cache, block_size, clock=clock, source=f"replica-{replica.number}")
        self._seq = 0

    def __call__(self) -> None:
        """A pass has ended."""
        self._feed.cut()
        batches = self._feed.since(self._seq)
        if batches is None:
            raise RuntimeError(f"batch {self._seq} is gone, although it was asked for after each pass")
        self._seq += len(batches)
        if batches:
            self._clock.after(self._delay_s, lambda: self._tell(batches))

    def _tell(self, batches: Sequence[EventBatch]) -> None:
        for router in self._routers:
            for batch in batches:
                router.events(self._number, batch)


def load_of(replica: Replica, router: int) -> ReplicaLoad:
    """What a replica would report to a router now: the requests of all the others."""
    reqs = [req for req in (*replica.scheduler.waiting, *replica.scheduler.running) if replica.router_of(req) != router]
    prompts = [req.prompt_len - req.kv_len for req in reqs if not req.num_output_tokens]
    return ReplicaLoad(len(prompts), sum(prompts), len(reqs) - len(prompts))
