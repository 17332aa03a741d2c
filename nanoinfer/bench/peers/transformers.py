"""Hugging Face transformers: `generate` on left-padded batches, without continuous batching or a prefix cache. Adapters by
PEFT: one batch, in which every request has its own adapter or none."""

import os
from collections import deque
from collections.abc import Callable
from typing import Any

BASE = "__base__"  # PEFT's name for no adapter


class Peer:
    """Waiting requests go into one batch of at most `max_batch`, which runs until its longest output is done. `adapters`:
    name → folder, in the model's dtype."""

    prefix_cache = False

    def __init__(
        self,
        model: str,
        dtype: str,
        threads: int,
        max_batch: int = 16,
        device: str = "cpu",
        adapters: dict[str, str] | None = None,
    ):
        import torch
        import transformers

        if os.path.isfile(model):
            raise ValueError(f"{model}: must be a checkpoint folder for this engine")
        transformers.utils.logging.set_verbosity_error()
        torch.set_num_threads(threads)
        self.max_batch, self.device = max_batch, device
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self._adapters: dict[int, str] = {}  # index → name
        if adapters:
            import peft

            (first, path), *others = adapters.items()
            self.model = peft.PeftModel.from_pretrained(self.model, path, first, autocast_adapter_dtype=False)
            for name, path in others:
                self.model.load_adapter(path, name, autocast_adapter_dtype=False)
            self.versions["peft"] = peft.__version__
        self.model.eval().to(device)
        self._waiting: deque[tuple[int, list[int], int]] = deque()

    def logits(self, tokens: list[int]) -> Any:
        """The logits after each token, [T, V] float32, for `bench quality`."""
        import torch

        with torch.inference_mode():
            return self.model(torch.tensor([tokens], device=self.device)).logits[0].float().cpu().numpy()

    def add(self, index: int, prompt: list[int], new_tokens: int, adapter: str | None = None) -> None:
        self._waiting.append((index, prompt, new_tokens))
        self._adapters[index] = BASE if adapter is None else adapter

    def busy(self) -> bool:
        return bool(self._waiting)

    def step(self, emit: Callable[[int, list[int]], None]) -> None:
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        batch = [self._waiting.popleft() for _ in range(min(self.max_batch, len(self._waiting)))]
        width = max(len(prompt) for _, prompt, _ in batch)
        padding = [width - len(prompt) for _, prompt, _ in batch]
        ids = torch.tensor(
            [[0] * pad + prompt for pad, (_, prompt, _) in zip(padding, batch, strict=True)], device=self.device
        )
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding], device=self.device)

        class Watch(StoppingCriteria):
            """Called after every token, so that each token is reported when it appears."""

            def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
                newest = input_ids[:, -1].tolist()
                for token, (index, _prompt, new_tokens) in zip(newest, batch, strict=True):
                    if input_ids.shape[1] - width <= new_tokens:
                        emit(index, [token])
                return torch.zeros(len(batch), dtype=torch.bool, device=input_ids.device)

        names = [self._adapters[index] for index, _, _ in batch]
        more = {} if set(names) == {BASE} else {"adapter_names": names}
        with torch.inference_mode():
            self.model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max(new_tokens for _, _, new_tokens in batch),
                do_sample=False,
                stopping_criteria=StoppingCriteriaList([Watch()]),
                **more,
            )
