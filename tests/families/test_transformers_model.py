"""Decoders of transformers for which there is no family here: their own network on our pools has their tokens.

The oracle: transformers, each prompt alone, with eager attention.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer import LLM, SamplingParams, UnsupportedModelError
from nanoinfer.ascend import GeneratorTorch
from nanoinfer.errors import KernelsUnavailableError, WeightMismatchError
from nanoinfer.model.fingerprint import model_fields
from nanoinfer.model.loader import load_model
from nanoinfer.model.transformers_layers import WrappedExperts
from tests.helpers.adapters import MIXED, PROMPTS, merged, outputs, three_adapters
from tests.helpers.any_decoder import QUICK, REFUSED, SLOW, Expected, expected_of, save_any
from tests.helpers.checkpoints import greedy

GREEDY = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True)
SCORED = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True, prompt_logprobs=True)
Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]


def compare(llm: LLM, expected: list[Expected]) -> None:
    """In one batch, with log-probabilities of the prompts, and one after the other from the cache."""
    prompts, tokens = [each.prompt for each in expected], [each.tokens for each in expected]
    assert [out.token_ids for out in llm.generate(prompts, GREEDY, use_tqdm=False)] == tokens
    scored = llm.generate(prompts, SCORED, use_tqdm=False)
    assert [out.token_ids for out in scored] == tokens
    for out, each in zip(scored, expected, strict=True):
        assert out.prompt_logprobs is not None
        assert out.prompt_logprobs[1:] == pytest.approx(each.prompt_logprobs, abs=1e-3)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert [out.token_ids for out in alone] == tokens
    assert [out.cached_tokens for out in alone] == [len(prompt) - 1 for prompt in prompts]
    llm.engine.check_integrity()
    llm.shutdown()


@pytest.mark.parametrize("name", QUICK)
def test_a_decoder_without_a_family_has_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    expected = expected_of(save_any(tmp_path, *QUICK[name]))
    compare(LLM(tmp_path, max_total_tokens=512, chunked_prefill_size=16, model_impl="transformers"), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_so_have_the_other_decoders_of_transformers(name: str, tmp_path: Path) -> None:
    expected = expected_of(save_any(tmp_path, *SLOW[name]))
    compare(LLM(tmp_path, max_total_tokens=512, chunked_prefill_size=16, model_impl="transformers"), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_have_other_tokens_is_refused_by_name(name: str, tmp_path: Path) -> None:
    model_type, changes, message = REFUSED[name]
    save_any(tmp_path, model_type, changes)
    with pytest.raises(UnsupportedModelError, match=message):
        LLM(tmp_path, model_impl="transformers")


@pytest.mark.cpu
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_where_all_modules_are_known_passes_are_captured_and_a_request_has_the_bits_of_any_batch(
    family: str, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint(family)
    llm = LLM(path, model_impl="transformers", max_total_tokens=512, capture=True)
    params = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True, logprobs=3)
    together = llm.generate(PROMPTS, params, use_tqdm=False)
    captured = llm.engine.model_runner.captured
    assert captured is not None
    assert len(captured.passes) > 0
    assert not captured.reason
    for prompt, out in zip(PROMPTS, together, strict=True):
        (alone,) = llm.generate([prompt], params, use_tqdm=False)
        assert (alone.token_ids, alone.logprobs) == (out.token_ids, out.logprobs)
        assert out.token_ids == greedy(oracle(path), prompt, 6)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_few_bit_weights_are_those_of_our_own_network(quantization: str, checkpoint: Checkpoint) -> None:
    params = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True, logprobs=3)
    found, wanted = (
        LLM(checkpoint("llama"), model_impl=name, quantization=quantization, max_total_tokens=512).generate(
            PROMPTS, params, use_tqdm=False
        )
        for name in ("transformers", "nanoinfer")
    )
    for theirs, ours in zip(found, wanted, strict=True):
        assert theirs.token_ids == ours.token_ids
        for one, other in zip(theirs.logprobs or (), ours.logprobs or (), strict=True):
            assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.cpu
@torch.no_grad()
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_experts_have_few_bit_weights_and_their_results_do_not_depend_on_the_other_tokens(
    quantization: str | None, tmp_path: Path
) -> None:
    model = save_any(tmp_path, *QUICK["experts"])
    network = load_model(tmp_path, model_impl="transformers", quantization=quantization).model
    theirs, ours = (
        model.get_submodule("model.layers.1.mlp.experts"),
        network.get_submodule("model.layers.1.mlp.experts"),
    )
    assert isinstance(ours, WrappedExperts)
    assert not list(ours.parameters())
    x = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    chosen, weights = torch.arange(40).view(20, 2) % 4, torch.linspace(0.1, 0.9, 40).view(20, 2)
    found, wanted = ours(x, chosen, weights), theirs(x, chosen, weights)
    tolerance = {None: 1e-5, "int8": 0.03, "int4": 0.2}[quantization]
    assert float((found - wanted).norm() / wanted.norm()) < tolerance
    for rows in (slice(3, 4), slice(0, 7)):
        assert torch.equal(ours(x[rows], chosen[rows], weights[rows]), found[rows])


def test_adapters_add_to_it_as_if_they_were_merged(tmp_path: Path) -> None:
    save_any(tmp_path / "cohere", "cohere", {})
    folders = three_adapters(tmp_path / "cohere")
    found = outputs(LLM(tmp_path / "cohere", max_total_tokens=512, adapters=folders))
    models = {name: LLM(merged(tmp_path / "cohere", folder), max_total_tokens=512) for name, folder in folders.items()}
    for prompt, name, out in zip(PROMPTS, MIXED, found, strict=True):
        if name is not None:
            (wanted,) = outputs(models[name], [prompt], [None])
            assert out.token_ids == wanted.token_ids


@torch.no_grad()
def test_a_router_that_is_in_float32_stays_so_in_bfloat16(tmp_path: Path) -> None:
    save_any(tmp_path, *SLOW["hunyuan_moe"])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="bfloat16")
    ids = torch.arange(3, 33)
    wanted = model(ids[None]).logits[0, :-1].float().log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    (out,) = LLM(tmp_path, dtype="bfloat16", max_total_tokens=64).generate([ids.tolist()], SCORED, use_tqdm=False)
    assert out.prompt_logprobs is not None
    assert out.prompt_logprobs[1:] == pytest.approx(wanted.tolist(), abs=0.3)


@torch.no_grad()
def test_forward_tensor_runs_it_too(tmp_path: Path) -> None:
    model = save_any(tmp_path, *QUICK["sinks"])
    generator, ids = GeneratorTorch(tmp_path), torch.arange(3, 33)
    logits = generator.forward_tensor(
        ids,
        torch.arange(30),
        True,
        generator.new_kv_cache(4, 16),
        torch.tensor([[2, 0]]),
        torch.cat((torch.arange(32, 48), torch.arange(14))),
        torch.tensor([30]),
        30,
    )
    torch.testing.assert_close(logits, model(ids[None]).logits[0], rtol=1e-4, atol=1e-4)


def test_it_is_taken_where_no_family_of_ours_fits_and_says_why(tmp_path: Path) -> None:
    save_any(tmp_path, *QUICK["parallel blocks"])
    implementation = load_model(tmp_path).implementation
    assert implementation.name == "transformers"
    assert implementation.reason.startswith("not nanoinfer: architecture CohereForCausalLM: must be one of Llama")
    with pytest.raises(UnsupportedModelError, match="architecture CohereForCausalLM: must be one of Llama"):
        load_model(tmp_path, model_impl="nanoinfer")


@pytest.mark.cpu
def test_a_backend_without_sinks_is_refused(tmp_path: Path) -> None:
    save_any(tmp_path, *QUICK["sinks"])
    with pytest.raises(KernelsUnavailableError, match="attention_backend='cpp': cannot do sinks"):
        LLM(tmp_path, attention_backend="cpp", max_total_tokens=64)


def test_a_tensor_that_is_missing_or_left_over_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_any(tmp_path, *QUICK["parallel blocks"])
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.down_proj.weight"
    tensors["model.layers.1.mlp.other.weight"] = tensors.pop(name)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(WeightMismatchError, match=f"{name}: missing; model.layers.1.mlp.other.weight: unexpected"):
        LLM(tmp_path)


def test_whose_network_it_is_belongs_to_the_fingerprint_and_to_the_options(checkpoint: Checkpoint) -> None:
    ours, theirs = (load_model(checkpoint("llama"), model_impl=name) for name in ("nanoinfer", "transformers"))
    assert str(ours.implementation) == "nanoinfer"
    assert str(theirs.implementation) == "transformers (as asked for)"
    fields = [model_fields(model, LLM(checkpoint("llama"), max_total_tokens=16).engine.model_runner.attention_backend)
              for model in (ours, theirs)]  # fmt: skip
    assert fields[0]["config"] != fields[1]["config"]
    assert "transformers 5" in fields[1]["config"]
    with pytest.raises(ValueError, match="model_impl='vllm': must be one of auto, nanoinfer, transformers"):
        load_model(checkpoint("llama"), model_impl="vllm")
