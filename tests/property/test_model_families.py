"""Every supported model family against transformers: logits of single passes, log-probabilities, and greedy tokens of
whole engine runs in which requests come and go, share prefixes, wait, and lose cached tokens to eviction."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer import LLM, Engine, RequestOutput, SamplingParams
from nanoinfer.model.loader import load_model
from tests.helpers.checkpoints import FAMILIES, TINY, greedy
from tests.helpers.rows import (
    HandWrittenRows,
    all_logits,
    assert_close,
    compare_all_passes,
    logprob_of_each_token,
    random_tokens,
)

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
# Windows are shorter than every prompt below that is compared in full.
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama-mha-tied": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-mqa-biases": ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    "llama-attention-bias": ("llama", {"attention_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 24}),
    "llama-gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama-rope-linear": ("llama", {"rope_parameters": LINEAR_ROPE}),
    "llama-rope-llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "qwen3-rope-yarn": ("qwen3", {"rope_parameters": YARN_ROPE}),
    "mistral-head-dim": ("mistral", {"head_dim": 8, "sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 5, "rms_norm_eps": 1e-3}),
    "qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2-window-tied": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen2-window-off": ("qwen2", {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3-mqa-tied": ("qwen3", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen3-window-bias": (
        "qwen3",
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 2,
            "rope_parameters": LLAMA3_ROPE,
        },
    ),
    "gemma3": ("gemma3", {}),
    "gemma3-softcap-untied-biases": (
        "gemma3",
        {"final_logit_softcapping": 0.2, "tie_word_embeddings": False, "attention_bias": True},
    ),
    "gemma3-pattern-two-ropes": (
        "gemma3",
        {
            "layer_types": None,
            "sliding_window_pattern": 2,
            "sliding_window": 4,
            "head_dim": 24,
            "num_key_value_heads": 1,
            "rope_parameters": {
                "full_attention": LINEAR_ROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            },
        },
    ),
    "phi3": ("phi3", {}),
    "phi3-mqa-window-tied": ("phi3", {"num_key_value_heads": 1, "sliding_window": 5, "tie_word_embeddings": True}),
    "phi3-head-dim": ("phi3", {"head_dim": 24, "num_key_value_heads": None}),
}


# --- single passes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_extend_and_decode_give_the_logits_of_transformers(
    variant: str, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    family, changes = VARIANTS[variant]
    path = checkpoint(family, **changes)
    compare_all_passes(load_model(path), oracle(path), page_size=4)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("variant", ["llama", "qwen2-window-tied", "gemma3", "phi3"])
def test_logits_do_not_depend_on_the_page_size(
    variant: str, page_size: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    family, changes = VARIANTS[variant]
    path = checkpoint(family, **changes)
    compare_all_passes(load_model(path), oracle(path), page_size=page_size)


@pytest.mark.parametrize("variant", ["llama-mqa-biases", "mistral-window", "qwen2", "qwen3", "gemma3", "phi3"])
def test_bfloat16_stays_close_to_transformers_in_bfloat16(variant: str, checkpoint: Checkpoint) -> None:
    family, changes = VARIANTS[variant]
    path = checkpoint(family, **changes, dtype="bfloat16")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    assert model.dtype == torch.bfloat16
    loaded = load_model(path)
    assert loaded.dtype == torch.bfloat16
    compare_all_passes(loaded, model, page_size=1, relative=0.05)


@pytest.mark.parametrize("family", FAMILIES)
def test_normalized_logprobs_are_means_over_the_tokens_of_the_pass(
    family: str, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint(family)
    model = oracle(path)
    sequences = [random_tokens(length, seed) for seed, length in enumerate((17, 30, 12), start=50)]
    logprobs = [logprob_of_each_token(model, tokens) for tokens in sequences]
    rows = HandWrittenRows(load_model(path), 3)

    logits, normalized = rows.extend({0: sequences[0][:9], 1: sequences[1], 2: sequences[2][:2]}, True)
    assert normalized is not None
    assert normalized.dtype == torch.float32
    expected = [logprobs[0][1:9].mean(), logprobs[1][1:].mean(), logprobs[2][1]]
    assert_close(normalized, torch.stack(expected))
    assert_close(logits[1], all_logits(model, sequences[1])[-1])

    # The first new token's predecessor is not in the pass; where only one token is new there is nothing to take a mean of.
    _, normalized = rows.extend({2: sequences[2][2:], 0: sequences[0][9:10]}, True)
    assert normalized is not None
    assert_close(normalized[0], logprobs[2][3:].mean())
    assert normalized[1].isnan()


# --- what a caller sees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("page_size", [1, 4])
def test_logprobs_of_prompt_and_output_are_those_of_transformers(
    family: str, page_size: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint(family)
    model = oracle(path)
    llm = LLM(path, max_total_tokens=256, page_size=page_size)
    shared = random_tokens(16, seed=1)
    prompts = [shared + random_tokens(length, seed=2) for length in (3, 9)]
    params = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True, logprobs=3, prompt_logprobs=True)
    for turn in range(2):  # with an empty cache, and with everything in the cache already
        for prompt, out in zip(prompts, llm.generate(prompts, params, use_tqdm=False), strict=True):
            assert out.token_ids == greedy(model, prompt, 6), f"turn {turn}"
            assert out.cached_tokens == 0, "every prompt token is computed anew"
            assert out.prompt_logprobs is not None
            assert out.prompt_logprobs[0] is None
            assert_close(torch.tensor(out.prompt_logprobs[1:]), logprob_of_each_token(model, prompt)[1:])
            table = all_logits(model, prompt + out.token_ids).log_softmax(-1)[len(prompt) - 1 : -1]
            assert out.logprobs is not None
            assert len(out.logprobs) == 6
            for token, entry, row in zip(out.token_ids, out.logprobs, table, strict=True):
                assert next(iter(entry)) == token, "the sampled one comes first"
                assert sorted(entry) == sorted(row.topk(3).indices.tolist())
                assert_close(torch.tensor(list(entry.values())), row[list(entry)])
        llm.engine.check_integrity()


# --- whole runs ----------------------------------------------------------------------------------------------------

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
]


@pytest.mark.parametrize("disable_radix_cache", [False, True], ids=["cached", "uncached"])
@pytest.mark.parametrize(("variant", "page_size", "policy"), RUNS)
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


@pytest.mark.parametrize("chunk", [1, 6, 16])
@pytest.mark.parametrize(
    "variant",
    [
        "llama",
        "mistral-window",
        "qwen2-window-tied",
        "qwen3-window-bias",
        "gemma3-pattern-two-ropes",
        "phi3-mqa-window-tied",
    ],
)
def test_tokens_of_prompts_in_chunks_are_those_of_transformers(
    variant: str, chunk: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    """Chunks shorter than a window, and longer."""
    family, changes = VARIANTS[variant]
    path = checkpoint(family, **changes)
    engine = LLM(path, max_total_tokens=256, chunked_prefill_size=chunk).engine
    served = serve(engine, {0: [(random_tokens(35, seed=70), 5), (random_tokens(3, seed=71), 9)]})
    assert_same_tokens(served, oracle(path))
    assert engine.stats()["extend_steps"] > 1
    assert_all_slots_come_back(engine)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("page_size", [1, 4, 16])
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


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_request_reuses_the_prompt_of_one_that_is_still_running(
    page_size: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint("qwen3", head_dim=24)
    engine = LLM(path, max_total_tokens=256, page_size=page_size).engine
    stem = random_tokens(32, seed=40)
    longer, shorter = stem + random_tokens(3, seed=41), stem + random_tokens(6, seed=42)
    served = serve(engine, {0: [(longer, 12)], 4: [(shorter, 4), (longer, 4)]})
    assert_same_tokens(served, oracle(path))
    assert [out.cached_tokens for *_, out in served] == [0, 32, 34 // page_size * page_size]
    assert_all_slots_come_back(engine)


def test_a_pool_that_fits_exactly_one_request_serves_all_in_turn(checkpoint: Checkpoint, oracle: Oracle) -> None:
    path = checkpoint("llama")
    engine = LLM(path, max_total_tokens=16).engine
    served = serve(engine, {0: [(random_tokens(length, seed=length), 17 - length) for length in (12, 9, 1)]})
    assert_same_tokens(served, oracle(path))
    assert_all_slots_come_back(engine)


def test_a_pool_filled_to_the_last_slot_is_never_promised_twice(
    checkpoint: Checkpoint, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests will need all 32 slots in the end: when all is set aside, a third, however small, must not be let in."""
    path = checkpoint("llama")
    engine = LLM(path, max_total_tokens=32, schedule_policy="fcfs", schedule_conservativeness=11.0).engine
    free: list[int] = []
    running: list[int] = []
    schedule = engine.scheduler.schedule

    def watching_schedule() -> object:
        batch = schedule()
        free.append(engine.stats()["free_slots"])
        running.append(len(engine.scheduler.running))
        return batch

    monkeypatch.setattr(engine.scheduler, "schedule", watching_schedule)
    prompts = [(random_tokens(10, seed=1), 7), (random_tokens(10, seed=2), 7), (random_tokens(1, seed=3), 2)]
    assert_same_tokens(serve(engine, {0: prompts}), oracle(path))
    assert running == [2, 2, 2, 2, 2, 2, 2, 1, 1]
    assert free[0] == 12
    assert free[6] == 0
    assert_all_slots_come_back(engine)


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
