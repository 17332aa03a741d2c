"""vLLM's CPU build, in this process: continuous batching, chunked prefill, prefix cache."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Peer:
    """`options` are those of vLLM's LLM. The model is compiled, which is vLLM's default. With `weights=int8` and `int4`, it
    reads `MODEL.int8.compressed` and `MODEL.int4.compressed`, in the format compressed-tensors. `adapters`: name → folder;
    all of them may be in a batch. `ngram`: up to so many drafts that followed the last 2 to 5 tokens before."""

    prefix_cache = True

    def __init__(
        self,
        model: str,
        dtype: str,
        threads: int,
        weights: str | None = None,
        adapters: dict[str, str] | None = None,
        ngram: int = 0,
        **options: Any,
    ):
        model = f"{model}.{weights}.compressed" if weights else model
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_CPU_KVCACHE_SPACE="2",  # GiB
            VLLM_CPU_OMP_THREADS_BIND=f"0-{threads - 1}" if threads > 1 else "0",
            VLLM_LOGGING_LEVEL="ERROR",
            VLLM_NO_USAGE_STATS="1",
            DO_NOT_TRACK="1",
            HF_HUB_OFFLINE="1",
        )
        import torch
        import vllm

        settings = {"max_num_batched_tokens": 512, "max_num_seqs": 32, "enable_prefix_caching": True, **options}
        if ngram:
            lookup = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
            settings["speculative_config"] = {**lookup, "num_speculative_tokens": ngram}
        self._adapters: dict[str, Any] = {}
        if adapters:
            from vllm.lora.request import LoRARequest

            ranks = [json.loads((Path(path) / "adapter_config.json").read_text())["r"] for path in adapters.values()]
            settings = {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": max(ranks), **settings}
            numbered = enumerate(adapters.items(), start=1)
            self._adapters = {name: LoRARequest(name, number, path) for number, (name, path) in numbered}
        self.engine = vllm.LLM(
            model=model, dtype=dtype, skip_tokenizer_init=True, disable_log_stats=True, **settings
        ).llm_engine
        self.prefix_cache = settings["enable_prefix_caching"]
        self.versions = {"vllm": vllm.__version__, "torch": torch.__version__}
        self._serial = 0
        self._index: dict[str, int] = {}
        self._emitted: dict[int, int] = {}  # index → tokens emitted
        self._cached: dict[int, int | None] = {}

    def add(self, index: int, prompt: list[int], new_tokens: int, adapter: str | None = None) -> None:
        from vllm import SamplingParams, TokensPrompt

        self._serial += 1
        request_id = str(self._serial)
        self._index[request_id], self._emitted[index] = index, 0
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        lora = None if adapter is None else self._adapters[adapter]
        self.engine.add_request(request_id, TokensPrompt(prompt_token_ids=prompt), params, lora_request=lora)

    def busy(self) -> bool:
        return self.engine.has_unfinished_requests()

    def step(self, emit: Callable[[int, list[int]], None]) -> None:
        for output in self.engine.step():
            index = self._index[output.request_id]
            tokens = output.outputs[0].token_ids
            emit(index, list(tokens[self._emitted[index] :]))
            self._emitted[index], self._cached[index] = len(tokens), output.num_cached_tokens

    def cached_tokens(self, index: int) -> int | None:
        return self._cached[index]
