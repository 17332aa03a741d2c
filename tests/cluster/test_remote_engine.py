"""What a door answers when it cannot ask its replicas. Ray is not needed: it is stood in for."""

import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.cluster.serve.messages import Description
from nanoinfer.config import EngineConfig
from nanoinfer.errors import EngineClosedError
from nanoinfer.requests.request import Request
from nanoinfer.server.errors import ApiError, as_api_error
from tests.helpers.waiting import run

ROOM = "nanoinfer.cluster.serve"


@pytest.fixture
def remote_engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `remote_engine`, imported for one test."""
    ray = ModuleType("ray")
    ray.serve = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    for name in ("links", "remote_engine"):
        monkeypatch.setattr(import_module(ROOM), name, None, raising=False)  # afterwards it is what it was
        monkeypatch.setitem(sys.modules, f"{ROOM}.{name}", ray)
        del sys.modules[f"{ROOM}.{name}"]
    return import_module(f"{ROOM}.remote_engine")


def visited(remote_engine: ModuleType, fleet: Any) -> ApiError:
    """The answer to a client for whom every replica had to be asked."""

    async def ask(*_: Any) -> Any:
        raise ConnectionError("the actor died")

    engine = remote_engine.RemoteEngine(
        None, SimpleNamespace(policy="ray-prefix"), SimpleNamespace(fleet=fleet, ask=ask)
    )
    engine._news = "is heard"
    with pytest.raises((ApiError, EngineClosedError)) as raised:
        run(lambda: engine.visit_each(str))
    return as_api_error(raised.value)


def test_a_policy_that_knows_no_replicas_is_named(remote_engine: ModuleType) -> None:
    answer = visited(remote_engine, None)
    assert (answer.status, answer.code, answer.headers) == (501, "not_supported", {"x-should-retry": "false"})
    assert answer.message == "policy='ray-prefix': replicas cannot be asked one by one"


def test_replicas_that_do_not_answer_are_lost_and_the_server_goes_on(remote_engine: ModuleType) -> None:
    answer = visited(remote_engine, SimpleNamespace(replicas={"a", "b"}))
    assert (answer.status, answer.code) == (503, "replica_lost")
    assert answer.message == "none of 2 replicas answers: ConnectionError"


def test_a_door_knows_the_sampling_defaults_of_the_replicas(remote_engine: ModuleType) -> None:
    """At temperature 0, `n` choices are one completion, so the server must know (see Service.is_greedy)."""
    told = Description("m", None, EngineConfig(1, 100, 100), 100, (), sampling_defaults={"temperature": 0.0})
    builder = remote_engine.RemoteModel(told).builder
    request, _ = builder.check(Request([5], SamplingParams(max_new_tokens=2)), 100)
    assert request.params.greedy
