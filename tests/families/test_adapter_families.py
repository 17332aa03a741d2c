"""Adapters of every family: a mixed batch has the tokens and the logits of PEFT."""

from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
import transformers

from nanoinfer import LLM
from tests.helpers.adapters import MIXED, PARAMS, PROMPTS, Name, outputs, three_adapters
from tests.helpers.checkpoints import FAMILIES
from tests.helpers.kernels import all_kernels

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]


def logits_after(model: peft.PeftModel, name: Name, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """PEFT's logits from which each of `tokens` is chosen after the prompt."""
    ids = torch.tensor([prompt + tokens])
    if name is None:
        with model.disable_adapter():
            return model(ids).logits[0, len(prompt) - 1 : -1]
    model.set_adapter(name)
    return model(ids).logits[0, len(prompt) - 1 : -1]


@pytest.mark.cpu
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_mixed_batch_has_pefts_tokens_and_logits(family: str, checkpoint: Checkpoint, oracle: Oracle) -> None:
    """With the kernels in C++, where there are any, and with plain torch."""
    path, folders = checkpoint(family), three_adapters(checkpoint(family))
    model = peft.PeftModel.from_pretrained(oracle(path), folders["small"], "small")
    try:
        for name in ("large", "some"):
            model.load_adapter(folders[name], name)
        model.eval()
        batch = [row[:5] for row in (PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[5])]
        first = model(torch.tensor(batch), adapter_names=["small", "large", "__base__", "some"]).logits[:, -1]
        wanted: list[torch.Tensor] = []
        for kernels in all_kernels("cpp"):
            llm = LLM(path, max_total_tokens=512, kernels=kernels, adapters=folders)
            of_all = outputs(llm)
            wanted = wanted or [
                logits_after(model, name, prompt, output.token_ids)
                for prompt, name, output in zip(PROMPTS, MIXED, of_all, strict=True)
            ]
            for logits, output in zip(wanted, of_all, strict=True):
                assert output.token_ids == logits.argmax(-1).tolist()
                for row, found in zip(logits.log_softmax(-1), output.logprobs, strict=True):
                    assert all(abs(float(row[token]) - value) < 1e-4 for token, value in found.items())
            of_batch = llm.generate(batch, PARAMS, use_tqdm=False, adapter=["small", "large", None, "some"])
            assert [output.token_ids[0] for output in of_batch] == first.argmax(-1).tolist()
    finally:
        model.unload()
