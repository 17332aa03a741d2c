"""Drafts with every family, weights and K/V in fewer bits, and adapters: the same tokens as without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import load_model
from tests.helpers.adapters import save_adapter
from tests.helpers.checkpoints import FAMILIES
from tests.helpers.drafts import ASKED, Asked, check_same, noisy, serve
from tests.helpers.engines import assert_all_free
from tests.helpers.kernels import all_kernels, need_cpp

Checkpoint = Callable[..., Path]
OF_FAMILIES: Asked = [(prompt, {**fields, "ignore_eos": i % 2 == 0}) for i, (prompt, fields) in enumerate(ASKED)]


def check_with_and_without(path: Path, draft: Path, options: dict[str, Any]) -> None:
    common = {"max_total_tokens": 512, "max_running_requests": 8, "random_seed": 0, **options}
    plain = LLM(path, **common)
    drafting = LLM(path, drafter=("ngram", "model"), draft_model=draft, adaptive_drafts=False, **common)
    outputs = serve(drafting, OF_FAMILIES)
    wanted = serve(plain, OF_FAMILIES)
    check_same(drafting, outputs, wanted)
    params = [SamplingParams(**{"max_new_tokens": 16, **fields}) for _, fields in OF_FAMILIES]
    together = drafting.generate([prompt for prompt, _ in OF_FAMILIES], params, use_tqdm=False)
    check_same(drafting, together, wanted)  # in the order of the prompts, whichever ends first
    stats = drafting.engine.stats()
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert_all_free(drafting.engine)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_same_tokens_with_drafts(family: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = checkpoint(family)
    draft = noisy(path, tmp_path / "draft")
    kernels = all_kernels("cpp")
    kernels = kernels if family in ("llama", "gemma3") else kernels[-1:]
    for each in kernels:
        check_with_and_without(path, draft, {"kernels": each, "page_size": 4, "num_draft_tokens": 3})


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8", "num_draft_tokens": 7, "capture": True},
        {"kv_cache_dtype": "int8", "page_size": 4},
        {"quantization": "int4", "kv_cache_dtype": "int8", "capture": False},
    ],
    ids=str,
)
def test_weights_and_kv_in_eight_bits_give_the_same_tokens_with_drafts(
    options: dict[str, Any], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    if options.get("capture"):
        need_cpp("float32")
    path = checkpoint()
    check_with_and_without(path, noisy(path, tmp_path / "draft"), options)


def test_adapters_give_the_same_tokens_with_drafts_of_the_base_model(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = checkpoint()
    network = load_model(path, torch.float32, kernels="torch").model
    adapters = {name: save_adapter(tmp_path / name, network, seed) for seed, name in enumerate(("one", "two"))}
    asked = [
        (prompt, {**fields, "adapter": adapter})
        for prompt, fields in OF_FAMILIES[:4]
        for adapter in (None, "one", "two")
    ]
    common: dict[str, Any] = {"max_total_tokens": 1024, "max_running_requests": 8, "adapters": adapters}
    plain = LLM(path, **common)
    drafting = LLM(path, drafter=("tree", "model"), draft_model=path, adaptive_drafts=False, **common)
    first, again, wanted = serve(drafting, asked), serve(drafting, asked), serve(plain, asked)
    check_same(drafting, first, wanted)
    check_same(drafting, again, wanted)
    assert first[0].token_ids != first[1].token_ids != first[2].token_ids, "adapters change tokens"
    assert sum(output.accepted_tokens for output in again) > sum(output.accepted_tokens for output in first)
