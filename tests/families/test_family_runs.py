"""Greedy tokens of whole engine runs, with every model family, are those of transformers.

Requests come and go, share prefixes, wait, and lose cached tokens to eviction.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import transformers

from nanoinfer import LLM, Engine, RequestOutput, SamplingParams
from tests.helpers.checkpoints import FAMILIES, TINY, greedy
from tests.helpers.families import LLAMA3_ROPE, VARIANTS
from tests.helpers.rows import random_tokens

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
Arrivals = Mapping[int, Sequence[tuple[list[int], int]]]  # step → (prompt, max_new_tokens) of those that arrive then


def staggered() -> Arrivals:
    """Ten requests: three families of prefixes, repeats, prompts of one token, of a page and of one token more."""
    stem, other = random_tokens(33, seed=100), random_tokens(20, seed=101)
    return {
        0: [(stem + random_tokens(4, seed=1), 9), (other, 3), (random_tokens(1, seed=2), 12)],
        1: [(stem[:32], 5)],
        3: [(stem + random_tokens(4, seed=1), 9), (other + random_tokens(7, seed=3), 1)],
        4: [(random_tokens(40, seed=4), 8), (stem[:16] + random_tokens(9, seed=5), 6)],
        11: [(other[:17], 10), (stem, 2)],
    }


def serve(engine: Engine, arrivals: Arrivals) -> list[tuple[list[int], int, RequestOutput]]:
    """Step until all is done, requests joining on the way; every slot has one owner after every step."""
    asked: dict[int, tuple[list[int], int]] = {}
    done: dict[int, RequestOutput] = {}
    step = 0
    while engine.has_unfinished() or step <= max(arrivals):
        for prompt, num_tokens in arrivals.get(step, ()):
            params = SamplingParams(max_new_tokens=num_tokens, temperature=0, ignore_eos=True)
            asked[engine.add_request(prompt, params)] = (prompt, num_tokens)
        done.update((out.request_id, out) for out in engine.step() if out.finished)
        engine.check_integrity()
        step += 1
        assert step < 300, "the engine makes no progress"
    return [(*asked[request_id], done[request_id]) for request_id in asked]


def assert_same_tokens(
    served: Sequence[tuple[list[int], int, RequestOutput]], model: transformers.PreTrainedModel
) -> None:
    for prompt, num_tokens, out in served:
        assert out.token_ids == greedy(model, prompt, num_tokens)
        assert out.finish_reason == "length"
        assert out.prompt_tokens == len(prompt)
        assert 0 <= out.cached_tokens < len(prompt)


def assert_all_slots_come_back(engine: Engine) -> None:
    """Nothing is locked when nothing runs, and a flush empties the tree."""
    in_tree = engine.stats()["evictable_slots"]
    assert engine.stats()["protected_slots"] == 0
    assert engine.flush_cache() == in_tree
    stats = engine.stats()
    assert (stats["waiting"], stats["running"]) == (0, 0)
    assert stats["free_slots"] == stats["total_slots"]
    assert engine.model_runner.req_to_token_pool.available_size() == engine.config.max_running_requests
    engine.check_integrity()


RUNS = [
    ("llama", 1, "lpm"),
    ("llama-rope-llama3", 4, "fcfs"),
    ("llama-mqa-biases", 16, "random"),
    ("mistral-window", 1, "random"),
    ("mistral-window", 4, "dfs-weight"),
    ("mistral-head-dim", 16, "lpm"),
    ("qwen2", 1, "dfs-weight"),
    ("qwen2-window-tied", 4, "lpm"),
    ("qwen2-window-tied", 16, "fcfs"),
    ("qwen3", 1, "fcfs"),
    ("qwen3-window-bias", 4, "random"),
    ("qwen3-mqa-tied", 16, "dfs-weight"),
    ("qwen3-rope-yarn", 4, "lpm"),
    ("gemma3", 1, "lpm"),
    ("gemma3-softcap-untied-biases", 4, "fcfs"),
    ("gemma3-pattern-two-ropes", 16, "random"),
    ("phi3", 1, "random"),
    ("phi3-mqa-window-tied", 4, "dfs-weight"),
    ("qwen3-moe", 4, "lpm"),
    ("mixtral-window-tied", 1, "fcfs"),
]


UNCACHED = [RUNS[i] for i in (1, 5, 6, 12, 15, 16)]  # one of every family, and every page size twice


@pytest.mark.parametrize(
    ("variant", "page_size", "policy", "disable_radix_cache"),
    [*((*run, False) for run in RUNS), *((*run, True) for run in UNCACHED)],
)
def test_greedy_tokens_are_those_of_transformers_however_requests_come_and_wait(
    variant: str,
    page_size: int,
    policy: str,
    disable_radix_cache: bool,
    checkpoint: Checkpoint,
    oracle: Oracle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family, changes = VARIANTS[variant]
    path = checkpoint(family, **changes)
    engine = LLM(
        path,
        max_total_tokens=112,
        max_running_requests=3,
        page_size=page_size,
        schedule_policy=policy,
        disable_radix_cache=disable_radix_cache,
        max_prefill_tokens=48,
        random_seed=0,
    ).engine
    evicted, waited, together = [0], [0], [0]
    evict, schedule = engine.radix_cache.evict, engine.scheduler.schedule

    def counting_evict(num_tokens: int) -> int:
        evicted[0] += (freed := evict(num_tokens))
        return freed

    def counting_schedule() -> object:
        batch = schedule()
        waited[0] = max(waited[0], len(engine.scheduler.waiting))
        together[0] = max(together[0], len(engine.scheduler.running))
        return batch

    monkeypatch.setattr(engine.radix_cache, "evict", counting_evict)
    monkeypatch.setattr(engine.scheduler, "schedule", counting_schedule)
    served = serve(engine, staggered())

    assert_same_tokens(served, oracle(path))
    assert waited[0] > 0, "the pool is small enough that some request waits"
    assert together[0] > 1, "and large enough that some run together"
    cached = [out.cached_tokens for *_, out in served]
    assert all(n % page_size == 0 for n in cached)
    assert (sum(cached) > 0) == (not disable_radix_cache)
    assert (evicted[0] > 0) == (not disable_radix_cache)
    assert_all_slots_come_back(engine)


@pytest.mark.parametrize(
    ("variant", "page_size", "chunk", "disable_radix_cache"),
    [
        ("llama", 1, 1, False),
        ("llama", 1, 16, False),
        ("mistral-window", 1, 6, False),
        ("mistral-window", 4, 16, False),
        ("qwen2-window-tied", 1, 1, False),
        ("qwen2-window-tied", 1, 6, True),
        ("qwen3", 1, 2, True),
        ("qwen3", 4, 4, False),
        ("qwen3", 4, 13, True),
        ("qwen3", 16, 16, True),
        ("qwen3", 16, 33, False),
        ("qwen3-window-bias", 1, 6, False),
        ("gemma3-pattern-two-ropes", 1, 1, False),
        ("gemma3-pattern-two-ropes", 4, 16, False),
        ("phi3-mqa-window-tied", 1, 6, False),
        ("qwen3-moe", 1, 6, False),
    ],
)
def test_tokens_of_prompts_in_chunks_are_those_of_transformers(
    variant: str, page_size: int, chunk: int, disable_radix_cache: bool, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    """Chunks shorter than a window, and longer."""
    family, changes = VARIANTS[variant]
    path = checkpoint(family, **changes)
    options = {"page_size": page_size, "chunked_prefill_size": chunk, "disable_radix_cache": disable_radix_cache}
    engine = LLM(path, max_total_tokens=256, **options).engine
    prompt = random_tokens(35, seed=70)
    served = serve(engine, {0: [(prompt, 5), (random_tokens(3, seed=71), 9), ([*prompt[:30], 9], 8)]})
    assert_same_tokens(served, oracle(path))
    assert engine.stats()["extend_steps"] > 1
    assert_all_slots_come_back(engine)


@pytest.mark.parametrize(
    ("family", "page_size"), [*zip(FAMILIES, (1, 4, 16, 16, 1, 4), strict=True), ("llama", 16), ("gemma3", 4)]
)
def test_a_conversation_extends_only_what_is_new(
    family: str, page_size: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    """Turn by turn: prompt, answer and a new question; all but the newest sampled token has K/V in the cache."""
    path = checkpoint(family)
    llm = LLM(path, max_total_tokens=256, page_size=page_size)
    params = SamplingParams(max_new_tokens=7, temperature=0, ignore_eos=True)
    prompt, in_tree = random_tokens(18, seed=30), 0
    for turn in range(3):
        out = llm.generate(prompt, params)[0]
        assert out.token_ids == greedy(oracle(path), prompt, 7)
        assert out.cached_tokens == in_tree // page_size * page_size
        llm.engine.check_integrity()
        again = llm.generate(prompt, params)[0]
        assert again.token_ids == out.token_ids
        assert again.cached_tokens == (len(prompt) - 1) // page_size * page_size, "one token is left to compute"
        in_tree = len(prompt) + 7 - 1
        prompt = prompt + out.token_ids + random_tokens(5 + turn, seed=31 + turn)
    assert_all_slots_come_back(llm.engine)


@pytest.mark.parametrize(("page_size", "max_context_len"), [(1, None), (16, None), (16, 250)])
def test_a_sequence_may_fill_the_whole_context(
    page_size: int, max_context_len: int | None, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    """Also where the context's last page is incomplete."""
    path = checkpoint("llama", rope_parameters=LLAMA3_ROPE)
    context = max_context_len or TINY["max_position_embeddings"]
    prompt = random_tokens(context - 4, seed=9)
    llm = LLM(path, page_size=page_size, max_running_requests=1, max_context_len=max_context_len, max_total_tokens=256)
    assert llm.config.max_context_len == context
    out = llm.generate(prompt, SamplingParams(max_new_tokens=4, temperature=0, ignore_eos=True))[0]
    assert out.token_ids == greedy(oracle(path), prompt, 4)
    with pytest.raises(ValueError, match=f"max_context_len={context}"):
        llm.generate(prompt, SamplingParams(max_new_tokens=5))
    assert_all_slots_come_back(llm.engine)
