"""Tests that need Ray. They never run unasked, since starting Ray takes longer than a thousand quick tests; then they are
skipped, by name. `.ci/cluster` runs those whose outcome is certain (`-m ray`), the soak all of them (`--kinds ray`)."""

import asyncio
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM
from tests.helpers.cluster_clients import stream, whole

OPTIONS = {"max_total_tokens": 4096, "max_running_requests": 8}  # of every engine
HERE = Path(__file__).parent
NOT_INSTALLED = "Ray is not installed: pip install -e '.[cluster]'"
NOT_ASKED_FOR = "needs Ray: run by .ci/cluster, or by -m ray where Ray is installed"


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.option.markexpr  # what -m says
    is_asked_for = not chosen or chosen in ("ray", "soak")
    for item in items:
        if item.path.is_relative_to(HERE):
            if item.get_closest_marker("soak") is None:
                item.add_marker(pytest.mark.ray)
            if not is_asked_for:
                item.add_marker(pytest.mark.skip(reason=NOT_ASKED_FOR))
            elif find_spec("ray") is None:
                item.add_marker(pytest.mark.skip(reason=NOT_INSTALLED))


@pytest.fixture(scope="module")
def llm() -> LLM:
    """One engine, whose answers the cluster's must be."""
    return LLM("story", **OPTIONS)


@pytest.fixture(scope="module")
def port() -> int:
    from nanoinfer.bench.processes import free_port

    return free_port()


@pytest.fixture(scope="module")
def nodes(port: int) -> Iterator[Any]:
    from tests.helpers.ray_cluster import three_nodes

    with three_nodes(port) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def watcher(nodes: Any, settings: Any) -> Any:
    """Of a cluster that is deployed with the file's `settings`."""
    from nanoinfer.cluster.serve.applications import deploy
    from tests.helpers.ray_cluster import Watcher

    deploy(settings)
    return Watcher(settings)


@pytest.fixture(scope="module")
def answers(port: int) -> Callable[..., list[Any]]:
    """`answers(asked)`: of all requests at once; those with an even place are streamed. `damage` happens once each stream
    has brought something."""
    url = f"http://127.0.0.1:{port}"

    async def at_once(asked: list[dict[str, Any]], damage: Callable[[], object]) -> list[Any]:
        begun = [asyncio.Event() for _ in asked[::2]]
        asking = [stream(url, body, begun[i // 2]) if i % 2 == 0 else whole(url, body) for i, body in enumerate(asked)]
        tasks = [asyncio.create_task(each) for each in asking]
        await asyncio.gather(*(event.wait() for event in begun))
        await asyncio.to_thread(damage)
        return [answer.in_full for answer in await asyncio.gather(*tasks)]

    return lambda asked, damage=lambda: None: asyncio.run(at_once(asked, damage))
