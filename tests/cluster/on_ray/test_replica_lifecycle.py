"""What Serve does with replicas by what they report: more of them, another one; and replicas of several processes."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.cluster.costs import PassCosts
from tests.cluster.on_ray.conftest import OPTIONS
from tests.helpers.cluster_clients import bodies, expected, stream
from tests.helpers.waiting import HANG_S, until

pytestmark = pytest.mark.soak
SLOW = PassCosts(1e-3, 0.05, 1e-3, 0.0)  # 20 prompt tokens per second
NUMBERS = count()  # each cluster has a name of its own


@pytest.fixture
def deployed(nodes: Any) -> Iterator[Callable[..., Any]]:
    """`deployed(ReplicaSettings(...), ...)` deploys such a cluster: a Watcher."""
    from nanoinfer.cluster.serve.applications import deploy, remove
    from nanoinfer.cluster.serve.settings import ClusterSettings
    from nanoinfer.server.settings import ServerSettings
    from tests.helpers.ray_cluster import Watcher

    made: list[Any] = []

    def make(*args: Any, **fields: Any) -> Any:
        settings = ClusterSettings(
            *args, name=f"lifecycle-{next(NUMBERS)}", drain_timeout_s=1.0, health_check_period_s=1.0, **fields
        )
        made.append(settings)
        deploy(settings, ServerSettings(served_model_name="story"))
        return Watcher(settings)

    yield make
    for settings in made:
        remove(settings)


def test_there_are_more_replicas_while_prompt_tokens_wait(deployed: Any, port: int) -> None:
    """Serve decides after half a minute of it."""
    from nanoinfer.cluster.serve.settings import ReplicaSettings

    options = {**OPTIONS, "max_context_len": 1024, "chunked_prefill_size": 64}  # 3 seconds per pass
    slow = ReplicaSettings("sleeping", options, threads=1, costs=SLOW, sleeps=True)
    watcher = deployed(slow, 1, 2, queued_tokens_per_replica=100.0)
    assert len(watcher.names()) == 1

    async def wait_in_line() -> int:
        prompts = [[number] * 900 for number in range(10, 14)]
        url = f"http://127.0.0.1:{port}"
        waiting = [asyncio.create_task(stream(url, {"prompt": each, "max_tokens": 2})) for each in prompts]
        try:
            return await asyncio.to_thread(until, lambda: len(watcher.names()) == 2, "a second replica")
        finally:
            for task in waiting:
                task.cancel()

    assert asyncio.run(wait_in_line())


def test_a_replica_whose_engine_has_ended_is_replaced(deployed: Any, answers: Any, llm: LLM) -> None:
    from nanoinfer.cluster.policies import ROUGH_COSTS
    from nanoinfer.cluster.serve.settings import ReplicaSettings
    from nanoinfer.engine.engine_loop import loop_of

    watcher = deployed(ReplicaSettings(options=OPTIONS, threads=1, costs=ROUGH_COSTS), 2)
    until(lambda: len(watcher.names()) == 2, "both replicas")
    ended = watcher.names()[0]
    watcher.send(ended, lambda engine: loop_of(engine).end())
    asked = bodies(4, 24)
    assert answers(asked) == expected(llm, asked)
    until(lambda: ended not in watcher.names() and len(watcher.names()) == 2, "another replica")


def test_a_replica_may_be_a_model_that_is_split(deployed: Any, answers: Any, llm: LLM) -> None:
    from nanoinfer.cluster.policies import ROUGH_COSTS
    from nanoinfer.cluster.serve.settings import ReplicaSettings

    split = ReplicaSettings(options={**OPTIONS, "tensor_parallel_size": 2}, threads=1, costs=ROUGH_COSTS)
    watcher = deployed(split, 2, cpus_per_replica=2.0, replica_timeout_s=HANG_S)
    until(lambda: len(watcher.names()) == 2, "both replicas")
    asked = bodies(6, 24)
    assert answers(asked) == expected(llm, asked)
