"""A small cluster for the checks of notebook 17: replicas that compute one prompt after the other, in virtual time."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

BLOCK, STORY = 16, 256  # tokens of a block, and of a story
PASS, TOKEN, REPORT, DECODE = 0.01, 0.001, 0.02, 0.1  # seconds: of a pass, a token, until events are known, an answer
REPLICAS = ("A", "B", "C")


@dataclass
class Seen:
    """What a policy is told of a replica, with the fields of the notebook's `View`."""

    name: str
    cached: int
    queued: int
    requests: int


@dataclass(frozen=True)
class Arrival:
    """A request for a story, with `own` tokens after it that no other request has."""

    at: float
    story: int
    own: int = 0


@dataclass
class _Server:
    held: set[int] = field(default_factory=set)  # stories that are computed here
    known: set[int] = field(default_factory=set)  # those of which events have come
    waiting: list[tuple[Arrival, int]] = field(default_factory=list)  # with the tokens that are expected of each
    serving: int | None = None  # the tokens that were expected of the request in service
    requests: int = 0


@dataclass
class Outcome:
    """The time to the first token of each request, and how many prompt tokens were computed."""

    seconds: list[float] = field(default_factory=list)
    computed: int = 0

    @property
    def mean(self) -> float:
        """Seconds to the first token, on average."""
        return sum(self.seconds) / len(self.seconds)


Policy = Callable[[Arrival, Sequence[Seen]], Any]


def simulate(arrivals: Sequence[Arrival], policy: Policy) -> Outcome:
    """Serve them all. `policy` returns one of the views; nothing is evicted."""
    servers, outcome, order = {name: _Server() for name in REPLICAS}, Outcome(), count()
    events: list[tuple[float, int, Callable[[float], None]]] = []

    def at(when: float, do: Callable[[float], None]) -> None:
        heapq.heappush(events, (when, next(order), do))

    def arrive(arrival: Arrival, now: float) -> None:
        views = [_view(name, server, arrival) for name, server in servers.items()]
        view = policy(arrival, views)
        server = servers[view.name]
        server.waiting.append((arrival, STORY + arrival.own - view.cached))
        server.requests += 1
        if server.serving is None:
            begin(server, now)

    def begin(server: _Server, now: float) -> None:
        arrival, server.serving = server.waiting.pop(0)
        new = arrival.own + (0 if arrival.story in server.held else STORY)
        outcome.computed += new
        server.held.add(arrival.story)
        at(now + PASS + TOKEN * max(new, 1), lambda end: finish(server, arrival, end))

    def finish(server: _Server, arrival: Arrival, now: float) -> None:
        outcome.seconds.append(now - arrival.at)
        server.serving = None
        at(now + REPORT, lambda _: server.known.add(arrival.story))
        at(now + DECODE, lambda _: leave(server))
        if server.waiting:
            begin(server, now)

    def leave(server: _Server) -> None:
        server.requests -= 1

    for arrival in arrivals:
        at(arrival.at, lambda now, arrival=arrival: arrive(arrival, now))  # type: ignore[misc]
    while events:
        now, _, do = heapq.heappop(events)
        do(now)
    return outcome


def _view(name: str, server: _Server, arrival: Arrival) -> Seen:
    queued = sum(tokens for _, tokens in server.waiting) + (server.serving or 0)
    return Seen(name, STORY if arrival.story in server.known else 0, queued, server.requests)


def least_loaded(arrival: Arrival, views: Sequence[Seen]) -> Seen:
    """The replica with the fewest requests."""
    return min(views, key=lambda view: view.requests)


def weighed(arrival: Arrival, views: Sequence[Seen]) -> Seen:
    """Seconds ahead and seconds missing; no memory of what was sent."""
    tokens = STORY + arrival.own
    return min(views, key=lambda view: TOKEN * (view.queued + tokens - view.cached) + PASS * view.requests)


def by_story(arrival: Arrival, views: Sequence[Seen]) -> Seen:
    """Each story to one replica."""
    return views[arrival.story % len(views)]
