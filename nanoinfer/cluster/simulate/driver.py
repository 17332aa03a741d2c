"""Driver: users send requests, routers choose, replicas serve; and everything is noted."""

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Protocol

from nanoinfer.cluster.simulate.clock import Clock
from nanoinfer.cluster.simulate.outcome import EverythingSent, Outcome
from nanoinfer.cluster.simulate.replica import Replica
from nanoinfer.cluster.simulate.sessions import Session, SessionRun, SimRequest

REPORT_S = 0.002  # after which a router learns of a first token or an end


class Router(Protocol):
    """Chooses replicas. Several may stand side by side; each knows only what it is told."""

    def choose(self, request: SimRequest) -> int:
        """The number of the replica that gets this request, which counts as sent from now on."""

    def first_token(self, request: SimRequest) -> None:
        """A request that this router sent has its first token."""

    def end(self, request: SimRequest) -> None:
        """A request that this router sent has ended."""


class Driver:
    """Runs sessions through `routers`, each of which gets its share of the requests, and `replicas`."""

    def __init__(self, clock: Clock, routers: Sequence[Router], seed: int = 0):
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
