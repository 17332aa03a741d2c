"""The certain core of the death tests: who dies does so at a certain token, and clients get what one engine gives."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM
from tests.cluster.on_ray.conftest import OPTIONS
from tests.helpers.cluster_clients import bodies, expected
from tests.helpers.waiting import HANG_S, Worker, until

MAX_TOKENS, FATAL_TOKEN = 40, 20


@pytest.fixture(scope="module")
def settings() -> Any:
    """Two replicas. A machine that is merely slow is not taken for one that is dead."""
    from nanoinfer.cluster.policies import ROUGH_COSTS
    from nanoinfer.cluster.serve.settings import ClusterSettings, ReplicaSettings

    replica = ReplicaSettings(options=OPTIONS, threads=1, silence_s=HANG_S, costs=ROUGH_COSTS)
    return ClusterSettings(
        replica, silence_s=30.0, replica_timeout_s=HANG_S, health_check_period_s=1.0, health_check_timeout_s=HANG_S
    )


def test_a_cluster_answers_as_one_engine_does(watcher: Any, answers: Any, llm: LLM) -> None:
    asked = bodies(8, MAX_TOKENS)
    assert answers(asked) == expected(llm, asked)


@pytest.mark.parametrize("streamed", [True, False])
def test_the_process_of_an_engine_dies(watcher: Any, answers: Any, llm: LLM, streamed: bool, tmp_path: Path) -> None:
    """Streams go on with the next token. Who has got nothing yet gets all of it from another replica."""
    from tests.helpers.ray_deaths import at_token, die

    mark = tmp_path / "mark"
    watcher.tell_all(at_token(FATAL_TOKEN, mark, die))
    asked = bodies(8, MAX_TOKENS)[0 if streamed else 1 :: 2]
    twice = [body for body in asked for _ in range(2)]
    found, wanted = answers(twice), expected(llm, twice)
    assert mark.exists(), "nobody has died"
    assert found == wanted


def test_the_ingress_dies(watcher: Any, answers: Any, llm: LLM, tmp_path: Path) -> None:
    """With it go the router, and the connections of clients: what they have is right, and who asks again gets all. The
    replicas forget what nobody reads."""
    import ray

    from tests.helpers.ray_cluster import running
    from tests.helpers.ray_deaths import at_token, wait_for

    mark, go_on = tmp_path / "mark", tmp_path / "go on"
    watcher.tell_all(at_token(FATAL_TOKEN, mark, partial(wait_for, go_on)))
    asked = bodies(8, MAX_TOKENS)
    wanted = expected(llm, asked)
    asking = Worker(answers, asked)
    until(mark.exists, "a replica that waits at the token")
    (ingress,) = [each for each in ray.util.list_named_actors(True) if "#Ingress#" in each["name"]]
    ray.kill(ray.get_actor(ingress["name"], namespace=ingress["namespace"]))
    found = asking.result()
    go_on.touch()
    assert any(error is not None for *_, error in found), "nobody has noticed"
    for (tokens, text, _, error), (all_tokens, all_text, *_) in zip(found, wanted, strict=True):
        assert all_tokens[: len(tokens)] == tokens
        assert all_text.startswith(text)
        assert error is not None or tokens == all_tokens

    def answered() -> bool:
        found[:] = answers(asked)
        return all(error is None for *_, error in found)

    until(answered, "the return of the ingress")
    assert found == wanted
    until(lambda: not any(watcher.visit(name, running) for name in watcher.names()), "the end of its calls")


def test_a_node_dies(nodes: Any, watcher: Any, answers: Any, llm: LLM, tmp_path: Path) -> None:
    from tests.helpers.ray_deaths import at_token, hang

    mark = tmp_path / "mark"
    watcher.tell_all(at_token(FATAL_TOKEN, mark, hang))
    asked = bodies(8, MAX_TOKENS)
    wanted = expected(llm, asked)
    asking = Worker(answers, asked)
    until(mark.exists, "a replica that hangs at the token")
    nodes.kill_node(mark.read_text())
    assert asking.result() == wanted
    nodes.nodes.append(nodes.add_node())
    watcher.tell_all(lambda engine: engine.check_integrity())
