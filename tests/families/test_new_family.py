"""Families that are added from outside the package: Gemma 2, a Llama with other fields, and Arcee, with another MLP."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from nanoinfer import LLM, SamplingParams, UnsupportedModelError
from nanoinfer.ascend.generator import GeneratorTorch
from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.config import ModelConfig, read_activation, read_sliding_windows
from nanoinfer.model.gemma3 import Gemma3ForCausalLM
from nanoinfer.model.layers.linear import Linear
from nanoinfer.model.llama import DecoderLayer, LlamaForCausalLM
from nanoinfer.model.loader import load_model
from nanoinfer.registry import MODEL_FAMILIES
from nanoinfer.sessions.inference import InferenceEngine
from tests.helpers.adapters import MIXED, merged, outputs, three_adapters
from tests.helpers.adapters import PROMPTS as ADAPTED_PROMPTS
from tests.helpers.checkpoints import edited, greedy
from tests.helpers.kernels import all_kernels
from tests.helpers.paged import Caller
from tests.helpers.rows import compare_all_passes
from tests.helpers.split_models import split_llm

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]

PROMPTS = [[5, 9, 200, 31, 7, 7, 250, 11, 64], [7], list(range(100, 123))]
GREEDY = SamplingParams(max_new_tokens=8, temperature=0, ignore_eos=True)


class Gemma2ForCausalLM(Gemma3ForCausalLM):
    """Gemma 2: Gemma 3's layers with one rotary table, softcaps, and no norms of query and key heads."""

    model_type = "gemma2"

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        return ModelConfig.of_decoder(
            hf,
            activation=read_activation(hf, "hidden_activation"),
            sliding_windows=read_sliding_windows(hf),
            norm_offset=1.0,
            embedding_scale=hf.hidden_size**0.5,
            attention_scale=hf.query_pre_attn_scalar**-0.5,
            attention_softcap=hf.attn_logit_softcapping,
            logit_softcap=hf.final_logit_softcapping,
        )


