"""What the ingress and Serve's router share, without Ray, which is stood in for: the fleet, the number of replicas,
and what an ingress answers when it cannot ask them."""

import sys
from argparse import ArgumentParser
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.cache.block_events import EventBatch, Snapshot
from nanoinfer.cli.serve import add_arguments, cluster_settings
from nanoinfer.cluster.policies import POLICIES, PrefixHash, make_policy
from nanoinfer.cluster.policy import RoutedRequest
from nanoinfer.cluster.serve.fleet import Fleet, QueuedTokens
from nanoinfer.cluster.serve.protocol import Description
from nanoinfer.cluster.serve.settings import ClusterSettings
from nanoinfer.config import EngineConfig
from nanoinfer.errors import EngineClosedError, NoReplicaError
from nanoinfer.requests.request import Request
from nanoinfer.server.errors import as_api_error


def request(number: int) -> RoutedRequest:
    return RoutedRequest(f"request {number}", [1, 2, 3, number], 8)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_serves_a_fleet_whose_replicas_come_and_go(name: str) -> None:
    fleet = Fleet(make_policy(name))
    with pytest.raises(NoReplicaError):
        fleet.choose(request(0))
    changes: list[frozenset[str]] = []
    fleet.on_change = lambda: changes.append(fleet.replicas)
    fleet.set_replicas(["a", "b"])
    fleet.set_replicas(["b", "a"])
    assert changes == [{"a", "b"}]
    chosen = fleet.choose(request(1))
    assert chosen in ("a", "b")
    fleet.note_first_token("request 1", 0)
    fleet.set_replicas({"a", "b"} - {chosen})
    (other,) = {"a", "b"} - {chosen}
    assert fleet.choose(request(1)) == other, "a request that was lost goes to a replica that is there"
    fleet.note_end("request 1", 5)
    fleet.note_end("request 1")
    fleet.note_first_token("request 1", 0)
    assert fleet.choose(request(1)) == other


def test_a_replica_that_lost_a_request_is_avoided_while_there_is_another() -> None:
    fleet = Fleet(make_policy("round-robin"))
    fleet.set_replicas(["a", "b"])
    assert {fleet.choose(request(i), frozenset({"a"})) for i in range(4)} == {"b"}
    assert {fleet.choose(request(i), frozenset({"a", "b"})) for i in range(4)} == {"a", "b"}


def test_requests_that_avoid_a_replica_are_spread_over_the_others() -> None:
    """When a replica falls silent, all that it had moves at once."""
    fleet = Fleet(PrefixHash())
    fleet.set_replicas("abc")
    first = fleet.choose(request(0))
    others = [fleet.choose(request(i), frozenset({first})) for i in range(1, 21)]
    fewest, most = sorted(map(others.count, {*"abc"} - {first}))
    assert fewest >= 5, "the policy may send some of them there itself"
    assert fewest + most == 20
    assert fleet.note_end("request 3") == others[2]
    assert fleet.note_end("request 3") is None


def test_a_replica_that_does_not_take_a_request_is_not_asked_again() -> None:
    fleet = Fleet(PrefixHash())
    fleet.set_replicas("ab")
    first = fleet.choose(request(0))
    assert fleet.choose(request(0)) != first
    assert fleet.note_end("request 0") != first
    assert fleet.choose(request(0)) == first, "after an end, it is a request like any other"


def test_what_a_replica_says_after_it_has_gone_is_nothing() -> None:
    fleet = Fleet(make_policy("prefix"))
    fleet.set_replicas(["a"])
    assert not fleet.note_events("a", EventBatch(3, 0.0, [], "feed")), "batches 0 to 2 are missing"
    fleet.note_snapshot("a", Snapshot(3, [], "feed"))
    assert fleet.note_events("a", EventBatch(3, 0.0, [], "feed"))
    assert fleet.note_events("gone", EventBatch(7, 0.0, [], "feed"))
    fleet.note_snapshot("gone", Snapshot(0, []))


@pytest.mark.parametrize(
    ("queued", "replicas", "wanted"),
    [(0, 1, 1), (100, 1, 1), (101, 1, 2), (950, 2, 10), (150, 2, 2), (101, 3, 3), (100, 3, 2), (50, 2, 1), (0, 4, 3)],
)
def test_the_number_of_replicas_follows_the_queued_tokens(queued: float, replicas: int, wanted: int) -> None:
    assert QueuedTokens(100.0).wanted(queued, replicas) == wanted


def test_the_autoscaler_adds_up_what_replicas_have_recorded() -> None:
    class Context:
        aggregated_metrics = {"queued_tokens": {"a": 150.0, "b": 160.0}}  # noqa: RUF012
        target_num_replicas = 2

    assert QueuedTokens(100.0)(Context()) == (4, {})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"replicas": 0}, "replicas=0"),
        ({"replicas": 3, "max_replicas": 2}, "max_replicas=2"),
        ({"policy": "best"}, "policy='best'"),
        ({"policy_options": {"block_size": 32}}, "block_size=32"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClusterSettings(**fields)


def test_a_replica_gets_a_processor_for_each_thread_of_its_ranks() -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    options = ["--replicas", "3", "--threads", "2", "--tensor-parallel-size", "2", "--model", "story"]
    settings = cluster_settings(parser.parse_args(options))
    assert (settings.replicas, settings.cpus_per_replica, settings.replica.threads) == (3, 4, 2)
    assert settings.replica.options["tensor_parallel_size"] == 2


# --- an ingress -------------------------------------------------------------------------------------------------------

ROOM = "nanoinfer.cluster.serve"


@pytest.fixture
def remote_engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `remote_engine`, imported for one test."""
    ray = ModuleType("ray")
    ray.serve = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(import_module(ROOM), "remote_engine", None, raising=False)  # afterwards it is what it was
    monkeypatch.setitem(sys.modules, f"{ROOM}.remote_engine", ray)
    del sys.modules[f"{ROOM}.remote_engine"]
    return import_module(f"{ROOM}.remote_engine")


async def test_replicas_that_do_not_answer_are_lost_and_the_server_goes_on(remote_engine: ModuleType) -> None:
    async def ask(*_: Any) -> Any:
        raise ConnectionError("the actor died")

    fleet = SimpleNamespace(replicas={"a", "b"})
    engine = remote_engine.RemoteEngine(None, None, SimpleNamespace(fleet=fleet, ask=ask))
    engine._news = "is heard"
    with pytest.raises(EngineClosedError) as raised:
        await engine.visit_each(str)
    answer = as_api_error(raised.value)
    assert (answer.status, answer.code) == (503, "replica_lost")


def test_an_ingress_knows_the_sampling_defaults_of_the_replicas(remote_engine: ModuleType) -> None:
    """At temperature 0, `n` choices are one completion, so the server must know (see Service.is_greedy)."""
    told = Description("m", None, EngineConfig(1, 100, 100), 100, (), sampling_defaults={"temperature": 0.0})
    builder = remote_engine.RemoteModel(told).builder
    request, _ = builder.check(Request([5], SamplingParams(max_new_tokens=2)), 100)
    assert request.params.greedy
