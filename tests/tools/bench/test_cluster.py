"""`bench cluster`: what it sends, what it counts, and that kept cells are not measured again. Traffic itself needs Ray."""

import asyncio
from collections import Counter
from random import Random

import pytest

from nanoinfer.bench.cluster import (
    SLEEPING_VOCABULARY,
    Size,
    burst,
    chat,
    figures_of,
    ideal_hits,
    run_traffic,
    setups,
)
from nanoinfer.bench.command import POLICY_NAMES, SETUPS
from nanoinfer.bench.load import Exchange
from nanoinfer.cluster.policies import POLICIES
from nanoinfer.llm import LLM
from nanoinfer.sampling_params import SamplingParams


def test_an_infinite_cache_has_the_longest_beginning_that_it_was_given() -> None:
    rng, given, hits = Random(0), list[list[int]](), 0
    exchanges = [([rng.randint(0, 2) for _ in range(rng.randint(1, 8))], Exchange(float(i))) for i in range(300)]
    for tokens, _ in exchanges:
        hits += max(
            (next((i for i, t in enumerate(tokens[:-1]) if old[i : i + 1] != [t]), len(tokens) - 1) for old in given),
            default=0,
        )
        given.append(tokens)
    assert ideal_hits(exchanges) == hits


def test_conversations_go_on_and_bursts_are_new_to_everybody() -> None:
    size = Size(seconds=2, chats=20, systems=3, turns=4, bursts=5, burst_prefixes=3, burst_clients=40)
    sessions = chat(size, seed=1)
    assert sessions == chat(size, seed=1) != chat(size, seed=2)
    assert len(sessions) == 20
    assert len({tuple(first.token_ids[: size.system]) for first, *_ in sessions}) <= 3
    assert all([len(ask.token_ids) for ask in session] == [280, 24, 24, 24] for session in sessions)
    asks = [session[0] for session in burst(size, seed=1)]
    for number, start in enumerate((0.0, 0.4, 0.8, 1.2, 1.6)):
        together = asks[40 * number : 40 * (number + 1)]
        assert all(start <= ask.at <= start + size.burst_s for ask in together)
        assert len({tuple(ask.token_ids[: size.burst_prefix]) for ask in together}) == 3
    prefixes = Counter(tuple(ask.token_ids[: size.burst_prefix]) for ask in asks)
    assert len(prefixes) == 5 * 3, "each burst has new ones"
    assert max(prefixes.values()) > 2 * min(prefixes.values()), "some are asked far more often"


def test_figures_count_hits_waits_and_what_is_wrong() -> None:
    exchanges = [
        ([1, 2, 3, 4], Exchange(0.0, times=[1.0, 2.0], token_ids=[5, 6], cached_tokens=0)),
        ([1, 2, 3, 9], Exchange(1.0, times=[1.5, 4.0], token_ids=[5, 7], cached_tokens=3)),
        ([1, 2, 3, 4, 5, 6, 8], Exchange(3.0, error="gone")),
    ]
    found = figures_of(exchanges, [[5, 6], [5, 6], [1, 1]])
    assert found == {
        "requests": 3,
        "hit_rate": 3 / 8,
        "wrong": 1,
        "failed": 1,
        "first_error": "gone",
        "ideal_hit_rate": (0 + 3 + 6) / 15,  # an answer is in the cache, too
        "ttft_p50": 0.75,
        "ttft_p99": pytest.approx(0.995),
        "output_tokens_per_second": 1.0,
    }


def test_what_one_engine_answers_is_what_cells_are_compared_with() -> None:
    known = setups("story")
    prompts = [[10, 11, 12], [20, 21]]
    params = SamplingParams(max_new_tokens=3, temperature=0, ignore_eos=True)
    alone = [output.token_ids for output in LLM("story").generate(prompts, params, use_tqdm=False)]
    assert known["threads"].answers(prompts, 3) == alone
    assert known["sleep"].answers([[5, SLEEPING_VOCABULARY - 2]], 3) == [[SLEEPING_VOCABULARY - 1, 0, 1]]


def test_sessions_are_held_over_http_and_each_turn_has_the_answers_before_it() -> None:
    assert (POLICIES, tuple(setups("story"))) == (POLICY_NAMES, SETUPS)
    llm = LLM("story", max_running_requests=4)
    size = Size(seconds=0.01, chats=2, systems=1, system=20, question=5, answer=4, turns=2)
    server = llm.serve(port=0)
    try:
        exchanges = asyncio.run(run_traffic(int(server.url.rpartition(":")[2]), "story", chat(size, 0), 4))
    finally:
        server.stop()
    assert [each.error for _, each in exchanges] == [None] * 4
    answers = setups("story")["threads"].answers([prompt for prompt, _ in exchanges], 4)
    assert [each.token_ids for _, each in exchanges] == answers
    assert sorted(len(prompt) for prompt, _ in exchanges) == [25, 25, 34, 34]
    assert all(each.due < each.times[0] for _, each in exchanges)
    assert sum(each.cached_tokens or 0 for _, each in exchanges) > 0
