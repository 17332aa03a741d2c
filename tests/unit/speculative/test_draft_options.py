"""What a configuration may ask of drafters and draft models, and what is refused by name."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from nanoinfer import LLM, SamplingParams
from nanoinfer.config import EngineConfig
from nanoinfer.speculative.load import BUNDLED_DRAFT_MODELS, draft_model_of
from tests.helpers.tiny_llm import save_tokenizer

Checkpoint = Callable[..., Path]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafter": ("ngram", "oracle")}, "drafter='oracle'.*ngram"),
        ({"drafter": ("ngram", "tree", "ngram")}, "drafter"),
        ({"drafter": "ngram", "num_draft_tokens": 0}, "num_draft_tokens=0"),
        ({"drafter": "ngram", "num_scheduler_steps": 2}, "num_scheduler_steps=2"),
    ],
)
def test_what_cannot_be_is_refused_by_name_value_and_limit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(4, 64, 64, **options)


def test_a_draft_model_is_found_by_the_models_name_or_given() -> None:
    for model, draft in BUNDLED_DRAFT_MODELS.items():
        assert draft_model_of(model, None, ("ngram", "model")) == draft
        assert draft_model_of(model, "mine", ("model",)) == "mine"
        assert draft_model_of(model, None, ("ngram",)) is None
    with pytest.raises(ValueError, match="draft_model"):
        draft_model_of("/some/where", None, ("model",))
    with pytest.raises(ValueError, match="draft_model='mine'"):
        draft_model_of("story", "mine", ("ngram", "tree"))


def test_an_llm_refuses_a_draft_model_that_cannot_serve_it(checkpoint: Checkpoint, tmp_path: Path) -> None:
    model, fields = checkpoint(), {"max_total_tokens": 64, "drafter": "model"}
    with pytest.raises(ValueError, match="draft_model"):
        LLM(model, **fields)
    with pytest.raises(ValueError, match="draft_model"):
        LLM(model, max_total_tokens=64, drafter="ngram", draft_model=model)
    with pytest.raises(ValueError, match="288"):
        LLM(model, draft_model=checkpoint(vocab_size=288), **fields)
    with pytest.raises(ValueError, match="max_context_len=256"):
        LLM(model, draft_model=checkpoint(max_position_embeddings=128), **fields)
    short = LLM(model, draft_model=checkpoint(max_position_embeddings=128), max_context_len=128, **fields)
    assert short.draft_model is not None
    assert short.config.max_context_len == 128
    with pytest.raises(OSError, match="nowhere"):
        LLM(model, draft_model=tmp_path / "nowhere", **fields)


@pytest.mark.parametrize("size", [304, 352])
def test_a_draft_model_may_have_a_table_of_another_size_for_the_same_tokens(
    size: int, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Ids from 300 on are no tokens; such tables are padded to sizes that a GPU likes."""
    path, draft = tmp_path / "model", tmp_path / "draft"
    shutil.copytree(checkpoint(), path)
    shutil.copytree(checkpoint(vocab_size=size), draft)
    tensors, common = load_file(path / "model.safetensors"), min(size, 320)
    drafts = load_file(draft / "model.safetensors")  # the draft model is always right, and its padding is likely
    for name in drafts:
        drafts[name][:common] = tensors[name][:common]
    drafts["lm_head.weight"][common:] *= 10
    save_file(drafts, draft / "model.safetensors")
    for folder in (path, draft):
        save_tokenizer(folder, 300)
    fields = {"max_total_tokens": 256, "drafter": "model", "adaptive_drafts": False}
    llm = LLM(path, draft_model=draft, **fields)
    assert llm.draft_model is not None
    assert llm.draft_model.config.vocab_size == 320
    prompts = [[5, 9, 200], [319, 310, 7], [303, 304, 305]]
    params = [SamplingParams(max_new_tokens=16, **more) for more in ({"temperature": 0}, {"seed": 1}, {"seed": 2})]
    plain = LLM(path, max_total_tokens=256).generate(prompts, params, use_tqdm=False)
    drafted = llm.generate(prompts, params, use_tqdm=False)
    assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
    assert sum(output.accepted_tokens for output in drafted) > 0
    save_tokenizer(draft, 312)
    with pytest.raises(ValueError, match="w300"):
        LLM(path, draft_model=draft, **fields)
    for folder in (path, draft):
        save_tokenizer(folder, 310)
    if size == 304:  # then it lacks tokens, and not only padding
        with pytest.raises(ValueError, match="304"):
            LLM(path, draft_model=draft, **fields)
