"""Schedulers at random: slots and tokens stay right, and no request waits for ever; and an engine's batches at random."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import LLM
from nanoinfer.outputs import FinishReason
from nanoinfer.requests.req import Req
from nanoinfer.scheduler import admission
from tests.helpers.adapters import NAMES, Name, alone, outputs, three_adapters
from tests.helpers.fakes import FakeServer, admissions, expected_output
from tests.helpers.kernels import need_cpp

Checkpoint = Callable[..., Path]


CONFIGURATIONS = [
    {"page_size": 1, "schedule_policy": "lpm", "max_total_tokens": 40},
    {"page_size": 1, "schedule_policy": "fcfs", "max_total_tokens": 40, "eviction_policy": "lfu"},
    {"page_size": 1, "schedule_policy": "dfs-weight", "max_total_tokens": 70, "eviction_policy": "fifo"},
    {"page_size": 1, "schedule_policy": "random", "max_total_tokens": 40, "disable_radix_cache": True},
    {"page_size": 1, "schedule_policy": "lpm", "max_total_tokens": 60, "max_prefill_tokens": 10},
    {"page_size": 4, "schedule_policy": "lpm", "max_total_tokens": 64},
    {"page_size": 4, "schedule_policy": "dfs-weight", "max_total_tokens": 48, "policy_window": 2},
    {"page_size": 4, "schedule_policy": "random", "max_total_tokens": 64, "disable_radix_cache": True},
    {"page_size": 16, "schedule_policy": "lpm", "max_total_tokens": 128, "max_context_len": 128},
    {"page_size": 16, "schedule_policy": "fcfs", "max_total_tokens": 96, "max_context_len": 128},
]


CONFIGURATIONS += [  # the same in pieces, and with running requests that must give way
    {**configuration, "chunked_prefill_size": max(chunk, int(str(configuration["page_size"]))), **pressure}
    for configuration, chunk in zip(CONFIGURATIONS, (1, 2, 3, 5, 7, 4, 6, 9, 16, 31), strict=True)
    for pressure in ({}, {"schedule_conservativeness": 0.001})
]


CONFIGURATIONS += [  # some of them in groups of decode passes
    {**configuration, "num_scheduler_steps": (2, 3, 8)[i % 3]} for i, configuration in enumerate(CONFIGURATIONS[::3])
]


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


@pytest.mark.parametrize("seed", range(len(CONFIGURATIONS)))
def test_scheduling_never_changes_tokens_nor_loses_a_slot(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each configuration, with requests of its own; in half of them, two tokens are worth waiting for."""
    monkeypatch.setattr(admission, "WORTH_WAITING_FOR", (admission.WORTH_WAITING_FOR, 2)[seed // 2 % 2])
    serve_at_random(CONFIGURATIONS[seed], seed, num_requests=50)


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "random", "fcfs"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("max_overtakes", [1, 4])
def test_the_bound_holds_whatever_comes(policy: str, seed: int, max_overtakes: int) -> None:
    """With aborts, retractions, chunks and equal prompts that wait for one another."""
    rng = np.random.default_rng(seed)
    server = FakeServer(
        max_total_tokens=48,
        max_running_requests=int(rng.integers(1, 6)),
        schedule_policy=policy,
        policy_window=int(rng.choice([2, 128])),
        max_overtakes=max_overtakes,
        chunked_prefill_size=[None, 3, 40][int(rng.integers(3))],
        schedule_conservativeness=[0.001, 11.0][int(rng.integers(2))],
        random_seed=seed,
    )
    everybody: list[Req] = []
    first_admitted: list[Req] = []
    for i in range(250):
        if i < 200 and rng.random() < 0.6:
            prompt = [7] * int(rng.integers(0, 35)) + rng.integers(0, 2, size=2).tolist()
            everybody.append(server.add(prompt, max_new_tokens=int(rng.integers(1, 9))))
        waiting = [req for req in server.scheduler.waiting if not req.num_retractions]
        if waiting and rng.random() < 0.03:
            server.abort(waiting[int(rng.integers(len(waiting)))])
        first_admitted += admissions(server)
    server_limit = 2000
    while server.scheduler.waiting or server.scheduler.running:
        first_admitted += admissions(server)
        server_limit -= 1
        assert server_limit
    place = {req: i for i, req in enumerate(first_admitted)}
    assert len(place) == len(first_admitted), "admitted for the first time once"
    for req in first_admitted:
        earlier = first_admitted[: place[req]]
        assert sum(other.ticket > req.ticket for other in earlier) <= max_overtakes
    for req in everybody:
        if req.finish_reason != "abort":
            assert req.output_ids == expected_output(req, server.vocab_size)[0]
    server.check_all_free()


CPP = {"kernels": "cpp", "attention_backend": "cpp"}
ALONE: dict[tuple[tuple[int, ...], Name], list[dict[int, float]]] = {}
LOADED: dict[Path, LLM] = {}


def shared_llm(path: Path, folders: dict[str, Path]) -> LLM:
    if path not in LOADED:
        LOADED[path] = LLM(
            path, max_total_tokens=1024, max_context_len=40, max_adapters_on_device=2, adapters=folders, **CPP
        )
    return LOADED[path]


@pytest.mark.cpu
@settings(max_examples=40)
@given(data=st.data())
def test_any_batch_equals_its_requests_alone(data: st.DataObject, checkpoint: Checkpoint) -> None:
    need_cpp("float32")
    llm = shared_llm(checkpoint("llama"), three_adapters(checkpoint("llama")))
    names = data.draw(st.lists(st.sampled_from([None, *NAMES]), min_size=1, max_size=20))
    token = st.integers(5, 9)
    prompts = [data.draw(st.lists(token, min_size=1, max_size=9)) for _ in names]
    together = outputs(llm, prompts, names)
    for prompt, name, output in zip(prompts, names, together, strict=True):
        key = (tuple(prompt), name)
        if key not in ALONE:
            ALONE[key] = alone(llm, prompt, name)
        assert output.logprobs == ALONE[key]
