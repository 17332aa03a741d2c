"""Every supported model family against transformers: logits of single passes, log-probabilities, and greedy tokens of
whole engine runs in which requests come and go, share prefixes, wait, and lose cached tokens to eviction."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from nanoinfer import LLM, Engine, RequestOutput, SamplingParams
from nanoinfer.batch import Batch
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.model.attention import TorchNativeBackend
from nanoinfer.model.input_metadata import ForwardMode
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.model.model_runner import ModelRunner
from tests.checkpoints import FAMILIES, TINY, greedy

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


def random_tokens(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, TINY["vocab_size"], length).tolist()


def assert_close(actual: torch.Tensor, expected: torch.Tensor, relative: float = 1e-4) -> None:
    """Equal up to `relative` times the largest expected value."""
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.float(), expected.float(), rtol=0, atol=relative * float(expected.abs().max()))


@torch.no_grad()
def all_logits(model: transformers.PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """`[len(tokens), V]` from transformers, computed in one go and without a cache."""
    return model(torch.tensor([list(tokens)]), use_cache=False).logits[0]


# --- single passes -------------------------------------------------------------------------------------------------


class HandWrittenRows:
    """A ModelRunner whose rows are written by hand: sequences grow by `extend` and `decode` in slots chosen at random.

    Slots that were never written hold NaN and row entries that were never written are far out of range, so whatever
    reads more than it may shows.
    """

    def __init__(self, loaded: LoadedModel, num_requests: int, page_size: int = 1, size: int = 192):
        config, rng = loaded.config, np.random.default_rng(7)
        self.rows = ReqToTokenPool(num_requests + 2, 64)
        self.rows.req_to_token.fill_(10**6)
        self.pool = loaded.new_kv_pool(size, page_size)
        for layer in range(config.num_hidden_layers):
            self.pool.get_key_buffer(layer).fill_(torch.nan)
            self.pool.get_value_buffer(layer).fill_(torch.nan)
        self.runner = ModelRunner(loaded.model, self.rows, self.pool, TorchNativeBackend())
        pages = rng.permutation(size // page_size)
        self._slots = (pages[:, None] * page_size + np.arange(page_size)).reshape(num_requests, -1)
        self._row_of = rng.permutation(num_requests + 2)[:num_requests]
        self._lens = [0] * num_requests

    def extend(
        self, new_tokens: Mapping[int, Sequence[int]], return_normalized_logprob: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Give the requests that `new_tokens` names their next tokens, in its order, in one EXTEND pass."""
        where = self._grow({request: len(tokens) for request, tokens in new_tokens.items()})
        input_ids = torch.tensor([token for tokens in new_tokens.values() for token in tokens])
        output = self.runner.forward_extend(input_ids, **where, return_normalized_logprob=return_normalized_logprob)
        self._write_rows()
        return output

    def decode(self, new_token: Mapping[int, int]) -> torch.Tensor:
        where = self._grow(dict.fromkeys(new_token, 1)) | {"prefix_lens": None}
        logits = self.runner.forward_decode(torch.tensor(list(new_token.values())), **where)
        self._write_rows()
        return logits

    def written_slots(self, layer: int) -> list[int]:
        written = ~self.pool.get_key_buffer(layer).isnan().flatten(1).any(1)
        assert torch.equal(written, ~self.pool.get_value_buffer(layer).isnan().flatten(1).any(1))
        return written.nonzero()[:, 0].tolist()

    def used_slots(self) -> list[int]:
        return sorted(np.concatenate([row[:n] for row, n in zip(self._slots, self._lens, strict=True)]).tolist())

    def _write_rows(self) -> None:
        """After the pass: during it `out_cache_loc` alone says where the new tokens go."""
        for row, slots, length in zip(self._row_of.tolist(), self._slots, self._lens, strict=True):
            self.rows.req_to_token[row, :length] = torch.from_numpy(slots[:length]).int()

    def _grow(self, by: Mapping[int, int]) -> dict[str, torch.Tensor]:
        requests = list(by)
        prefix_lens = [self._lens[request] for request in requests]
        out_cache_loc = []
        for request, start in zip(requests, prefix_lens, strict=True):
            slots = self._slots[request, start : start + by[request]]
            self._lens[request] += len(slots)
            out_cache_loc.append(slots)
        return {
            "req_pool_indices": torch.tensor(self._row_of[requests], dtype=torch.int32),
            "seq_lens": torch.tensor([self._lens[request] for request in requests], dtype=torch.int32),
            "prefix_lens": torch.tensor(prefix_lens, dtype=torch.int32),
            "out_cache_loc": torch.from_numpy(np.concatenate(out_cache_loc)).int(),
        }


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


