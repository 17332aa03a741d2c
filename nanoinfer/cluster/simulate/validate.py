"""validate: the same traffic through real replicas and through simulated ones, and how far apart they are.

Real: each replica is an AsyncEngine in a process of its own with one thread, and the router is in this one. Simulated:
the same sessions, policy and settings, with costs that are fitted to the passes of the real run (or those that they
sleep). So the two differ neither by the speed of the machine, which changes from minute to minute, nor by what users and
router take from the replicas; what is compared is everything else: arrivals, queues, the scheduler, the cache, routing.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from nanoinfer.cache.block_events import EventBatch
from nanoinfer.cluster.costs import MeasuredPass, PassCosts, fit
from nanoinfer.cluster.pass_log import fit_served
from nanoinfer.cluster.simulate.cluster import ClusterSettings, Simulation
from nanoinfer.cluster.simulate.driver import Driver
from nanoinfer.cluster.simulate.outcome import Outcome
from nanoinfer.cluster.simulate.policy_router import PolicyRouter, make_policy
from nanoinfer.cluster.simulate.real_clock import RealClock
from nanoinfer.cluster.simulate.real_replica import Answers, RealReplica
from nanoinfer.cluster.simulate.report import Report
from nanoinfer.cluster.simulate.segments import Segment
from nanoinfer.cluster.simulate.sessions import Session, Turn
from nanoinfer.cluster.simulate.traces import make_trace
from nanoinfer.cluster.simulate.worker import WorkerSpec
from nanoinfer.config import EngineConfig

PROBES, PROBE_TOKENS, PROBE_EVERY_S = 15, 16, 0.25  # per replica, in a prompt, seconds
BLOCK_SIZE, EVENT_DELAY_S, VOCAB_SIZE = 16, 0.005, 2048
COMPARED = ("ttft_mean", "ttft_p50", "ttft_p99", "tokens_per_second")
TOLERANCE = 0.15
THINK_SCALE = 0.1  # users think for a tenth of the usual time, so that a case takes a minute
RANDOM_SHAPE = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 4}  # 27 million parameters
OPTIONS = {"max_running_requests": 32, "max_total_tokens": 8192, "max_context_len": 1024, "random_seed": 0}
# What a replica that sleeps pretends to be: so slow that its own bookkeeping, a millisecond or so, does not matter.
SLEEPING = PassCosts(0.02, 2e-4, 4e-4, 4e-7, 1e-9, 0.004, 0.0005, "invented: a replica that only sleeps")


@dataclass(frozen=True)
class Case:
    """One comparison. `rate`: requests per second and replica; sessions begin within `seconds`, and all are finished."""

    name: str
    replicas: int
    policy: str
    trace: str
    rate: float
    seconds: float
    scale: float
    spec: WorkerSpec
    seed: int = 0


@dataclass(frozen=True)
class Comparison:
    """What came out of a case. `overhead_s`: what a request's way to a replica and back takes, as measured with probes.
    `slower`: how many times as long its passes took as by the costs that the replicas measured before (or sleep)."""

    case: Case
    costs: PassCosts
    overhead_s: float
    slower: float
    measured: Report
    simulated: Report

    def ratios(self) -> dict[str, float]:
        """Simulated over measured, by the names in COMPARED."""
        measured, simulated = self.measured.as_dict(), self.simulated.as_dict()
        return {name: simulated[name] / measured[name] for name in COMPARED}

    def is_close(self, tolerance: float = TOLERANCE) -> bool:
        """Whether all ratios are within the tolerance of 1."""
        return all(abs(ratio - 1) <= tolerance for ratio in self.ratios().values())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "case": self.case.name,
            "replicas": self.case.replicas,
            "policy": self.case.policy,
            "trace": self.case.trace,
            "rate": self.case.rate,
            "seconds": self.case.seconds,
            "overhead_s": self.overhead_s,
            "slower": self.slower,
            "measured": self.measured.as_dict(),
            "simulated": self.simulated.as_dict(),
            "ratios": self.ratios(),
        }


def standard_cases(seconds: float = 30.0) -> list[Case]:
    """One and two real replicas of a random model, at three fifths of their capacity and beyond it, and six that sleep
    under each policy."""
    real = WorkerSpec("random", OPTIONS, RANDOM_SHAPE)
    sleeping = WorkerSpec(options={**OPTIONS, "max_context_len": 2048}, costs=SLEEPING)  # for longer conversations
    cases = [
        Case(f"{count} real, {what}", count, "round-robin", "chat", rate, seconds, 0.12, real)
        for count in (1, 2)
        for what, rate in (("steady", 4.0), ("overload", 20.0))
    ]
    return cases + [
        Case(f"6 asleep, {policy}", 6, policy, "chat", 6.0, seconds, 0.25, sleeping)
        for policy in ("round-robin", "least-loaded", "prefix-hash", "prefix")
    ]


def compare(case: Case, rounds: int = 2, probes: int = PROBES) -> Comparison:
    """Run a case for real, then simulated. RuntimeError when a replica's process fails."""
    config, vocab_size = EngineConfig(**case.spec.options), case.spec.shape.get("vocab_size", VOCAB_SIZE)
    trace = make_trace(case.trace, case.rate * case.replicas, case.seed, case.scale, think_scale=THINK_SCALE)
    with ExitStack() as stack:
        bench = _RealCluster(case, stack)
        known = bench.calibrated(rounds) if case.spec.costs is None else case.spec.costs
        overhead_s = bench.overhead_s(known, config, vocab_size, probes)
        router = PolicyRouter(make_policy(case.policy, known, config, BLOCK_SIZE, bench.clock), case.replicas)
        measured = bench.run(router, trace.sessions(case.seconds, from_rest=True), vocab_size)
        passes = bench.passes()
    costs = fit_served(passes, "the passes of the run") if case.spec.costs is None else case.spec.costs
    slower = sum(each.seconds for each in passes) / sum(known.seconds(each) for each in passes)
    settings = ClusterSettings(
        case.replicas,
        case.policy,
        costs,
        config,
        event_delay_s=EVENT_DELAY_S,
        report_s=overhead_s / 2,
        send_s=overhead_s,
        load_every_s=0.0,
        event_block_size=BLOCK_SIZE,
        vocab_size=vocab_size,
    )
    simulated = Simulation(settings).run(trace, case.seconds, finish=True)
    return Comparison(case, costs, overhead_s, slower, Report.of(measured), Report.of(simulated))


