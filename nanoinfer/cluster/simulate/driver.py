"""Driver: users send requests, routers choose, replicas serve; and everything is noted."""

import time
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from nanoinfer.cluster.simulate.clock import Clock
from nanoinfer.cluster.simulate.everything_sent import EverythingSent
from nanoinfer.cluster.simulate.outcome import Outcome
from nanoinfer.cluster.simulate.request import SimRequest
from nanoinfer.cluster.simulate.routing import Router, SimulatedReplica
from nanoinfer.cluster.simulate.segments import VOCAB_SIZE
from nanoinfer.cluster.simulate.sessions import Session, SessionRun

SPREADS = ("requests", "users")


class Driver:
    """Runs sessions through `routers` and `replicas`, until all have ended or `stop_at`.

    A user's requests go through one router (`spread="users"`), or each through any (`spread="requests"`). The replica gets
    a request `send_s` after it was sent; the router learns of first tokens and ends `report_s` after they happened.
    """

    def __init__(
        self,
        clock: Clock,
        routers: Sequence[Router],
        spread: str = "requests",
        seed: int = 0,
        send_s: float = 0.0,
        report_s: float = 0.0,
        vocab_size: int = VOCAB_SIZE,
    ):
        if spread not in SPREADS:
            raise ValueError(f"spread={spread!r}: must be one of {', '.join(SPREADS)}")
        for name, value in (("send_s", send_s), ("report_s", report_s)):
            if not value >= 0:
                raise ValueError(f"{name}={value!r}: must be at least 0")
        if not routers:
            raise ValueError("routers: must be at least one")
        self.clock, self.routers, self._spread, self._rng = clock, routers, spread, Random(f"{seed} routers")
        self._send_s, self._report_s, self._vocab_size = send_s, report_s, vocab_size
        self.outcome, self._everything = Outcome(), EverythingSent()
        self._replicas: Sequence[SimulatedReplica] = ()
        self._sessions: Iterator[Session] = iter(())

    def run(
        self,
        replicas: Sequence[SimulatedReplica],
        sessions: Iterable[Session],
        measured_from: float = 0.0,
        stop_at: float = float("inf"),
    ) -> Outcome:
        """Run, and return what happened. Sessions come in the order of their starts, and are made as they are needed.

        `measured_from`: requests sent earlier only warm the caches up. With `stop_at`, what is still open then is counted
        in `Outcome.open`.
        """
        self._replicas, self._sessions = replicas, iter(sessions)
        outcome = self.outcome
        outcome.measured_from, outcome.sent_to = measured_from, [0] * len(replicas)
        busy = [0.0] * len(replicas)
        self._next_session()
        if measured_from > 0:
            self.clock.run(until=measured_from)
            busy = [replica.busy_seconds for replica in replicas]
        self.clock.run(until=stop_at)
        outcome.measured_until = self.clock.now
        outcome.busy_seconds = [replica.busy_seconds - b for replica, b in zip(replicas, busy, strict=True)]
        outcome.open = sum(replica.open_requests for replica in replicas)
        return outcome

    def told_first_token(self, request: SimRequest) -> None:
        """For replicas: this request has its first token."""
        router = self.routers[request.router]
        self.clock.after(self._report_s, lambda: router.first_token(request))

    def told_end(self, request: SimRequest) -> None:
        """For replicas: this request has ended. Its session goes on."""
        outcome, router = self.outcome, self.routers[request.router]
        self.clock.after(self._report_s, lambda: router.end(request))
        outcome.note_end(request)
        self._everything.end(request.turn)
        if request.run is not None:
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
        outcome = self.outcome
        request = SimRequest(
            outcome.sent_in_all, run.session.turns[number], self.clock.now, run, number, self._vocab_size
        )
        outcome.sent_in_all += 1
        request.ideal_tokens = self._everything.send(request.turn)
        count = len(self.routers)
        request.router = run.session.user % count if self._spread == "users" else self._rng.randrange(count)
        router = self.routers[request.router]
        router.prepare(request)
        began = time.thread_time()
        request.replica = chosen = router.choose(request)
        outcome.choose_seconds += time.thread_time() - began
        outcome.sent_to[chosen] += 1
        if self._send_s:
            self.clock.after(self._send_s, lambda: self._replicas[chosen].submit(request))
        else:
            self._replicas[chosen].submit(request)
