"""A model that is split over ranks gives the tokens of one that is not: all families, kinds of weights and adapters, and
whatever else the engine does. The ranks are threads here; test_tensor_parallel_processes.py has processes."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM, AsyncEngine, RequestOutput, SamplingParams
from nanoinfer.errors import EngineClosedError, RankError, StepFailedError, UnsupportedModelError
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.loader import load_model
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.paged import GeneratorTorch
from nanoinfer.registry import ATTENTION_BACKENDS, KV_STORAGES, MODEL_FAMILIES, QUANTIZATIONS
from nanoinfer.sessions import InferenceEngine
from tests.helpers.adapters import save_adapter
from tests.helpers.checkpoints import edited
from tests.helpers.rows import random_tokens
from tests.helpers.split_models import SECONDS, Room, ThreadCommunicator, ThreadMembers, split_llm

Checkpoint = Callable[..., Path]

WHOLE = {"max_total_tokens": 256}
STEM = random_tokens(18, seed=1)
PROMPTS = [STEM, random_tokens(1, seed=2), STEM + random_tokens(9, seed=3), random_tokens(30, seed=4)]


def of(temperature: float, seed: int | None = None, **fields: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=10, temperature=temperature, seed=seed, ignore_eos=True, **fields)


PARAMS = [of(0, logprobs=3, prompt_logprobs=True), of(0.7, 5), of(1.0, 6, logprobs=0), of(0)]


def served(llm: LLM, adapters: Sequence[str | None] | None = None) -> list[RequestOutput]:
    """The prompts, with an empty tree and with what is in it then."""
    found = []
    for _ in range(2):
        found += llm.generate(PROMPTS, PARAMS, use_tqdm=False, adapter=adapters)
        llm.engine.check_integrity()
    return found


def assert_same(found: Sequence[RequestOutput], wanted: Sequence[RequestOutput], exactly: bool = False) -> None:
    """The same tokens; log-probabilities up to rounding, or `exactly` the same."""
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.cached_tokens == theirs.cached_tokens
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        for one, other in zip(ours.logprobs or (), theirs.logprobs or (), strict=True):
            assert one == (other if exactly else pytest.approx(other, rel=1e-3, abs=1e-3))
        if theirs.prompt_logprobs is not None:
            assert ours.prompt_logprobs is not None
            assert ours.prompt_logprobs[0] is theirs.prompt_logprobs[0] is None
            expected = theirs.prompt_logprobs[1:]
            assert ours.prompt_logprobs[1:] == (expected if exactly else pytest.approx(expected, rel=1e-3, abs=1e-3))


# --- all families ----------------------------------------------------------------------------------------------------

# 323 tokens and an MLP of 97 can be divided by nothing; four ranks and two key/value heads: each head is in two ranks.
ODD = {"vocab_size": 323, "intermediate_size": 97}
SIX_HEADS = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}
VARIANTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "llama": ("llama", {}, 2),
    "llama-replicated-odd": ("llama", ODD, 4),
    "llama-tied-odd-three": ("llama", {**ODD, **SIX_HEADS, "tie_word_embeddings": True}, 3),
    "llama-mqa-biases": ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}, 2),
    "mistral-window": ("mistral", {"sliding_window": 5}, 2),
    "qwen2": ("qwen2", {}, 2),
    "qwen2-tied-replicated": ("qwen2", {"tie_word_embeddings": True}, 4),
    "qwen3-bias": ("qwen3", {"head_dim": 24, "attention_bias": True}, 2),
    "qwen3-replicated": ("qwen3", {"head_dim": 24}, 4),
    "gemma3": ("gemma3", {}, 2),
    "gemma3-softcap-untied-odd": ("gemma3", {**ODD, "final_logit_softcapping": 0.2, "tie_word_embeddings": False}, 4),
    "phi3": ("phi3", {}, 2),
    "phi3-odd-replicated": ("phi3", ODD, 4),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_split_model_gives_the_tokens_of_a_whole_one(variant: str, checkpoint: Checkpoint) -> None:
    family, changes, size = VARIANTS[variant]
    path = checkpoint(family, **changes)
    wanted = served(LLM(path, **WHOLE))
    with split_llm(path, size, **WHOLE) as llm:
        assert_same(served(llm), wanted)
        assert llm.engine.model_runner.tp_size == size


@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("variant", ["llama-tied-odd-three", "qwen3-replicated", "gemma3", "phi3-odd-replicated"])
def test_int8_weights_give_the_same_bits(variant: str, kernels: str, checkpoint: Checkpoint) -> None:
    """Scales are those of the whole rows, and sums of whole numbers are exact, however they are split."""
    family, changes, size = VARIANTS[variant]
    path, options = checkpoint(family, **changes), {**WHOLE, "quantization": "int8", "kernels": kernels}
    wanted = served(LLM(path, **options))
    with split_llm(path, size, **options) as llm:
        assert_same(served(llm), wanted, exactly=True)


@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("variant", ["llama-replicated-odd", "qwen2", "gemma3-softcap-untied-odd", "phi3"])
def test_int4_weights_are_quantized_before_they_are_cut(variant: str, kernels: str, checkpoint: Checkpoint) -> None:
    """Groups of 32 inputs share a scale, and ranks begin in the middle of groups."""
    family, changes, size = VARIANTS[variant]
    path, options = checkpoint(family, **changes), {**WHOLE, "quantization": "int4", "kernels": kernels}
    wanted = served(LLM(path, **options))
    with split_llm(path, size, **options) as llm:
        assert_same(served(llm), wanted)


# --- adapters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("variant", ["llama-mqa-biases", "qwen3-replicated", "gemma3", "phi3-odd-replicated"])
def test_adapters_give_the_tokens_of_a_whole_model(
    variant: str, quantization: str | None, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """More adapters than places, so that they replace each other; one has only some projections."""
    family, changes, size = VARIANTS[variant]
    path = checkpoint(family, **changes)
    network = load_model(path, kernels="torch").model
    some = ["qkv_proj" if family == "phi3" else "v_proj", "down_proj"]
    adapters = {
        "small": save_adapter(tmp_path / "small", network, 1, rank=1),
        "large": save_adapter(tmp_path / "large", network, 2, rank=9),
        "some": save_adapter(tmp_path / "some", network, 3, ends=some),
    }
    options = {**WHOLE, "adapters": adapters, "max_adapters_on_device": 2, "quantization": quantization}
    each = ["small", "large", None, "some"]
    whole = LLM(path, **options)
    wanted = served(whole, each)
    assert wanted[0].token_ids != whole.generate(PROMPTS[0], PARAMS[0])[0].token_ids, "adapters change tokens"
    with split_llm(path, size, **options) as llm:
        assert_same(served(llm, each), wanted)
        llm.unload_adapter("small")
        llm.load_adapter("small", adapters["large"])
        again = llm.generate(PROMPTS[3:], PARAMS[3], adapter="small", use_tqdm=False)
        assert_same(again, whole.generate(PROMPTS[3:], PARAMS[3], adapter="large", use_tqdm=False))


# --- whatever the engine does ----------------------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "int8 K/V": {"kv_cache_dtype": "int8"},
    "plain torch": {"kernels": "torch", "attention_backend": "torch_native"},
    "n-gram drafts": {"drafter": "ngram", "adaptive_drafts": False},
    "tree drafts": {"drafter": "tree", "adaptive_drafts": False},
    "several steps": {"num_scheduler_steps": 4},
    "no tree": {"disable_radix_cache": True},
    "small chunks, pages": {"chunked_prefill_size": 8, "page_size": 4},
    "little room": {"max_total_tokens": 64, "max_running_requests": 3},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_whatever_the_engine_does_the_tokens_stay(option: str, checkpoint: Checkpoint) -> None:
    path, options = checkpoint("qwen3", head_dim=24), {**WHOLE, **OPTIONS[option]}
    whole = LLM(path, **options)
    wanted = served(whole)
    with split_llm(path, 2, **options) as llm:
        assert_same(served(llm), wanted)
        for count in ("retractions", "drafted_tokens", "accepted_tokens", "evicted_tokens"):
            assert llm.engine.stats()[count] == whole.engine.stats()[count], count
        assert llm.engine.stats()["capture"] == "no (the model is split over 2 processes)"


def test_a_draft_model_is_not_split(checkpoint: Checkpoint) -> None:
    path, drafter = checkpoint("llama"), checkpoint("llama", num_hidden_layers=1)
    options = {**WHOLE, "drafter": "model", "draft_model": drafter, "adaptive_drafts": False}
    wanted = served(LLM(path, **options))
    with split_llm(path, 2, **options) as llm:
        assert_same(served(llm), wanted)
        assert llm.engine.stats()["drafted_tokens"] > 0


def test_a_row_gets_the_same_bits_in_any_company(checkpoint: Checkpoint) -> None:
    """Three ranks: where sums of three numbers are made in an order that depends on the batch, the bits do, too."""
    path = checkpoint("llama", **SIX_HEADS)
    with split_llm(path, 3, kernels="auto", attention_backend="auto", disable_radix_cache=True, **WHOLE) as llm:
        if llm.engine.stats()["kernels"] != "cpp":
            pytest.skip("only the kernels in C++ promise it")
        params = of(0, logprobs=3)
        alone = [llm.generate(prompt, params)[0] for prompt in PROMPTS]
        assert_same(llm.generate(PROMPTS, params, use_tqdm=False), alone, exactly=True)


def test_each_rank_has_its_share_of_weights_and_kv(checkpoint: Checkpoint) -> None:
    path = checkpoint("llama")
    whole = LLM(path, **WHOLE).model
    with split_llm(path, 2, **WHOLE) as llm:
        model = llm.model
        assert model.kv_bytes_per_token() == whole.kv_bytes_per_token() / 2
        norms = sum(p.numel() for p in whole.model.parameters() if p.ndim == 1)
        assert model.model.num_parameters - norms == (whole.model.num_parameters - norms) / 2
        assert model.config.num_attention_heads == 2
        assert model.config.vocab_size == whole.config.vocab_size


def test_bfloat16_stays_close(checkpoint: Checkpoint) -> None:
    path = checkpoint("llama")
    options = {**WHOLE, "dtype": "bfloat16"}
    params = SamplingParams(max_new_tokens=1, temperature=0, prompt_logprobs=True)
    wanted = LLM(path, **options).generate(PROMPTS[3], params)[0].prompt_logprobs
    assert wanted is not None
    with split_llm(path, 2, **options) as llm:
        found = llm.generate(PROMPTS[3], params)[0].prompt_logprobs
    assert found is not None
    assert found[1:] == pytest.approx(wanted[1:], rel=0.05, abs=0.3)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "changes", "why"),
    [
        (3, {}, "divide the model's 4 query heads"),
        (8, {}, "divide the model's 4 query heads"),
        (2, SIX_HEADS, "the model's 3 key/value heads, or be a"),
        (4, {"intermediate_size": 3}, "at most intermediate_size=3"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_before_anything_starts(
    size: int, changes: dict[str, Any], why: str, checkpoint: Checkpoint
) -> None:
    with pytest.raises(ValueError, match=f"^tensor_parallel_size={size}: must .*{why}"):
        LLM(checkpoint("llama", **changes), tensor_parallel_size=size)


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "2", None])
def test_a_size_that_is_no_number_of_processes_is_refused(size: Any, checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match=r"^tensor_parallel_size=.*: must be an integer of at least 1"):
        LLM(checkpoint("llama"), tensor_parallel_size=size)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"capture": True}, "capture=True: passes of a model that is split over tensor_parallel_size=2"),
        ({"quantization": "mine"}, r"quantization='mine': comes from tests\.[\w.]+, and the other processes"),
        ({"kv_cache_dtype": "mine"}, r"kv_cache_dtype='mine': comes from tests"),
        ({"attention_backend": "mine"}, r"attention_backend='mine': comes from tests"),
        ({"quantization": "int3"}, "quantization='int3': must be one of"),
        ({"kernels": "fast"}, "kernels='fast': must be one of"),
        ({"device": "cpu:0"}, "device='cpu:0': must have no index"),
    ],
)
def test_what_cannot_be_combined_is_refused_before_anything_starts(
    options: dict[str, Any], why: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for registry in (QUANTIZATIONS, KV_STORAGES, ATTENTION_BACKENDS):
        monkeypatch.setitem(registry, "mine", OwnHead)
    with pytest.raises(ValueError, match=f"^{why}"):
        LLM(checkpoint("llama"), tensor_parallel_size=2, **options)


class OwnHead(LlamaForCausalLM):
    """A family whose head does something that ranks cannot do by themselves."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.lm_head = type("Head", (type(self.lm_head),), {})(self.config, torch.float32, torch.device("cpu"))


