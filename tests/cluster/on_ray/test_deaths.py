"""Whatever dies, no token is lost and none comes twice: clients get what one engine would have given them. Here it dies at
any moment; see test_certain_deaths.py for what dies at a certain one."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.request import urlopen

import pytest

from nanoinfer import LLM
from tests.cluster.on_ray.conftest import OPTIONS
from tests.helpers.cluster_clients import bodies, expected, stream
from tests.helpers.waiting import HANG_S, until

pytestmark = pytest.mark.soak
MAX_TOKENS = 150


@pytest.fixture(scope="module")
def settings() -> Any:
    from nanoinfer.cluster.policies import ROUGH_COSTS
    from nanoinfer.cluster.serve.settings import ClusterSettings, ReplicaSettings

    replica = ReplicaSettings(options=OPTIONS, threads=1, silence_s=5.0, costs=ROUGH_COSTS)
    return ClusterSettings(
        replica, silence_s=5.0, drain_timeout_s=12.0, health_check_period_s=1.0, health_check_timeout_s=8.0
    )


def test_an_ingress_that_has_served_nothing_yet_can_say_how_the_engines_are(watcher: Any, port: int) -> None:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_S) as answer:
        assert b"vllm:num_requests_running" in answer.read()


def test_requests_go_where_their_prefix_lies(watcher: Any, answers: Any) -> None:
    """The ingress hears what the trees hold: a prompt goes to the replica that has its beginning."""
    before = {name: watcher.visit(name, prompt_tokens) for name in watcher.names()}
    prompt = "There was once a very old and very wise bear who lived all alone in a cave on top of the hill. " * 3
    asked = [{"prompt": f"{prompt}{i}", "max_tokens": 2, "temperature": 0} for i in range(6)]
    for body in asked:
        assert answers([body])[0][-1] is None
    grown = {name: watcher.visit(name, prompt_tokens) - before[name] for name in before}
    assert sorted(map(bool, grown.values())) == [False, True], grown


def prompt_tokens(engine: Any) -> int:
    return int(engine.stats().prompt_tokens)


def test_the_process_of_an_engine_hangs(watcher: Any, answers: Any, llm: LLM) -> None:
    """It does not die: it just says nothing any more. Its calls move when it has been silent for too long, and another
    replica takes its place."""
    from tests.helpers.ray_cluster import freeze_at_work

    damaged: list[str] = []

    def damage() -> None:
        damaged.append(watcher.busy())
        watcher.send(damaged[0], freeze_at_work)

    asked = bodies(8, MAX_TOKENS)
    assert answers(asked, damage) == expected(llm, asked)
    until(lambda: len(set(watcher.names()) - set(damaged)) == 2, "the replacement of the replica")


def test_the_replicas_are_replaced_piece_by_piece_while_requests_go_on(
    watcher: Any, settings: Any, answers: Any, llm: LLM
) -> None:
    from nanoinfer.cluster.serve.applications import deploy

    before = set(watcher.names())
    newer = replace(settings, replica=replace(settings.replica, options={**OPTIONS, "schedule_policy": "fcfs"}))
    asked = bodies(12, MAX_TOKENS)
    assert answers(asked, lambda: deploy(newer)) == expected(llm, asked)
    until(lambda: not before & set(watcher.names()) and len(watcher.names()) == 2, "the replacement of both replicas")
    for name in watcher.names():
        assert watcher.visit(name, lambda engine: engine.config.schedule_policy) == "fcfs"


def test_the_ingress_is_replaced_while_requests_go_on(watcher: Any, settings: Any, answers: Any, llm: LLM) -> None:
    from nanoinfer.cluster.serve.applications import deploy
    from nanoinfer.server.settings import ServerSettings

    newer = replace(settings, replica=replace(settings.replica, options={**OPTIONS, "schedule_policy": "fcfs"}))
    asked = bodies(8, MAX_TOKENS)
    swap = partial(deploy, newer, ServerSettings(served_model_name="story", max_completions=7))
    assert answers(asked, swap) == expected(llm, asked)
    assert "must not exceed 7" in answers([{"prompt": ["x"] * 8}])[0][-1]


def test_a_client_that_leaves_frees_its_slots(watcher: Any, port: int) -> None:
    from tests.helpers.ray_cluster import running

    async def leave() -> None:
        begun = asyncio.Event()
        reading = asyncio.create_task(stream(f"http://127.0.0.1:{port}", bodies(1, 900)[0], begun))
        await begun.wait()
        reading.cancel()

    asyncio.run(leave())
    until(lambda: not any(watcher.visit(name, running) for name in watcher.names()), "the end of an aborted request")
    for name in watcher.names():
        watcher.visit(name, lambda engine: engine.check_integrity())


def test_the_end_waits_for_what_has_been_accepted(watcher: Any, settings: Any, answers: Any, llm: LLM) -> None:
    from ray import serve

    from nanoinfer.cluster.serve.applications import remove

    asked = bodies(8, MAX_TOKENS)
    assert answers(asked, lambda: remove(settings)) == expected(llm, asked)
    assert not serve.status().applications