@pytest.mark.parametrize("attention_backend", ["auto", "torch_native"])
def test_gemma_2_added_from_outside_has_the_tokens_of_transformers(
    attention_backend: str, checkpoint: Checkpoint, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint("gemma2", final_logit_softcapping=0.2, attn_logit_softcapping=0.7)
    with pytest.raises(UnsupportedModelError, match=r"Gemma2ForCausalLM: must be one of LlamaForCausalLM, .*Phi3"):
        LLM(path, model_impl="nanoinfer")
    monkeypatch.setitem(MODEL_FAMILIES, "Gemma2ForCausalLM", Gemma2ForCausalLM)
    llm = LLM(path, max_total_tokens=128, attention_backend=attention_backend)
    expected = [greedy(oracle(path), prompt, 8) for prompt in PROMPTS]
    for _ in range(2):  # the second time from the cache
        assert [out.token_ids for out in llm.generate(PROMPTS, GREEDY, use_tqdm=False)] == expected
    llm.engine.check_integrity()


class ScaledLlama(LlamaForCausalLM):
    """A Llama with another activation, scaled embeddings, scaled scores, and scaled and capped logits."""

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        config = super().read_config(hf)
        return replace(
            config,
            activation="gelu_tanh_and_mul",
            embedding_scale=2.0,
            attention_scale=0.4,
            logit_scale=0.6,
            logit_softcap=1.5,
        )


@pytest.mark.cpu
@torch.no_grad()
def test_a_llama_with_other_fields_is_the_same_in_engine_sessions_and_forward_tensor(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers' Llama, changed by hand in the same five places, is the oracle."""
    monkeypatch.setitem(MODEL_FAMILIES, "ScaledLlama", ScaledLlama)
    path = edited(checkpoint("llama"), tmp_path / "scaled", architectures=["ScaledLlama"])
    oracle = transformers.LlamaForCausalLM.from_pretrained(checkpoint("llama"), attn_implementation="eager").eval()
    oracle.model.embed_tokens.weight.mul_(2.0)
    for layer in oracle.model.layers:
        layer.mlp.act_fn = torch.nn.GELU(approximate="tanh")
        layer.self_attn.scaling = 0.4
    oracle.lm_head.register_forward_hook(lambda module, args, logits: 1.5 * torch.tanh(0.6 * logits / 1.5))
    expected = [greedy(oracle, prompt, 8) for prompt in PROMPTS]
    assert expected != [greedy(oracle.from_pretrained(checkpoint("llama")), prompt, 8) for prompt in PROMPTS]

    llm = LLM(path, max_total_tokens=128)
    assert [out.token_ids for out in llm.generate(PROMPTS, GREEDY, use_tqdm=False)] == expected
    sessions = InferenceEngine(llm.model)
    assert [sessions.generate(prompt, 8, temperature=0.0, stop_on_eos=False) for prompt in PROMPTS] == expected
    logits = Caller(GeneratorTorch(llm.model), 16, 4).prefill(dict(enumerate(PROMPTS)))
    wanted = torch.cat([oracle(torch.tensor([prompt]), use_cache=False).logits[0] for prompt in PROMPTS])
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)
    assert float(logits.abs().max()) <= 1.5
    (out,) = llm.generate([PROMPTS[0]], SamplingParams(max_new_tokens=1, prompt_logprobs=True), use_tqdm=False)
    table = wanted[: len(PROMPTS[0]) - 1].log_softmax(-1)
    following = torch.tensor(PROMPTS[0][1:])[:, None]
    assert out.prompt_logprobs[1:] == pytest.approx(table.gather(1, following)[:, 0].tolist(), abs=1e-4)


def test_the_model_type_must_be_the_familys(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODEL_FAMILIES, "ScaledLlama", ScaledLlama)
    path = edited(checkpoint("qwen2"), tmp_path / "other", architectures=["ScaledLlama"])
    with pytest.raises(
        UnsupportedModelError, match="model_type='qwen2': must be 'llama' with architecture ScaledLlama"
    ):
        LLM(path)


def test_a_family_may_be_registered_as_the_module_that_has_it(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported when a checkpoint needs it, and not before."""
    (tmp_path / "lazy_family.py").write_text(
        "from nanoinfer.model.llama import LlamaForCausalLM\nclass LazyForCausalLM(LlamaForCausalLM): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(MODEL_FAMILIES, "LazyForCausalLM", "lazy_family")
    LLM(checkpoint("llama"), max_total_tokens=64)
    assert "lazy_family" not in sys.modules
    LLM(edited(checkpoint("llama"), tmp_path / "lazy", architectures=["LazyForCausalLM"]), max_total_tokens=64)
    assert sys.modules.pop("lazy_family")


@dataclass(frozen=True)
class ArceeConfig(ModelConfig):
    """A decoder that says one thing more."""

    mlp_activation: str = ""


class UngatedMLP(nn.Module):
    """`down(relu(up(x))²)`."""

    def __init__(self, config: ArceeConfig, dtype: torch.dtype, device: torch.device):
        super().__init__()
        assert config.mlp_activation == "relu2"
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, config.mlp_bias, dtype, device)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias, dtype, device)

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        return self.down_proj(self.up_proj(x, adapters).relu().square(), adapters)


class ArceeDecoderLayer(DecoderLayer):
    def new_mlp(self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device) -> Any:
        assert isinstance(config, ArceeConfig)
        return UngatedMLP(config, dtype, device)


class ArceeForCausalLM(LlamaForCausalLM):
    model_type = "arcee"
    layer_class = ArceeDecoderLayer

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        return ArceeConfig.of_decoder(
            hf,
            activation="",
            mlp_activation=hf.hidden_act,
            qkv_bias=hf.attention_bias,
            o_bias=hf.attention_bias,
            mlp_bias=hf.mlp_bias,
        )


@pytest.fixture
def arcee(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of a family that is registered as long as the test runs."""
    monkeypatch.setitem(MODEL_FAMILIES, "ArceeForCausalLM", ArceeForCausalLM)
    return checkpoint("arcee", mlp_bias=True)


@pytest.mark.cpu
def test_a_family_with_another_mlp_has_the_logits_and_tokens_of_transformers(arcee: Path, oracle: Oracle) -> None:
    compare_all_passes(load_model(arcee), oracle(arcee), page_size=4)
    expected = [greedy(oracle(arcee), prompt, 8) for prompt in ADAPTED_PROMPTS]
    for kernels in all_kernels("cpp"):
        llm = LLM(arcee, max_total_tokens=128, kernels=kernels)
        for _ in range(2):  # the second time from the cache
            assert [out.token_ids for out in llm.generate(ADAPTED_PROMPTS, GREEDY, use_tqdm=False)] == expected
        llm.engine.check_integrity()


def test_another_mlp_takes_adapters(arcee: Path) -> None:
    """The oracle: models into which the adapters are merged."""
    folders = three_adapters(arcee)
    models = {name: LLM(merged(arcee, folder), max_total_tokens=256) for name, folder in folders.items()}
    found = outputs(LLM(arcee, max_total_tokens=512, adapters=folders))
    for prompt, name, out in zip(ADAPTED_PROMPTS, MIXED, found, strict=True):
        (wanted,) = outputs(models[name] if name else LLM(arcee, max_total_tokens=256), [prompt], [None])
        assert out.token_ids == wanted.token_ids


def test_another_mlp_cannot_be_split_and_is_refused_by_name(arcee: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArceeForCausalLM, "__module__", "nanoinfer.model.arcee")
    message = r"size=2: ArceeForCausalLM has a layer model\.layers\.0\.mlp\.up_proj that cannot be split"
    with pytest.raises(UnsupportedModelError, match=message), split_llm(arcee, 2):
        pass
