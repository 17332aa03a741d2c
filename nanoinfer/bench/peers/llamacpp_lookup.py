"""llama.cpp with prompt lookup, through llama-cpp-python's class `Llama`, whose loop it is part of: for `bench drafts`.

That loop serves one request at a time. Reads `MODEL.gguf`, as `llamacpp.py`.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any


class Peer:
    """`ngram`: how many tokens it drafts at most; 0 switches drafts off. `n_ctx`: the most tokens of a request."""

    prefix_cache = True

    def __init__(self, model: str, dtype: str, threads: int, ngram: int = 0, n_ctx: int = 1024):
        path = f"{model}.gguf"
        if not os.path.isfile(path):
            raise FileNotFoundError(
                f"{path}: not found; make it with python -m nanoinfer.bench.make_models gguf {model}"
            )
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self.llama = llama_cpp.Llama(
            model_path=path,
            n_ctx=n_ctx,
            n_threads=threads,
            n_threads_batch=threads,
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=ngram) if ngram else None,
            verbose=False,
        )
        self.versions = {"llama-cpp-python": llama_cpp.__version__}
        self.prepare(False)

    def prepare(self, shared: bool) -> None:
        """Forget all requests and their K/V."""
        self.llama.reset()
        self._waiting: deque[tuple[int, list[int], int]] = deque()
        self._running: tuple[int, Iterator[int], int] | None = None  # index, its tokens, how many are left

    def add(self, index: int, prompt: list[int], new_tokens: int) -> None:
        self._waiting.append((index, prompt, new_tokens))

    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def step(self, emit: Callable[[int, list[int]], None]) -> None:
        if self._running is None:
            index, prompt, left = self._waiting.popleft()
            tokens: Any = self.llama.generate(prompt, temp=0.0, repeat_penalty=1.0)
        else:
            index, tokens, left = self._running
        emit(index, [int(next(tokens))])
        self._running = (index, tokens, left - 1) if left > 1 else None
