"""What an engine reports of its load."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from nanoinfer.cluster.policy import ReplicaLoad

if TYPE_CHECKING:
    from nanoinfer.engine.engine import Engine


def load_of(engine: "Engine", counts: Callable[[int], bool] = lambda request_id: True) -> ReplicaLoad:
    """The requests in an engine, now. Any thread may ask, and waits for the current step to end.

    `counts`: whether a request counts, by its id: a router wants to hear of those that others have sent (`note_load`).
    Tokens of a waiting prompt count in full, although some may turn out to be cached.
    """
    with engine.turns.visit():
        reqs = [req for req in (*engine.scheduler.waiting, *engine.scheduler.running) if counts(req.request_id)]
        prompts = [req.prompt_len - req.kv_len for req in reqs if not req.num_output_tokens]
        return ReplicaLoad(len(prompts), sum(prompts), len(reqs) - len(prompts))
