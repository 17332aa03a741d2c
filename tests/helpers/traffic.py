"""Random requests to a FakeServer: they share beginnings on purpose, and what they must come to is known."""

from typing import Any

import numpy as np

from nanoinfer.requests.req import FinishReason, Req
from tests.helpers.fakes import FakeServer, expected_output


def random_request(server: FakeServer, rng: np.random.Generator, history: list[Req]) -> Req:
    """A request that often begins like another one, or goes on where another one ended."""
    page_size = server.config.page_size
    limit = server.pool.size - page_size
    start: list[int] = []
    if history and rng.random() < 0.7:
        other = history[int(rng.integers(len(history)))]
        start = other.token_ids[: int(rng.integers(other.num_tokens // 2, other.num_tokens)) + 1].tolist()
    more = rng.integers(0, 3, size=int(rng.integers(1, 10 + page_size))).tolist()
    prompt = (start + more)[: limit // 2]
    max_new_tokens = int(rng.integers(1, min(14, limit - len(prompt))))
    return server.add(
        prompt,
        max_new_tokens,
        extra_key=[None, None, "lora"][int(rng.integers(3))],
        stop_token_ids=[0] if rng.random() < 0.5 else [],
        min_new_tokens=int(rng.integers(0, max_new_tokens + 1)),
        prompt_logprobs=bool(rng.random() < 0.1),
    )


def serve_at_random(configuration: dict[str, Any], seed: int, num_requests: int) -> None:
    """Requests arrive, run and are aborted at random; checks that each has its tokens and that every slot comes back.

    Also that the run was what it is meant to be: requests were evicted, retracted, prefilled in chunks.
    """
    rng = np.random.default_rng(seed)
    pressed = "schedule_conservativeness" in configuration
    server = FakeServer(vocab_size=3, max_running_requests=12 if pressed else 4, random_seed=seed, **configuration)
    reqs: list[Req] = []
    evicted = 0
    retracted: set[Req] = set()
    prefilling: set[Req] = set()
    while len(reqs) < num_requests or server.scheduler.waiting or server.scheduler.running:
        if len(reqs) < num_requests:
            for _ in range(int(rng.integers(0, 5 if pressed else 3))):
                reqs.append(random_request(server, rng, reqs))
        unfinished = [*server.scheduler.waiting, *server.scheduler.running]
        if unfinished and rng.random() < 0.05:
            server.abort(unfinished[int(rng.integers(len(unfinished)))])
        before = server.tree.total_size()
        server.step()
        evicted += server.tree.total_size() < before
        retracted |= {req for req in server.scheduler.waiting if req.num_retractions}
        prefilling |= {server.scheduler.prefilling} - {None}  # type: ignore[arg-type]
    for req in reqs:
        tokens, reason = expected_output(req, server.vocab_size)
        if req.finish_reason is FinishReason.ABORT:
            assert req.output_ids == tokens[: req.num_output_tokens]
        else:
            assert (req.output_ids, req.finish_reason) == (tokens, reason)
        if (
            req.num_output_tokens or not req.params.prompt_logprobs
        ):  # aborted before: known if one prompt token was missing
            assert (req.prompt_logprobs is not None) == req.params.prompt_logprobs
        assert req.prompt_logprobs in (None, [None, *map(float, range(1, req.prompt_len))])
    if not server.tree.disable:  # the run was what it is meant to be
        assert evicted
        assert sum(req.cached_tokens for req in reqs)
    assert pressed or not retracted
    assert bool(prefilling) == ("chunked_prefill_size" in configuration)
    server.check_all_free()
