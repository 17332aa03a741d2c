"""Rotary tables that are stretched to longer contexts, against transformers: bit for bit, and in the tokens they give."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer import LLM, InvalidRequestError, SamplingParams, UnsupportedModelError
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.rope import RotaryEmbedding
from tests.helpers.checkpoints import REMOVED, edited, greedy, tiny_config
from tests.helpers.rows import random_tokens

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]

# What is passed to transformers is changed by it: each test makes its own dictionaries.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
OPTIONS: list[dict[str, object]] = [
    {},
    {"factor": 3.7},
    {"factor": 1.0},
    {"factor": 40},
    {"rope_theta": 1000000},
    {"original_max_position_embeddings": 32768},
    {"original_max_position_embeddings": 2},  # no pair turns once in it
    {"attention_factor": 0.7},
    {"beta_fast": 8, "beta_slow": 0.5},
    {"beta_fast": 1, "beta_slow": 1, "truncate": False},
    {"beta_fast": 0, "beta_slow": None},  # as if they were not said
    {"mscale": 1.0, "mscale_all_dim": 0.8},
    {"mscale": 1.0, "mscale_all_dim": 0.0},
    {"mscale": 2},
    {"mscale": 0.707, "mscale_all_dim": 0.8, "attention_factor": 1.2},
    {"truncate": False},
    {"truncate": False, "original_max_position_embeddings": 1000, "factor": 6.0},
]


@cache
def rotary_class(family: str) -> type[torch.nn.Module]:
    """That of transformers' own model of the family."""
    return type(transformers.AutoModelForCausalLM.from_config(tiny_config(family)).model.rotary_emb)


def tables_of_transformers(
    family: str, config: transformers.PretrainedConfig, max_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines `[max_len, D]` from the family's rotary module."""
    rotary = rotary_class(family)(config)
    cos, sin = rotary(torch.zeros(1), torch.arange(max_len)[None])
    return cos[0], sin[0]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("family", "theta", "head_dim"), [("llama", 1e4, 16), ("qwen2", 1e6, 16), ("qwen3", 5e5, 24)])
def test_yarn_tables_are_those_of_transformers_bit_for_bit(
    family: str, theta: float, head_dim: int, options: dict[str, object]
) -> None:
    changes = {"head_dim": head_dim} if family == "qwen3" else {}
    rope = {"rope_theta": theta, **YARN, **options}
    hf = tiny_config(family, architectures=None, rope_parameters=rope, **changes)
    config = ModelConfig.from_hf_config(hf)
    assert config.rope_scaling.rope_type == "yarn"
    max_len = 300
    ours = RotaryEmbedding(
        config.head_dim, max_len, config.rope_theta, config.rope_scaling, torch.float32, torch.device("cpu")
    )
    cos, sin = tables_of_transformers(family, hf, max_len)
    assert torch.equal(torch.cat((ours.cos, ours.cos), dim=-1), cos)
    assert torch.equal(torch.cat((ours.sin, ours.sin), dim=-1), sin)


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling", "type"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_yarn_gives_the_tokens_of_transformers_beyond_the_original_context(
    family: str, spelling: str, checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    """Said as transformers 5 does, as before, and as long before; the prompt alone is longer than the original context."""
    old = {key: value for key, value in YARN.items() if key != "rope_type"}
    changes = {
        "rope_parameters": {"rope_parameters": {"rope_theta": 500.0, **YARN}},
        "rope_scaling": {"rope_parameters": REMOVED, "rope_theta": 500.0, "rope_scaling": YARN},
        "type": {"rope_parameters": REMOVED, "rope_theta": 500.0, "rope_scaling": {"type": "yarn", **old}},
    }[spelling]
    path = edited(checkpoint(family), tmp_path / "yarn", **changes)
    llm = LLM(path, max_total_tokens=256)
    prompts = [random_tokens(40, seed=7), random_tokens(9, seed=8)]
    params = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
    outs = llm.generate(prompts, params, use_tqdm=False)
    for prompt, out in zip(prompts, outs, strict=True):
        assert out.token_ids == greedy(oracle(path), prompt, 12)
    unstretched = edited(checkpoint(family), tmp_path / "plain", rope_parameters={"rope_theta": 500.0})
    assert outs[0].token_ids != LLM(unstretched, max_total_tokens=256).generate(prompts[0], params)[0].token_ids


def test_a_config_made_longer_by_yarn_alone_serves_the_longer_context(
    checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    """Qwen's advice adds `rope_scaling` to a config and leaves its `max_position_embeddings` as it was."""
    path = edited(
        checkpoint("qwen3"),
        tmp_path / "long",
        max_position_embeddings=20,
        rope_parameters=REMOVED,
        rope_theta=1e6,
        rope_scaling=YARN,
    )
    llm = LLM(path)
    assert llm.config.max_context_len == 64
    assert len(llm.model.model.rotary.cos) == 64
    params = SamplingParams(max_new_tokens=14, temperature=0, ignore_eos=True)
    prompt = random_tokens(50, seed=9)
    assert llm.generate(prompt, params)[0].token_ids == greedy(oracle(path), prompt, 14)
    with pytest.raises(InvalidRequestError, match="64"):
        llm.generate(random_tokens(64, seed=9), params)


def test_a_context_that_is_longer_than_yarn_makes_it_stays(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "long", rope_parameters={"rope_theta": 1e4, **YARN})
    assert ModelConfig.from_pretrained(path).max_position_embeddings == 256


def test_phi3_has_no_yarn(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """transformers takes the name for longrope there."""
    path = edited(checkpoint("phi3"), tmp_path / "yarn", rope_parameters={"rope_theta": 1e4, **YARN})
    with pytest.raises(UnsupportedModelError, match="longrope"):
        LLM(path)


def test_gemma_stretches_the_layers_that_see_everything(checkpoint: Checkpoint, oracle: Oracle) -> None:
    """`truncate` among the parameters of a type of layer has no effect in transformers."""
    ropes = {
        "full_attention": {"rope_theta": 500.0, **YARN, "truncate": False},
        "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
    }
    path = checkpoint("gemma3", rope_parameters=ropes)
    assert ModelConfig.from_pretrained(path).rope_scaling.truncate is True
    llm = LLM(path, max_total_tokens=256)
    prompt = random_tokens(40, seed=7)
    out = llm.generate(prompt, SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True))[0]
    assert out.token_ids == greedy(oracle(path), prompt, 12)
