"""Sessions with every family: greedy tokens are those of transformers, one by one and as a padded batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from nanoinfer.sessions.inference import InferenceEngine
from nanoinfer.sessions.offline_scheduler import OfflineScheduler
from tests.helpers.checkpoints import FAMILIES, greedy

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]

PROMPTS = [[5, 9, 200, 31, 7], [7], [250, 11, 64, 3, 3, 3, 90, 12, 13, 14, 15], [5, 9, 201]]
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
    for i, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        if i == 2:
            scheduler.step()
            scheduler.step()
        scheduler.add_request(prompt, max_new_tokens=length, temperature=0.0, stop_on_eos=False)
    while scheduler.has_unfinished():
        scheduler.step()
    expected = [greedy(oracle(path), prompt, length) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    assert [session.generated_ids for session in scheduler.sessions.values()] == expected