def compare_all_passes(
    loaded: LoadedModel, model: transformers.PreTrainedModel, page_size: int, relative: float = 1e-4
) -> None:
    """Four requests of mixed length through two EXTEND passes, the second over prefixes, and three DECODE passes."""
    sequences = [random_tokens(length, seed) for seed, length in enumerate((24, 31, 9, 22))]
    expected = [all_logits(model, tokens) for tokens in sequences]
    rows = HandWrittenRows(loaded, len(sequences), page_size)

    logits, normalized = rows.extend({0: sequences[0][:21], 1: sequences[1][:7], 2: sequences[2][:1]})
    assert_close(logits, torch.stack([expected[0][20], expected[1][6], expected[2][0]]), relative)
    assert normalized is None

    # One goes on after its prefix, one adds a single token, one is new; in another order than before.
    logits, _ = rows.extend({3: sequences[3][:19], 1: sequences[1][7:28], 2: sequences[2][1:2]})
    assert_close(logits, torch.stack([expected[3][18], expected[1][27], expected[2][1]]), relative)

    lens = [21, 28, 2, 19]
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1]):
        logits = rows.decode({request: sequences[request][lens[request]] for request in order})
        assert_close(logits, torch.stack([expected[request][lens[request]] for request in order]), relative)
        for request in order:
            lens[request] += 1
    for layer in range(loaded.config.num_hidden_layers):
        assert rows.written_slots(layer) == rows.used_slots()


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


@torch.no_grad()
def logprob_of_each_token(model: transformers.PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """`[len(tokens)]`: of each token under those before it; NaN for the first."""
    table = all_logits(model, tokens).log_softmax(-1)
    return torch.cat((torch.tensor([torch.nan]), table[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]))


@pytest.mark.parametrize("total", [256, 257, 258])
def test_prompt_logprobs_of_long_passes_are_complete(total: int, checkpoint: Checkpoint, oracle: Oracle) -> None:
    """The head is applied to 256 rows at a time: passes that end just before, at and after that boundary."""
    path = checkpoint("llama")
    prompts = [random_tokens(length, seed) for seed, length in enumerate((100, total - 160, 60))]
    llm = LLM(path, max_total_tokens=512)
    outs = llm.generate(prompts, SamplingParams(max_new_tokens=1, prompt_logprobs=True), use_tqdm=False)
    assert llm.engine.stats()["extend_steps"] == 1
    for prompt, out in zip(prompts, outs, strict=True):
        assert out.prompt_logprobs is not None
        assert out.prompt_logprobs[0] is None
        assert_close(torch.tensor(out.prompt_logprobs[1:]), logprob_of_each_token(oracle(path), prompt)[1:])


@pytest.mark.parametrize("first_slot", [0, 5])
def test_a_batch_in_neighbouring_slots_gives_the_same_logits(
    first_slot: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    """Neighbours are written as a slice, and `forward` dispatches on the mode: the way the engine calls the runner."""
    path = checkpoint("llama")
    sequences = [random_tokens(6, seed=60), random_tokens(4, seed=61)]
    expected = [all_logits(oracle(path), tokens) for tokens in sequences]
    logprobs = [logprob_of_each_token(oracle(path), tokens) for tokens in sequences]
    rows = HandWrittenRows(load_model(path), 2)
    slots = torch.arange(first_slot, first_slot + 8, dtype=torch.int32)
    batch = Batch(
        reqs=[],
        forward_mode=ForwardMode.EXTEND,
        input_ids=torch.tensor(sequences[0][:5] + sequences[1][:3]),
        req_pool_indices=torch.tensor([2, 0]),
        seq_lens=torch.tensor([5, 3]),
        prefix_lens=torch.tensor([0, 0]),
        out_cache_loc=slots,
        out_cache_cont_start=first_slot,
        out_cache_cont_end=first_slot + 8,
    )
    logits, normalized = rows.runner.forward(batch, ForwardMode.EXTEND)
    assert_close(logits, torch.stack([expected[0][4], expected[1][2]]))
    assert normalized is None
    assert batch.prompt_logprobs is None
    logits, normalized = rows.runner.forward(batch, ForwardMode.EXTEND, return_normalized_logprob=True)
    assert normalized is not None
    assert_close(normalized, torch.stack([logprobs[0][1:5].mean(), logprobs[1][1:3].mean()]))
    assert batch.prompt_logprobs is not None
    assert batch.prompt_logprobs.isnan().nonzero()[:, 0].tolist() == [0, 5], "the first of each request"
    assert_close(batch.prompt_logprobs[6:], logprobs[1][1:3])

    rows.rows.req_to_token[2, :5], rows.rows.req_to_token[0, :3] = slots[:5], slots[5:]
    end = first_slot + 8
    batch = Batch(
        reqs=[],
        forward_mode=ForwardMode.DECODE,
        input_ids=torch.tensor([sequences[0][5], sequences[1][3]]),
        req_pool_indices=torch.tensor([2, 0]),
        seq_lens=torch.tensor([6, 4]),
        prefix_lens=None,
        out_cache_loc=torch.tensor([end, end + 1]),
        out_cache_cont_start=end,
        out_cache_cont_end=end + 2,
    )
    logits, normalized = rows.runner.forward(batch, ForwardMode.DECODE)
    assert_close(logits, torch.stack([expected[0][5], expected[1][3]]))
    assert normalized is None
    assert rows.written_slots(2) == list(range(first_slot, end + 2))


def test_a_pass_with_too_many_input_ids_is_refused_before_anything_is_written(checkpoint: Checkpoint) -> None:
    rows = HandWrittenRows(load_model(checkpoint("llama")), 1)
    with pytest.raises(ValueError, match=r"input_ids: shape \[3\], must be \[2\]"):
        rows.runner.forward_extend(torch.tensor([5, 6, 7]), [0], [2], [0], [4, 9])
    with pytest.raises(ValueError, match="out_cache_loc"):
        rows.runner.forward_decode(torch.tensor([5]), [0], [1], None, [192])
    assert rows.written_slots(0) == []


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
