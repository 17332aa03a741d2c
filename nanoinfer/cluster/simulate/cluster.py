"""Simulation: puts replicas, routers and traffic together, runs them, and notes everything."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from nanoinfer.cache.block_events import EventBatch
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policies import POLICIES, make_policy
from nanoinfer.cluster.policy import Policy, ReplicaLoad, RoutedRequest, check_count
from nanoinfer.cluster.simulate.clock import Clock
from nanoinfer.cluster.simulate.outcome import EverythingSent, Outcome
from nanoinfer.cluster.simulate.replica import Replica
from nanoinfer.cluster.simulate.sessions import Session, SessionRun, SimRequest
from nanoinfer.cluster.simulate.trace import Trace
from nanoinfer.config import EngineConfig

REPORT_S = 0.002  # after which a router learns of a first token or an end
EVENT_DELAY_S = 0.01  # after which routers know what a replica holds
LOAD_EVERY_S = 0.1  # so often, each router hears what replicas have to do for the others
EVENT_BLOCK_SIZE = 16


@dataclass(frozen=True)
class ClusterSettings:
    """What is simulated: replicas of this `config`, with these `costs`, and `routers` side by side. ValueError that names a
    field which is out of range."""

    replicas: int
    policy: str
    costs: PassCosts
    config: EngineConfig
    routers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("replicas", self.replicas, least=1)
        check_count("routers", self.routers, least=1)
        if self.policy not in POLICIES:
            raise ValueError(f"policy={self.policy!r}: must be one of {', '.join(POLICIES)}")


class PolicyRouter:
    """A Policy that knows only what it is told. Replica number `i` has the name `names[i]`."""

    def __init__(self, policy: Policy, replicas: int):
        self.policy = policy
        self.names = [f"replica-{number}" for number in range(replicas)]
        self._numbers = {name: number for number, name in enumerate(self.names)}
        for name in self.names:
            policy.add_replica(name)

    def choose(self, request: SimRequest) -> int:
        """The number of the replica that gets this request, which counts as sent from now on."""
        routed = RoutedRequest(str(request.id), request.prompt_ids().tolist(), request.turn.answer.length)
        return self._numbers[self.policy.choose(routed)]

    def first_token(self, request: SimRequest) -> None:
        """Tell the policy."""
        self.policy.note_first_token(str(request.id), request.cached_tokens)

    def end(self, request: SimRequest) -> None:
        """Tell the policy."""
        self.policy.note_end(str(request.id), request.output_tokens)


class Driver:
    """Runs sessions through `routers`, each of which gets its share of the requests, and `replicas`."""

    def __init__(self, clock: Clock, routers: Sequence[PolicyRouter], seed: int = 0):
        self.clock, self.routers, self._rng = clock, routers, Random(f"{seed} routers")
        self._everything = EverythingSent()
        self._outcome = Outcome(0)
        self._replicas: Sequence[Replica] = ()
        self._sessions: Iterator[Session] = iter(())

    def run(
        self,
        replicas: Sequence[Replica],
        sessions: Iterable[Session],
        measured_from: float = 0.0,
        stop_at: float = float("inf"),
    ) -> Outcome:
        """Run until all sessions have ended, or `stop_at`, and return what happened. Sessions come in the order of their
        starts, and are made as they are needed.

        `measured_from`: requests sent earlier only warm the caches up.
        """
        self._replicas, self._sessions = replicas, iter(sessions)
        self._outcome = Outcome(len(replicas), measured_from)
        self._next_session()
        self.clock.run(until=stop_at)
        self._outcome.measured_until = self.clock.now
        return self._outcome

    def told_first_token(self, request: SimRequest) -> None:
        """For replicas: this request has its first token."""
        router = self.routers[request.router]
        self.clock.after(REPORT_S, lambda: router.first_token(request))

    def told_end(self, request: SimRequest) -> None:
        """For replicas: this request has ended. Its session goes on."""
        outcome, router = self._outcome, self.routers[request.router]
        self.clock.after(REPORT_S, lambda: router.end(request))
        outcome.ended += 1
        if request.sent >= outcome.measured_from:
            outcome.measured.append(request)
        self._everything.end(request.turn)
        for number in request.run.answered(request.number):
            self._send_later(request.run, number)

    def _next_session(self) -> None:
        session = next(self._sessions, None)
        if session is not None:
            self.clock.at(max(session.start, self.clock.now), lambda: self._begin(session))

    def _begin(self, session: Session) -> None:
        run = SessionRun(session)
        for number in run.first():
            self._send_later(run, number)
        self._next_session()

    def _send_later(self, run: SessionRun, number: int) -> None:
        self.clock.after(run.session.turns[number].think_s, lambda: self._send(run, number))

    def _send(self, run: SessionRun, number: int) -> None:
        ideal_tokens = self._everything.send(run.session.turns[number])
        router = self._rng.randrange(len(self.routers))
        request = SimRequest(self._outcome.sent, run, number, self.clock.now, ideal_tokens, router)
        self._outcome.sent += 1
        request.replica = self.routers[router].choose(request)
        self._replicas[request.replica].submit(request)


class Simulation:
    """One run of one cluster. `run` may be called once."""

    def __init__(self, settings: ClusterSettings):
        self.settings, self.clock = settings, Clock()
        self.routers = [PolicyRouter(self._policy(), settings.replicas) for _ in range(settings.routers)]
        self.driver = Driver(self.clock, self.routers, settings.seed)
        told = self.driver.told_first_token, self.driver.told_end
        self.replicas = [
            Replica(number, settings.config, settings.costs, self.clock, *told) for number in range(settings.replicas)
        ]
        self._told = [0] * settings.replicas  # how many batches of events of each replica
        if settings.policy == "prefix":
            for replica in self.replicas:
                feed = BlockFeed(
                    replica.cache.radix_cache, EVENT_BLOCK_SIZE, clock=self.clock, source=f"replica-{replica.number}"
                )
                replica.after_pass = partial(self._report, feed, replica.number)

    def run(self, trace: Trace, seconds: float, warm_up: float = 0.0, finish: bool = False) -> Outcome:
        """Serve the sessions that begin in so many seconds. What is sent in the first `warm_up` seconds is not measured: it
        fills the caches. Stops after `seconds`, or begins from rest and stops when all sessions have ended (`finish`).
        ValueError if nothing is left to measure."""
        if not 0 <= warm_up < seconds:
            raise ValueError(f"warm_up={warm_up!r}: must be at least 0 and less than seconds={seconds!r}")
        self._tell_loads(seconds)
        stop_at = math.inf if finish else seconds
        return self.driver.run(self.replicas, trace.sessions(seconds, from_rest=finish), warm_up, stop_at)

    def _policy(self) -> Policy:
        one = self.settings
        if one.policy != "prefix":
            return make_policy(one.policy)
        options = {
            "block_size": EVENT_BLOCK_SIZE,
            "chunk_tokens": one.config.chunked_prefill_size or one.config.max_context_len,
            "max_running_requests": one.config.max_running_requests,
            "clock": self.clock,
        }
        return make_policy(one.policy, one.costs, options)

    def _report(self, feed: BlockFeed, replica: int) -> None:
        """A pass of a replica has ended: all routers learn a little later what it has stored and removed."""
        batches = feed.since(self._told[replica])
        assert batches is not None
        self._told[replica] += len(batches)
        if batches:
            self.clock.after(EVENT_DELAY_S, lambda: self._tell_blocks(replica, batches))

    def _tell_blocks(self, replica: int, batches: Sequence[EventBatch]) -> None:
        for router in self.routers:
            for batch in batches:
                router.policy.note_events(router.names[replica], batch)

    def _tell_loads(self, until: float) -> None:
        """Tell each router what the others have sent, again and again."""
        for replica in self.replicas:
            for number, router in enumerate(self.routers):
                load = ReplicaLoad.of(replica.not_from(number))
                router.policy.note_load(router.names[replica.number], load)
        if self.clock.now + LOAD_EVERY_S < until:
            self.clock.after(LOAD_EVERY_S, lambda: self._tell_loads(until))