class _RealCluster:
    """The processes of a case, and what is done with them, one after another."""

    def __init__(self, case: Case, stack: ExitStack):
        spec = replace(case.spec, event_block_size=BLOCK_SIZE if case.policy == "prefix" else None)
        self._replicas: list[RealReplica] = []
        self._answers = Answers()
        self._driver: Driver
        self._router: PolicyRouter
        self._batches: list[tuple[int, EventBatch]] = []  # all that were told so far
        self.clock = RealClock(lambda: any(each.open_requests for each in self._replicas))
        for number in range(case.replicas):
            each = RealReplica(
                spec,
                self.clock,
                lambda request: self._driver.told_first_token(request),
                lambda request: self._driver.told_end(request),
                self._answers,
                partial(self._events, number),
            )
            self._replicas.append(stack.enter_context(each))
        for each in self._replicas:
            each.wait_until_ready()

    def calibrated(self, rounds: int) -> PassCosts:
        """What passes take in these processes, on average: measured in all at once, since they share a processor's caches
        and its way to memory."""
        with ThreadPoolExecutor(len(self._replicas)) as threads:
            passes = threads.map(lambda replica: replica.calibrate(rounds), self._replicas)
            return fit([measured for each in passes for measured in each], "measured")

    def overhead_s(self, costs: PassCosts, config: EngineConfig, vocab_size: int, probes: int) -> float:
        """How much longer a single short request takes than its pass: the median of some, sent one by one."""
        sessions = [
            Session(number, PROBE_EVERY_S * number, (Turn((Segment(-number, PROBE_TOKENS),), Segment(number, 1)),))
            for number in range(1, probes * len(self._replicas) + 1)
        ]
        router = PolicyRouter(make_policy("round-robin", costs, config, BLOCK_SIZE, self.clock), len(self._replicas))
        outcome = self.run(router, sessions, vocab_size)
        passes = [each.seconds for each in self.passes() if each.kind == "extend"]
        return max(median(outcome.ttft) - median(passes), 0.0)

    def passes(self) -> list[MeasuredPass]:
        """The passes of all replicas since the last call."""
        return [each for replica in self._replicas for each in replica.passes()]

    def run(self, router: PolicyRouter, sessions: Iterable[Session], vocab_size: int) -> Outcome:
        """Serve these sessions."""
        self._router = router
        for number, batch in self._batches:
            router.events(number, batch)
        self._driver = Driver(self.clock, [router], vocab_size=vocab_size)
        self.clock.restart()
        return self._driver.run(self._replicas, sessions)

    def _events(self, number: int, batch: EventBatch) -> None:
        self._batches.append((number, batch))
        self._router.events(number, batch)
