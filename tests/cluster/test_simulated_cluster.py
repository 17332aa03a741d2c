"""The simulation: nothing is lost, everything is repeatable, and figures are what an independent count says."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.simulate.block_replica import BlockReplica
from nanoinfer.cluster.simulate.clock import Clock
from nanoinfer.cluster.simulate.cluster import ClusterSettings, Simulation
from nanoinfer.cluster.simulate.driver import Driver
from nanoinfer.cluster.simulate.everything_sent import EverythingSent
from nanoinfer.cluster.simulate.outcome import Outcome
from nanoinfer.cluster.simulate.replica import Replica
from nanoinfer.cluster.simulate.report import Report
from nanoinfer.cluster.simulate.run_cache import RunCache
from nanoinfer.cluster.simulate.run_index import RunIndex
from nanoinfer.cluster.simulate.segments import Segment, chain
from nanoinfer.cluster.simulate.sessions import Session, Turn
from nanoinfer.cluster.simulate.traces import make_trace
from nanoinfer.config import EngineConfig

COSTS = PassCosts(4e-3, 2e-5, 5e-5, 3e-8, 1e-9)
CONFIG = EngineConfig(32, 60_000, 8192, chunked_prefill_size=512)
LEVELS = ("exact", "blocks")


def settings(policy: str = "round-robin", replicas: int = 2, **fields: Any) -> ClusterSettings:
    return ClusterSettings(replicas, policy, COSTS, fields.pop("config", CONFIG), **fields)


def simulated(
    one: ClusterSettings, trace: str = "chat", rate: float = 12.0, seconds: float = 5.0, **options: Any
) -> tuple[Simulation, Outcome]:
    simulation = Simulation(one)
    return simulation, simulation.run(make_trace(trace, rate, scale=0.3), seconds, **options)


# --- conservation, and the same again -------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("policy", ["least-loaded", "prefix"])
@pytest.mark.parametrize("slots", [60_000, 2500])
def test_every_request_ends_once_with_all_its_tokens(level: str, policy: str, slots: int) -> None:
    config = replace(CONFIG, max_total_tokens=slots, max_context_len=min(slots, 8192))
    simulation, outcome = simulated(settings(policy, level=level, config=config), finish=True)
    sessions = list(make_trace("chat", 12.0, scale=0.3).sessions(5.0, from_rest=True))
    turns = [turn for session in sessions for turn in session.turns]
    assert outcome.sent_in_all == outcome.ended_in_all == outcome.measured == len(turns)
    assert outcome.open == 0
    assert sum(outcome.sent_to) == len(turns)
    assert sum(outcome.output_tokens) == sum(turn.answer.length for turn in turns)
    assert sum(outcome.prompt_tokens) == sum(turn.prompt_tokens for turn in turns)
    assert all(
        0 <= cached < prompt for cached, prompt in zip(outcome.cached_tokens, outcome.prompt_tokens, strict=True)
    )
    assert min(outcome.ttft) > 0
    for replica in simulation.replicas:
        if isinstance(replica, Replica):
            replica.cache.check_integrity(replica.scheduler.running)
            assert replica.cache.token_to_kv_pool.available_size() + replica.cache.radix_cache.total_size() == slots
        else:
            assert isinstance(replica, BlockReplica)
            replica.cache.check_integrity()
            assert replica.cache.locked_tokens == 0


@pytest.mark.parametrize("level", LEVELS)
def test_the_same_seed_gives_the_same_run_and_another_does_not(level: str) -> None:
    def run(seed: int) -> tuple[list[float], list[int]]:
        simulation = Simulation(settings("prefix", level=level, routers=2, seed=seed))
        outcome = simulation.run(make_trace("chat", 12.0, seed, scale=0.3), 2.0)
        return list(outcome.ttft), outcome.sent_to

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize("level", LEVELS)
def test_one_replica_that_never_evicts_hits_what_an_unlimited_cache_would(level: str) -> None:
    config = replace(CONFIG, max_total_tokens=2_000_000)
    turns, seen, hits = [], set[int](), 0
    for number in range(30):  # one after another, so that the order of ends is the order of beginnings
        session = make_trace("chat", 1.0, scale=0.3).session(number, 0.0)
        turns += [replace(turn, think_s=1.0, after=()) for turn in session.turns]
    sessions = [Session(0, 5.0 * place, (replace(turn, think_s=0.0),)) for place, turn in enumerate(turns)]
    for turn in turns:
        keys = chain((*turn.prompt, turn.answer))
        for part, key in zip(turn.prompt, keys, strict=False):
            if key not in seen:
                break
            hits += part.length
        seen.update(keys)
    simulation = Simulation(settings(replicas=1, level=level, config=config))
    outcome = simulation.driver.run(simulation.replicas, sessions)
    assert outcome.ended_in_all == len(turns) > 80
    short = 16 * len(turns) if level == "blocks" else 2 * len(turns)  # whole blocks; the newest token; chance
    assert hits - short <= sum(outcome.cached_tokens) <= hits + 2 * len(turns)


# --- how long things take -------------------------------------------------------------------------------------------


def run_turns(kind: Any, turns: Sequence[tuple[float, Turn]], config: EngineConfig = CONFIG) -> Outcome:
    class ToTheOne:
        def prepare(self, request: object) -> None: ...

        def choose(self, request: object) -> int:
            return 0

        def first_token(self, request: object) -> None: ...

        def end(self, request: object) -> None: ...

    clock = Clock()
    driver = Driver(clock, [ToTheOne()])
    replica = kind(0, config, COSTS, clock, driver.told_first_token, driver.told_end)
    return driver.run([replica], [Session(n, at, (turn,)) for n, (at, turn) in enumerate(turns)])


@pytest.mark.parametrize("kind", [Replica, BlockReplica])
def test_a_request_alone_takes_its_passes(kind: Any) -> None:
    outcome = run_turns(kind, [(1.0, Turn((Segment(1, 100),), Segment(2, 4)))])
    first = COSTS.extend_seconds(1, 100, 100 * 101 // 2)
    decodes = sum(COSTS.decode_seconds(1, 100 + n) for n in (1, 2, 3))
    assert outcome.ttft[0] == pytest.approx(first)
    assert outcome.measured_until == pytest.approx(1.0 + first + decodes)


@pytest.mark.parametrize("kind", [Replica, BlockReplica])
def test_a_long_prompt_is_computed_in_chunks_between_decodes(kind: Any) -> None:
    waiting = Turn((Segment(1, 20),), Segment(2, 400))
    long = Turn((Segment(3, 1200),), Segment(4, 1))
    outcome = run_turns(kind, [(0.0, waiting), (0.5, long)])
    alone = run_turns(kind, [(0.5, long)])
    late = max(outcome.ttft) - alone.ttft[0]
    decode = COSTS.decode_seconds(1, 120)
    assert 2 * decode < late < 3.5 * decode  # the pass that is under way, and one after each full budget of 512


@pytest.mark.parametrize("kind", [Replica, BlockReplica])
def test_requests_with_the_same_new_prefix_compute_it_once(kind: Any) -> None:
    shared = Segment(1, 300)
    turns = [(0.0, Turn((shared, Segment(10 + n, 20)), Segment(20 + n, 2))) for n in range(4)]
    outcome = run_turns(kind, turns)
    assert sorted(outcome.cached_tokens)[0] == 0
    assert min(sorted(outcome.cached_tokens)[1:]) >= 288  # 300 in whole blocks


@pytest.mark.parametrize("kind", [Replica, BlockReplica])
def test_a_request_that_can_never_fit_is_refused_by_name(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"request 0.*must not exceed 8192"):
        run_turns(kind, [(0.0, Turn((Segment(1, 8000),), Segment(2, 300)))])


@pytest.mark.parametrize("trace", ["chat", "bursts", "agents"])
def test_the_block_level_agrees_with_the_engines_own_scheduler_and_tree(trace: str) -> None:
    found = {
        level: Report.of(simulated(settings("prefix", level=level), trace, 16.0, 6.0, warm_up=1.0)[1])
        for level in LEVELS
    }
    exact, blocks = found["exact"], found["blocks"]
    assert blocks.hit_rate == pytest.approx(exact.hit_rate, abs=0.04)
    assert blocks.ttft_p50 == pytest.approx(exact.ttft_p50, rel=0.15)
    assert blocks.ttft_mean == pytest.approx(exact.ttft_mean, rel=0.2)
    assert blocks.tokens_per_second == pytest.approx(exact.tokens_per_second, rel=0.05)


# --- policies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_knowing_caches_beats_not_knowing_them(level: str) -> None:
    found = {
        policy: Report.of(simulated(settings(policy, 4, level=level), "bursts", 24.0, 8.0, warm_up=2.0)[1])
        for policy in ("round-robin", "least-loaded", "prefix")
    }
    for other in ("round-robin", "least-loaded"):
        assert found["prefix"].hit_rate > found[other].hit_rate + 0.1
        assert found["prefix"].ttft_mean < found[other].ttft_mean


@pytest.mark.parametrize("index", ["whole", "slice"])
def test_several_routers_serve_all_users(index: str) -> None:
    spread = "users" if index == "slice" else "requests"
    one = settings("prefix", 4, level="blocks", routers=3, index=index, spread=spread)
    simulation, outcome = simulated(one, rate=24.0, finish=True)
    assert outcome.ended_in_all == outcome.sent_in_all > 100
    for router in simulation._block_routers:
        assert abs(router.own).max() < 1e-9  # nothing is left of any request


def test_a_slice_of_an_index_keeps_only_what_its_router_has_sent() -> None:
    index = RunIndex(4, only={1})
    index.note(2, 1, True)
    index.note(2, 5, True)
    assert len(index) == 1


# --- caches and settings --------------------------------------------------------------------------------------------


def test_the_least_recently_used_run_goes_first_from_its_end() -> None:
    changes = list[tuple[int, bool]]()
    cache = RunCache(64, 16, lambda key, whole: changes.append((key, whole)))
    assert cache.take([1, 2], [32, 16])
    cache.release([1, 2])
    assert cache.take([3], [32])
    assert (cache.match([1, 2], [32, 16]), cache.match([3], [32])) == (32, 32)
    assert changes == [(2, True), (1, True), (3, True), (2, False)]
    cache.check_integrity()


def test_what_is_locked_stays_and_a_take_without_room_changes_nothing() -> None:
    cache = RunCache(64, 16)
    assert cache.take([1], [48])
    assert not cache.take([2], [32])
    assert cache.match([2], [32]) == 0
    cache.release([1])
    assert cache.take([2], [32])
    assert cache.match([1], [48]) == 32
    cache.check_integrity()


@pytest.mark.parametrize("few", [5, 40])
def test_an_index_finds_the_least_loaded_holder(few: int) -> None:
    import numpy as np

    index, load = RunIndex(64), np.arange(64.0)[::-1]
    for replica in range(few):
        index.note(replica, 7, True)
    assert index.least_loaded(7, load) == few - 1
    for replica in range(few):
        index.note(replica, 7, False)
    assert index.least_loaded(7, load) is None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"replicas": 0}, "replicas=0"),
        ({"replicas": 33}, "replicas=33"),
        ({"policy": "magic"}, "policy='magic'"),
        ({"level": "rough"}, "level='rough'"),
        ({"routers": 0}, "routers=0"),
        ({"event_delay_s": -1.0}, "event_delay_s"),
    ],
)
def test_wrong_settings_are_named(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ClusterSettings(**({"replicas": 2, "policy": "prefix", "costs": COSTS, "config": CONFIG} | fields))


def test_a_run_without_measured_requests_says_so() -> None:
    with pytest.raises(ValueError, match="no request was measured"):
        Report.of(Outcome())


# --- one infinitely large cache -----------------------------------------------------------------------------------------


def test_one_cache_for_all_finds_what_was_sent_or_answered_before() -> None:
    a, b, c, d = (Segment(number, 10 * number) for number in range(1, 5))
    sent = EverythingSent()
    first = Turn((a, b), c)
    assert sent.send(first) == 0
    assert sent.send(Turn((a, b), d)) == 29  # all but the last token
    assert sent.send(Turn((a, b, c, d), a)) == 30  # its answer is not there yet
    assert sent.send(Turn((b, a), d)) == 0
    sent.end(first)
    assert sent.send(Turn((a, b, c, a), a)) == 60


@pytest.mark.parametrize("trace", ["chat", "shared"])
@pytest.mark.parametrize("level", LEVELS)
def test_eight_replicas_find_almost_as_much_as_one_cache_for_all(level: str, trace: str) -> None:
    """After the caches are warm: until then, each replica has to compute once what all of them share."""
    config = replace(CONFIG, max_total_tokens=400_000)
    simulation = Simulation(settings("prefix", replicas=8, level=level, config=config))
    report = Report.of(simulation.run(make_trace(trace, 60.0, scale=0.3), 24.0, warm_up=16.0))
    assert report.requests > 300
    assert 0.95 * report.ideal_hit_rate <= report.hit_rate <= 1.001 * report.ideal_hit_rate  # chance
