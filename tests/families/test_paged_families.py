"""forward_tensor, sessions and drafts with every family, kind of weights and K/V: logits and tokens are those of
transformers or of an engine without drafts."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nanoinfer import LLM, SamplingParams
from nanoinfer.ascend.generator import GeneratorTorch
from nanoinfer.model.loader import load_model
from nanoinfer.sessions.inference import InferenceEngine
from nanoinfer.sessions.offline_scheduler import OfflineScheduler
from tests.helpers.adapters import save_adapter
from tests.helpers.checkpoints import FAMILIES, greedy
from tests.helpers.drafts import ASKED, Asked, check_same, noisy, serve
from tests.helpers.engines import assert_all_free
from tests.helpers.kernels import all_kernels, need_cpp
from tests.helpers.paged import FAMILIES as OF_PAGED
from tests.helpers.paged import PROMPTS, Caller, close

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]


@pytest.mark.parametrize(
    ("family", "block_size"),
    [
        *(("llama", block_size) for block_size in (1, 4, 16, 128)),
        *((family, block_size) for i, family in enumerate(FAMILIES[1:]) for block_size in ((1, 16), (4, 128))[i % 2]),
    ],
)
def test_prefill_and_decode_have_the_logits_of_transformers(
    family: str, block_size: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint(family, **OF_PAGED[family])

    @torch.no_grad()
    def expected(tokens: Sequence[int]) -> torch.Tensor:
        return oracle(path)(torch.tensor([tokens])).logits[0]

    caller = Caller(GeneratorTorch(path), num_blocks=160 // block_size + 8, block_size=block_size)
    close(caller.prefill(dict(enumerate(PROMPTS))), torch.cat([expected(prompt) for prompt in PROMPTS]))
    for step in range(6):
        new = {i: [50 * i + step] for i in range(len(PROMPTS))}
        close(caller.decode(new), torch.stack([expected(caller.tokens[i])[-1] for i in new]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_any_mix_of_chunks_and_drafts_in_any_order(
    seed: int, family: str, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint(family, **OF_PAGED[family])
    rng = random.Random(seed)
    block_size = rng.choice([1, 3, 4, 16])
    caller = Caller(GeneratorTorch(path), 5 * (60 // block_size + 1), block_size, seed)
    for _ in range(10):
        requests = rng.sample(range(5), rng.randint(1, 5))
        new = {i: [rng.randrange(320) for _ in range(rng.choice([1, 1, 2, 5]))] for i in requests}
        is_prefill = rng.random() < 0.4
        q_lens = [len(tokens) for tokens in new.values()]
        logits = caller.run(new, is_prefill, q_lens=q_lens if max(q_lens) > 1 or rng.random() < 0.5 else None)
        with torch.no_grad():
            expected = {i: oracle(path)(torch.tensor([caller.tokens[i]])).logits[0] for i in new}
        close(logits, torch.cat([expected[i][-len(new[i]) :] for i in new]))


SESSIONS = [[5, 9, 200, 31, 7], [7], [250, 11, 64, 3, 3, 3, 90, 12, 13, 14, 15], [5, 9, 201]]
LENGTHS = [6, 9, 3, 12]
OPTIONS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 4, "head_dim": 24},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 1},
    "gemma3": {"final_logit_softcapping": 0.3},
    "phi3": {"sliding_window": 4},
}


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(
    family: str, batched: bool, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    """The last two requests join after two steps."""
    path = checkpoint(family, **OPTIONS.get(family, {}))
    scheduler = OfflineScheduler(InferenceEngine(path), batched)
    for i, (prompt, length) in enumerate(zip(SESSIONS, LENGTHS, strict=True)):
        if i == 2:
            scheduler.step()
            scheduler.step()
        scheduler.add_request(prompt, max_new_tokens=length, temperature=0.0, stop_on_eos=False)
    while scheduler.has_unfinished():
        scheduler.step()
    expected = [greedy(oracle(path), prompt, length) for prompt, length in zip(SESSIONS, LENGTHS, strict=True)]
    assert [session.generated_ids for session in scheduler.sessions.values()] == expected


OF_FAMILIES: Asked = [(prompt, {**fields, "ignore_eos": i % 2 == 0}) for i, (prompt, fields) in enumerate(ASKED)]


def check_with_and_without(path: Path, draft: Path, options: dict[str, Any]) -> None:
    common = {"max_total_tokens": 512, "max_running_requests": 8, "random_seed": 0, **options}
    plain = LLM(path, **common)
    speculative = LLM(path, drafter=("ngram", "model"), draft_model=draft, adaptive_drafts=False, **common)
    outputs = serve(speculative, OF_FAMILIES)
    wanted = serve(plain, OF_FAMILIES)
    check_same(speculative, outputs, wanted)
    params = [SamplingParams(**{"max_new_tokens": 16, **fields}) for _, fields in OF_FAMILIES]
    together = speculative.generate([prompt for prompt, _ in OF_FAMILIES], params, use_tqdm=False)
    check_same(speculative, together, wanted)  # in the order of the prompts, whichever ends first
    stats = speculative.engine.stats()
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert_all_free(speculative.engine)


@pytest.mark.cpu
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
    speculative = LLM(path, drafter=("tree", "model"), draft_model=path, adaptive_drafts=False, **common)
    first, again, wanted = serve(speculative, asked), serve(speculative, asked), serve(plain, asked)
    check_same(speculative, first, wanted)
    check_same(speculative, again, wanted)
    assert first[0].token_ids != first[1].token_ids != first[2].token_ids, "adapters change tokens"
    assert sum(output.accepted_tokens for output in again) > sum(output.accepted_tokens for output in first)