def test_a_family_from_outside_is_refused_and_so_is_a_head_of_its_own(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODEL_FAMILIES, "OwnHead", OwnHead)
    path = edited(checkpoint("llama"), tmp_path / "own", architectures=["OwnHead"])
    with pytest.raises(ValueError, match=r"^architecture OwnHead: comes from tests\."):
        LLM(path, tensor_parallel_size=2)
    monkeypatch.setattr(OwnHead, "__module__", "nanoinfer.model.own")
    with (
        pytest.raises(UnsupportedModelError, match="OwnHead has a head or an embedding of its own"),
        split_llm(path, 2),
    ):
        pass


def test_only_the_engine_runs_a_split_model(checkpoint: Checkpoint) -> None:
    """Anything else would wait for ranks that know of nothing."""
    with split_llm(checkpoint("llama"), 2, **WHOLE) as llm:
        for other in (GeneratorTorch, InferenceEngine):
            with pytest.raises(ValueError, match="is split over 2 processes, and only its LLM's engine can run it"):
                other(llm.model)
        with pytest.raises(RuntimeError, match="split over 2 processes: only the engine of its LLM can run it"):
            llm.model.model.model.embed_tokens(torch.tensor([1]))
        assert len(llm.generate(PROMPTS[0], of(0))[0].token_ids) == 10, "and that still works"


