"""simulate: puts replicas, routers and traffic together, runs them, and reports."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.simulate.block_replica import BlockReplica
from nanoinfer.cluster.simulate.block_routers import BLOCK_POLICIES, BlockRouter
from nanoinfer.cluster.simulate.clock import Clock, no_collections
from nanoinfer.cluster.simulate.driver import Driver
from nanoinfer.cluster.simulate.outcome import Outcome
from nanoinfer.cluster.simulate.policy_router import FeedReporter, PolicyRouter, load_of, make_policy
from nanoinfer.cluster.simulate.replica import Replica
from nanoinfer.cluster.simulate.routing import Router, SimulatedReplica
from nanoinfer.cluster.simulate.run_index import RunIndex, RunReporter
from nanoinfer.cluster.simulate.trace import Trace
from nanoinfer.config import EngineConfig

MOST_EXACT = 32  # replicas that the engine's own scheduler and tree simulate in reasonable time
LEVELS = ("exact", "blocks")
MOST_RUNNING, LONGEST_CONTEXT = 256, 131_072  # of a replica: requests side by side, tokens


@dataclass(frozen=True)
class ClusterSettings:
    """What is simulated. ValueError that names a field which is out of range.

    - `level`: `exact` (the engine's own scheduler and tree) or `blocks` (see block_replica.py).
    - `routers` side by side; `spread`: which of them gets a request (see Driver). `index`: each of them knows what all
      replicas hold (`whole`), or only of the prompts that it has sent (`slice`; with `spread="users"`).
    - `event_delay_s`: after which routers know what a replica holds; `report_s`: after which they know of first tokens and
      ends; `load_every_s`: how often each hears what replicas have to do for the others.
    """

    replicas: int
    policy: str
    costs: PassCosts
    config: EngineConfig
    level: str = "exact"
    routers: int = 1
    spread: str = "requests"
    index: str = "whole"
    event_delay_s: float = 0.01
    report_s: float = 0.002
    send_s: float = 0.0
    load_every_s: float = 0.1
    event_block_size: int = 16
    seed: int = 0
    vocab_size: int = field(default=32_000)

    def __post_init__(self) -> None:
        for name in ("replicas", "routers", "event_block_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: must be an integer of at least 1")
        for name in ("event_delay_s", "report_s", "send_s", "load_every_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be at least 0")
        for name, allowed in (("level", LEVELS), ("index", ("whole", "slice")), ("policy", tuple(BLOCK_POLICIES))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(allowed)}")
        if self.level == "exact" and self.replicas > MOST_EXACT:
            raise ValueError(
                f"replicas={self.replicas}: must be at most {MOST_EXACT} with level='exact'; more: 'blocks'"
            )


def replica_config(slots: int) -> EngineConfig:
    """The settings of a replica with so many slots for K/V, where nothing else is asked for: a GPU's, not a laptop's."""
    return EngineConfig(
        max_running_requests=MOST_RUNNING, max_total_tokens=slots, max_context_len=min(LONGEST_CONTEXT, slots)
    )


class Simulation:
    """One run of one cluster. `run` may be called once."""

    def __init__(self, settings: ClusterSettings):
        self.settings, self.clock = settings, Clock()
        self.driver: Driver
        self.replicas: Sequence[SimulatedReplica]
        self.routers: Sequence[Router]
        if settings.level == "blocks":
            self._make_blocks()
        else:
            self._make_exact()

    def run(self, trace: Trace, seconds: float, warm_up: float = 0.0, finish: bool = False) -> Outcome:
        """Serve the sessions that begin in so many seconds. What is sent in the first `warm_up` seconds is not measured: it
        fills the caches. Stops after `seconds`, or begins from rest and stops when all sessions have ended (`finish`).
        ValueError if nothing is left to measure."""
        if not 0 <= warm_up < seconds:
            raise ValueError(f"warm_up={warm_up!r}: must be at least 0 and less than seconds={seconds!r}")
        if self.settings.load_every_s:
            self._tell_loads(seconds)
        with no_collections():
            stop_at = math.inf if finish else seconds
            return self.driver.run(self.replicas, trace.sessions(seconds, from_rest=finish), warm_up, stop_at)

    def _driver(self, routers: Sequence[Router]) -> Driver:
        one = self.settings
        return Driver(self.clock, routers, one.spread, one.seed, one.send_s, one.report_s, one.vocab_size)

    def _make_blocks(self) -> None:
        one = self.settings
        self._indexes = [
            RunIndex(one.replicas, set() if one.index == "slice" else None)
            for _ in range(one.routers if one.index == "slice" else 1)
        ]
        kind = BLOCK_POLICIES[one.policy]
        self._block_routers: list[BlockRouter] = [
            kind(one.replicas, one.costs, self._indexes[i % len(self._indexes)], one.seed + i)
            for i in range(one.routers)
        ]
        self.routers = self._block_routers
        self.driver = self._driver(self.routers)
        self.replicas = [
            BlockReplica(
                number,
                one.config,
                one.costs,
                self.clock,
                self.driver.told_first_token,
                self.driver.told_end,
                one.event_block_size,
                self._reporter(number) if one.policy == "prefix" else None,
            )
            for number in range(one.replicas)
        ]

    def _make_exact(self) -> None:
        one = self.settings
        self._policy_routers = [
            PolicyRouter(make_policy(one.policy, one.costs, one.config, one.event_block_size, self.clock), one.replicas)
            for _ in range(one.routers)
        ]
        self.routers = self._policy_routers
        self.driver = self._driver(self.routers)
        self._exact = [
            Replica(number, one.config, one.costs, self.clock, self.driver.told_first_token, self.driver.told_end)
            for number in range(one.replicas)
        ]
        self.replicas = self._exact
        if one.policy == "prefix":
            for replica in self._exact:
                replica.after_pass = FeedReporter(
                    replica, self._policy_routers, self.clock, one.event_block_size, one.event_delay_s
                )

    def _reporter(self, replica: int) -> RunReporter:
        return RunReporter(self.clock, self.settings.event_delay_s, replica, self._indexes)

    def _tell_loads(self, until: float) -> None:
        """Tell each router what the others have sent, again and again."""
        if self.settings.level == "blocks":
            everybody = np.sum([router.own for router in self._block_routers], axis=0)
            for router in self._block_routers:
                router.hear(everybody)
        else:
            for replica in self._exact:
                for number, policy_router in enumerate(self._policy_routers):
                    policy_router.load(replica.number, load_of(replica, number))
        if self.clock.now + self.settings.load_every_s < until:
            self.clock.after(self.settings.load_every_s, lambda: self._tell_loads(until))
