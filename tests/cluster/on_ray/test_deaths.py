"""Whatever dies, no token is lost and none comes twice: clients get what one engine would have given them. Here it dies at
any moment; see test_certain_deaths.py for what dies at a certain one."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.request import urlopen

import pytest

from nanoinfer import LLM
from nanoinfer.bench.processes import free_port
from tests.helpers.cluster_clients import bodies, expected, stream, whole
from tests.helpers.waiting import HANG_S, until

pytestmark = pytest.mark.soak
OPTIONS = {"max_total_tokens": 4096, "max_running_requests": 8}
PORT = free_port()
URL = f"http://127.0.0.1:{PORT}"
MAX_TOKENS = 150


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", **OPTIONS)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    from tests.helpers.ray_cluster import three_nodes

    with three_nodes(PORT) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def settings() -> Any:
    from nanoinfer.cluster.policies import ROUGH_COSTS
    from nanoinfer.cluster.serve.settings import ClusterSettings, ReplicaSettings

    replica = ReplicaSettings(options=OPTIONS, threads=1, silence_s=5.0, costs=ROUGH_COSTS)
    return ClusterSettings(
        replica, silence_s=5.0, drain_timeout_s=12.0, health_check_period_s=1.0, health_check_timeout_s=8.0
    )


@pytest.fixture(scope="module")
def watcher(nodes: Any, settings: Any) -> Any:
    from nanoinfer.cluster.serve.applications import deploy
    from tests.helpers.ray_cluster import Watcher

    deploy(settings)
    return Watcher(settings)


async def damage_while_streaming(damage: Callable[[], object], asked: list[dict[str, Any]]) -> list[Any]:
    """All requests at once, half of them streamed; `damage` happens once each stream has brought something."""
    begun = [asyncio.Event() for _ in asked[::2]]
    streamed = [asyncio.create_task(stream(URL, body, event)) for body, event in zip(asked[::2], begun, strict=True)]
    waited = [asyncio.create_task(whole(URL, body)) for body in asked[1::2]]
    await asyncio.gather(*(event.wait() for event in begun))
    await asyncio.to_thread(damage)
    first, second = await asyncio.gather(*streamed), await asyncio.gather(*waited)
    return [answer.in_full for pair in zip(first, second, strict=True) for answer in pair]


def test_an_ingress_that_has_served_nothing_yet_can_say_how_the_engines_are(watcher: Any) -> None:
    with urlopen(f"{URL}/metrics", timeout=HANG_S) as answer:
        assert b"vllm:num_requests_running" in answer.read()


def test_requests_go_where_their_prefix_lies(watcher: Any) -> None:
    """The ingress hears what the trees hold: a prompt goes to the replica that has its beginning."""
    before = {name: watcher.visit(name, prompt_tokens) for name in watcher.names()}
    prompt = "There was once a very old and very wise bear who lived all alone in a cave on top of the hill. " * 3
    asked = [{"prompt": f"{prompt}{i}", "max_tokens": 2, "temperature": 0} for i in range(6)]
    for body in asked:
        assert asyncio.run(whole(URL, body)).error is None
    grown = {name: watcher.visit(name, prompt_tokens) - before[name] for name in before}
    assert sorted(map(bool, grown.values())) == [False, True], grown


def prompt_tokens(engine: Any) -> int:
    return int(engine.stats().prompt_tokens)


def test_the_process_of_an_engine_hangs(watcher: Any, llm: LLM) -> None:
    """It does not die: it just says nothing any more. Its calls move when it has been silent for too long."""
    from tests.helpers.ray_cluster import freeze_at_work

    check_replacement(watcher, llm, lambda name: watcher.send(name, freeze_at_work))


def check_replacement(watcher: Any, llm: LLM, damage: Callable[[str], object]) -> None:
    """Damage a replica at work: nothing is lost, and another one takes its place."""

    damaged: list[str] = []

    def damage_one() -> None:
        damaged.append(watcher.busy())
        damage(damaged[0])

    asked = bodies(8, MAX_TOKENS)
    assert asyncio.run(damage_while_streaming(damage_one, asked)) == expected(llm, asked)
    until(lambda: len(set(watcher.names()) - set(damaged)) == 2, "the replacement of the replica")


def test_the_replicas_are_replaced_piece_by_piece_while_requests_go_on(watcher: Any, settings: Any, llm: LLM) -> None:
    from nanoinfer.cluster.serve.applications import deploy

    before = set(watcher.names())
    newer = replace(settings, replica=replace(settings.replica, options={**OPTIONS, "schedule_policy": "fcfs"}))
    asked = bodies(12, MAX_TOKENS)
    assert asyncio.run(damage_while_streaming(lambda: deploy(newer), asked)) == expected(llm, asked)
    until(lambda: not before & set(watcher.names()) and len(watcher.names()) == 2, "the replacement of both replicas")
    for name in watcher.names():
        assert watcher.visit(name, lambda engine: engine.config.schedule_policy) == "fcfs"


def test_the_ingress_is_replaced_while_requests_go_on(watcher: Any, settings: Any, llm: LLM) -> None:
    from nanoinfer.cluster.serve.applications import deploy
    from nanoinfer.server.settings import ServerSettings

    newer = replace(settings, replica=replace(settings.replica, options={**OPTIONS, "schedule_policy": "fcfs"}))
    asked = bodies(8, MAX_TOKENS)
    swap = partial(deploy, newer, ServerSettings(served_model_name="story", max_completions=7))
    assert asyncio.run(damage_while_streaming(swap, asked)) == expected(llm, asked)
    refused = asyncio.run(whole(URL, {"prompt": ["x"] * 8}))
    assert "must not exceed 7" in refused.error


def test_the_ingress_dies_and_clients_ask_again(nodes: Any, watcher: Any, llm: LLM) -> None:
    """Streams end with their connections, and only these: what was sent is right, and who asks again with the same seed
    gets the same. The replicas forget what nobody reads."""
    import ray

    from tests.helpers.ray_cluster import running

    asked = bodies(8, MAX_TOKENS)

    def kill() -> None:
        watcher.busy()
        (ingress,) = [each for each in ray.util.list_named_actors(True) if "#Ingress#" in each["name"]]
        ray.kill(ray.get_actor(ingress["name"], namespace=ingress["namespace"]))

    wanted = expected(llm, asked)
    for (tokens, text, _, error), (all_tokens, all_text, *_) in zip(
        asyncio.run(damage_while_streaming(kill, asked)), wanted, strict=True
    ):
        assert all_tokens[: len(tokens)] == tokens
        assert all_text.startswith(text)
        assert error is not None or tokens == all_tokens
    again: list[Any] = []

    def answered() -> bool:
        again[:] = asyncio.run(damage_while_streaming(lambda: None, asked))
        return all(error is None for *_, error in again)

    until(answered, "the return of the ingress")
    assert again == wanted
    until(
        lambda: not any(watcher.visit(name, running) for name in watcher.names()), "the end of a dead ingress's calls"
    )


def test_a_client_that_leaves_frees_its_slots(watcher: Any) -> None:
    from tests.helpers.ray_cluster import running

    async def leave() -> None:
        begun = asyncio.Event()
        reading = asyncio.create_task(stream(URL, bodies(1, 900)[0], begun))
        await begun.wait()
        reading.cancel()

    asyncio.run(leave())
    until(lambda: not any(watcher.visit(name, running) for name in watcher.names()), "the end of an aborted request")
    for name in watcher.names():
        watcher.visit(name, lambda engine: engine.check_integrity())


def test_the_end_waits_for_what_has_been_accepted(watcher: Any, settings: Any, llm: LLM) -> None:
    from ray import serve

    from nanoinfer.cluster.serve.applications import remove

    asked = bodies(8, MAX_TOKENS)
    assert asyncio.run(damage_while_streaming(lambda: remove(settings), asked)) == expected(llm, asked)
    assert not serve.status().applications