def test_passes_made_by_hand_are_checked_before_the_others_hear_of_them(checkpoint: Checkpoint) -> None:
    with split_llm(checkpoint("llama"), 2, **WHOLE) as llm:
        runner = llm.engine.model_runner
        with pytest.raises(ValueError, match="token 320 is outside"):
            runner.forward_extend(torch.tensor([320]), [0], [1], [0], [0])
        logits, _ = runner.forward_extend(torch.tensor([5, 6]), [0], [2], [0], [0, 1])
        assert logits.shape == (1, 320)


# --- what ranks do together ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["in a pass", "between passes"])
def test_a_failing_rank_ends_the_engine_and_all_its_requests(
    when: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with split_llm(checkpoint("llama"), 2, max_running_requests=1, **WHOLE) as llm:
        engine = llm.engine
        ids = [engine.add_request(prompt, of(0)) for prompt in PROMPTS]
        engine.step()
        if when == "in a pass":
            monkeypatch.setattr(ModelRunner, "run", failing_in_rank_1(ModelRunner.run))
        else:
            engine.model_runner._ranks.members.errors[1] = OSError("gone")  # type: ignore[attr-defined]
        with pytest.raises(RankError, match=r"has ended, and the engine with it: rank 1: OSError\('gone'\)") as caught:
            engine.step()
        outputs = {out.request_id: out for out in engine.step()}
        assert sorted(outputs) == ids, "also those that were waiting"
        assert all(out.finish_reason == "abort" for out in outputs.values())
        assert all(out.error is caught.value for out in outputs.values())
        assert engine.stats()["failed"] == len(ids)
        assert not engine.has_unfinished()
        engine.check_integrity()
        with pytest.raises(EngineClosedError, match=r"takes no more requests: .* rank 1: OSError"):
            engine.add_request(PROMPTS[0], of(0))


def test_an_async_engine_with_a_broken_runner_is_closed(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(llm: LLM) -> None:
        async with AsyncEngine(llm) as engine:
            assert len((await engine.generate(PROMPTS[0], of(0))).token_ids) == 10
            assert not engine.is_closed
            monkeypatch.setattr(ModelRunner, "run", failing_in_rank_1(ModelRunner.run))
            failed = await asyncio.gather(*(engine.generate(p, of(0)) for p in PROMPTS), return_exceptions=True)
            assert all(isinstance(each, StepFailedError | EngineClosedError) for each in failed), failed
            assert any("rank 1: OSError" in str(each) for each in failed)
            assert engine.is_closed
            with pytest.raises(EngineClosedError, match="takes no more requests"):
                await engine.generate(PROMPTS[0], of(0))

    with split_llm(checkpoint("llama"), 2, max_running_requests=1, **WHOLE) as llm:
        asyncio.run(asyncio.wait_for(serve(llm), SECONDS))


def failing_in_rank_1(run: Callable[..., Any]) -> Callable[..., Any]:
    """`ModelRunner.run`, which raises in all ranks but the first before it does anything together with that."""

    def run_or_fail(runner: ModelRunner, *arguments: Any) -> Any:
        if runner.tp_size == 1:  # a worker's: that of rank 0 is a SplitRunner
            raise OSError("gone")
        return run(runner, *arguments)

    return run_or_fail


def test_messages_of_any_length_arrive() -> None:
    room = Room(2)
    heard: list[bytes] = []

    class Listener(ThreadMembers):
        def _run(self, rank: int) -> None:
            communicator = ThreadCommunicator(room, rank)
            heard.extend(communicator.listen() for _ in lengths)

    lengths = [0, 1, 8183, 8184, 8185, 100_000]
    members = Listener(room)
    sent = [bytes(i % 251 for i in range(length)) for length in lengths]
    for message in sent:
        ThreadCommunicator(room, 0).tell(message)
    members.end(patiently=True)
    assert heard == sent
