"""Simulation: puts replicas, a router and traffic together, runs them, and notes everything."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from nanoinfer.cache.block_events import EventBatch
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policies import POLICIES, make_policy
from nanoinfer.cluster.policy import Policy, RoutedRequest, check_count
from nanoinfer.cluster.simulate.outcome import EverythingSent, Outcome
from nanoinfer.cluster.simulate.replica import Clock, Replica
from nanoinfer.cluster.simulate.sessions import Session, SessionRun, SimRequest
from nanoinfer.cluster.simulate.traces import Trace
from nanoinfer.config import EngineConfig

REPORT_S = 0.002  # after which the router learns of a first token or an end
EVENT_DELAY_S = 0.01  # after which it knows what a replica holds
EVENT_BLOCK_SIZE = 16


@dataclass(frozen=True)
class ClusterSettings:
    """What is simulated: replicas of this `config`, with these `costs`, and a router with this `policy`. ValueError that
    names a field which is out of range."""

    replicas: int
    policy: str
    costs: PassCosts
    config: EngineConfig

    def __post_init__(self) -> None:
        check_count("replicas", self.replicas, least=1)
        if self.policy not in POLICIES:
            raise ValueError(f"policy={self.policy!r}: must be one of {', '.join(POLICIES)}")


class Simulation:
    """One run of one cluster: replicas, a router that knows only what it is told, and traffic."""

    def __init__(self, settings: ClusterSettings):
        self.settings, self.clock = settings, Clock()
        self.policy = self._new_policy()
        self.replicas = {
            f"replica-{number}": Replica(
                number, settings.config, settings.costs, self.clock, self._first_token, self._end
            )
            for number in range(settings.replicas)
        }
        self._everything, self._outcome = EverythingSent(), Outcome(settings.replicas)
        self._reported = dict.fromkeys(self.replicas, 0)  # how many batches of events of each replica
        for name, replica in self.replicas.items():
            self.policy.add_replica(name)
            if settings.policy == "prefix":
                feed = BlockFeed(replica.cache.radix_cache, EVENT_BLOCK_SIZE, clock=self.clock, source=name)
                replica.after_pass = partial(self._report, feed, name)

    def run(self, trace: Trace, seconds: float, warm_up: float = 0.0, finish: bool = False) -> Outcome:
        """Serve the sessions that begin in so many seconds. What is sent in the first `warm_up` seconds is not measured: it
        fills the caches. Stops after `seconds`, or begins from rest and stops when all sessions have ended (`finish`).
        ValueError if nothing is left to measure."""
        if not 0 <= warm_up < seconds:
            raise ValueError(f"warm_up={warm_up!r}: must be at least 0 and less than seconds={seconds!r}")
        return self.serve(trace.sessions(seconds, from_rest=finish), warm_up, math.inf if finish else seconds)

    def serve(self, sessions: Iterable[Session], measured_from: float = 0.0, stop_at: float = math.inf) -> Outcome:
        """Serve these sessions, which come in the order of their starts and are made as they are needed, until all have
        ended, or `stop_at`; returns what happened. What is sent before `measured_from` only warms the caches up."""
        self._outcome = Outcome(len(self.replicas), measured_from)
        self._next_session(iter(sessions))
        self.clock.run(until=stop_at)
        self._outcome.measured_until = self.clock.now
        return self._outcome

    # --- sessions ----------------------------------------------------------------------------------------------------

    def _next_session(self, sessions: Iterator[Session]) -> None:
        session = next(sessions, None)
        if session is not None:
            self.clock.at(max(session.start, self.clock.now), lambda: self._begin(session, sessions))

    def _begin(self, session: Session, others: Iterator[Session]) -> None:
        run = SessionRun(session)
        for number in run.first():
            self._send_later(run, number)
        self._next_session(others)

    def _send_later(self, run: SessionRun, number: int) -> None:
        self.clock.after(run.session.turns[number].think_s, lambda: self._send(run, number))

    def _send(self, run: SessionRun, number: int) -> None:
        ideal_tokens = self._everything.send(run.session.turns[number])
        request = SimRequest(self._outcome.sent, run, number, self.clock.now, ideal_tokens)
        self._outcome.sent += 1
        routed = RoutedRequest(str(request.id), request.prompt_ids().tolist(), request.turn.answer.length)
        replica = self.replicas[self.policy.choose(routed)]
        request.replica = replica.number
        replica.submit(request)

    # --- what the router is told, a little later ---------------------------------------------------------------------

    def _first_token(self, request: SimRequest) -> None:
        self.clock.after(REPORT_S, lambda: self.policy.note_first_token(str(request.id), request.cached_tokens))

    def _end(self, request: SimRequest) -> None:
        """A request has ended. Its session goes on."""
        outcome = self._outcome
        self.clock.after(REPORT_S, lambda: self.policy.note_end(str(request.id), request.output_tokens))
        outcome.ended += 1
        if request.sent >= outcome.measured_from:
            outcome.measured.append(request)
        self._everything.end(request.turn)
        for number in request.run.answered(request.number):
            self._send_later(request.run, number)

    def _report(self, feed: BlockFeed, replica: str) -> None:
        """A pass of a replica has ended, which has stored and removed blocks."""
        batches = feed.since(self._reported[replica])
        assert batches is not None
        self._reported[replica] += len(batches)
        if batches:
            self.clock.after(EVENT_DELAY_S, lambda: self._tell_blocks(replica, batches))

    def _tell_blocks(self, replica: str, batches: Sequence[EventBatch]) -> None:
        for batch in batches:
            self.policy.note_events(replica, batch)

    def _new_policy(self) -> Policy:
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
