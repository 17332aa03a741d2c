"""Checkpoints to be loaded, as they are and changed, and what the tests of loading ask them."""

import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nanoinfer import LLM, SamplingParams
from tests.helpers.checkpoints import greedy
from tests.helpers.rows import assert_close, logprob_of_each_token

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
Tensors = dict[str, torch.Tensor]

PROMPT = [5, 9, 200, 31, 7, 7, 250, 11, 64]
LONG_PROMPT = [*PROMPT, *range(100, 140)]
GREEDY = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True)


def rewritten(source: Path, target: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy of a checkpoint with `change` done to its tensors."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def shard(path: Path, *files: Tensors) -> None:
    """Put these tensors, a dictionary a file, in the place of what `path` holds."""
    (path / "model.safetensors").unlink(missing_ok=True)
    weight_map = {}
    for i, tensors in enumerate(files):
        save_file(tensors, path / f"part-{i}.safetensors")
        weight_map.update(dict.fromkeys(tensors, f"part-{i}.safetensors"))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def check_same_model(path: Path, model: transformers.PreTrainedModel) -> None:
    """The checkpoint gives a prompt the log-probabilities of `model`, and continues it with the same tokens."""
    params = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True, prompt_logprobs=True)
    [output] = LLM(path, max_total_tokens=128).generate(LONG_PROMPT, params)
    assert output.prompt_logprobs is not None
    assert_close(torch.tensor(output.prompt_logprobs[1:]), logprob_of_each_token(model, LONG_PROMPT)[1:])
    assert output.token_ids == greedy(model, LONG_PROMPT, 6)


def tokens_of(model: Path | str, **options: object) -> list[int]:
    return LLM(model, max_total_tokens=64, **options).generate(PROMPT, GREEDY)[0].token_ids  # type: ignore[arg-type]


def sentencepiece_model(texts: Sequence[str], size: int, **options: Any) -> tuple[bytes, Any]:
    """A SentencePiece model trained on these texts: as a file has it, and what reads it. Skips where there is none."""
    sentencepiece = pytest.importorskip("sentencepiece")
    file, kept = io.BytesIO(), {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    fields = {"vocab_size": size, "model_type": "bpe", "byte_fallback": True, "minloglevel": 2, **kept, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=file, **fields)
    return file.getvalue(), sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
