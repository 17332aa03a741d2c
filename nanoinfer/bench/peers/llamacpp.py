"""llama.cpp, through llama-cpp-python's low-level interface. Reads `MODEL.gguf`, or with `weights=int8` (Q8_0) and `int4`
(Q4_0) `MODEL.int8.gguf` and `MODEL.int4.gguf`. (A model that is a GGUF file has the suffix already.)

llama.cpp leaves batching to its caller, so this file has the loop of a small server. A batch contains one decode token for
every request whose prompt is computed, and then as many prompt tokens of the other requests as fit.
"""

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

Emit = Callable[[int, list[int]], None]


@dataclass
class Running:
    """A request in a slot. `done` of its tokens are in the K/V cache; `token` is the newest token, once there is one."""

    index: int
    prompt: list[int]
    left: int
    done: int
    token: int | None = None


class Peer:
    """16 slots. Prompts that share nothing have one K/V region per slot, which is faster. Those that share a prefix use one
    pool, in which K/V is copied by reference."""

    prefix_cache = True

    def __init__(
        self,
        model: str,
        dtype: str,
        threads: int,
        weights: str | None = None,
        slots: int = 16,
        batch_tokens: int = 512,
    ):
        path = f"{model.removesuffix('.gguf')}{f'.{weights}' if weights else ''}.gguf"
        if not os.path.isfile(path):
            raise FileNotFoundError(f"{path}: not found; python -m nanoinfer.bench.make_models gguf makes it")
        import ctypes

        import llama_cpp

        self.lib, self.slots, self.batch_tokens, self.threads = llama_cpp, slots, batch_tokens, threads
        self._silence = llama_cpp.llama_log_callback(lambda *_: None)  # kept alive: C calls it at any time
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"{path}: llama.cpp could not load it")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.max_len = llama_cpp.llama_model_n_ctx_train(self.model)
        self.batch = llama_cpp.llama_batch_init(batch_tokens, 0, slots)
        self.context: Any = None
        self.shared = False
        self.prepare(False)
        self.versions = {"llama-cpp-python": llama_cpp.__version__}

    def prepare(self, shared: bool) -> None:
        """Make an empty context for prompts that share a prefix (`shared`) or share nothing."""
        lib = self.lib
        if self.context is None or shared != self.shared:
            if self.context is not None:
                lib.llama_free(self.context)
            params = lib.llama_context_default_params()
            region = min(self.max_len, 2304)  # the longest request of any workload, rounded up
            params.n_ctx = 16384 if shared else region * self.slots
            params.n_batch = params.n_ubatch = self.batch_tokens
            params.n_seq_max = self.slots
            params.n_threads = params.n_threads_batch = self.threads
            params.kv_unified = shared
            self.context, self.shared = lib.llama_init_from_model(self.model, params), shared
            if not self.context:
                raise RuntimeError("llama.cpp could not make a context")
            self.memory = lib.llama_get_memory(self.context)
        lib.llama_memory_clear(self.memory, True)
        self._waiting: deque[tuple[int, list[int], int]] = deque()
        self._running: dict[int, Running] = {}  # by slot
        self._stored: dict[int, tuple[list[int], int]] = {}  # slot → its prompt, number of its tokens computed
        self._cached: dict[int, int] = {}

    def logits(self, tokens: list[int]) -> Any:
        """The logits after each token, [T, V] float32, for `bench quality`."""
        import numpy as np

        self.prepare(False)
        rows = []
        for start in range(0, len(tokens), self.batch_tokens):
            self.batch.n_tokens = 0
            for i, token in enumerate(tokens[start : start + self.batch_tokens], start):
                self._push(token, i, 0, True)
            self._decode()
            rows += [self._logits(row).copy() for row in range(self.batch.n_tokens)]
        return np.stack(rows)

    def add(self, index: int, prompt: list[int], new_tokens: int) -> None:
        self._waiting.append((index, prompt, new_tokens))

    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def cached_tokens(self, index: int) -> int:
        return self._cached[index]

    def step(self, emit: Emit) -> None:
        self._admit()
        wanted = self._fill_batch()
        self._decode()
        for row, slot in wanted:
            token = int(self._logits(row).argmax())
            request = self._running[slot]
            request.token, request.left = token, request.left - 1
            emit(request.index, [token])
            if not request.left:
                del self._running[slot]

    def _decode(self) -> None:
        if code := self.lib.llama_decode(self.context, self.batch):
            raise RuntimeError(f"llama_decode returned {code}")

    def _logits(self, row: int) -> Any:
        import numpy as np

        logits = self.lib.llama_get_logits_ith(self.context, row)
        return np.ctypeslib.as_array(logits, (self.vocab_size,))

    def _admit(self) -> None:
        """Put waiting requests into free slots, each with the longest prefix that some slot has computed already.

        A request that shares a longer prefix with a prompt being computed waits for it, and so do those behind it.
        """
        while self._waiting and len(self._running) < self.slots:
            index, prompt, new_tokens = self._waiting[0]
            source, start = None, 0
            if self.shared:
                overlaps = {slot: self._overlap(slot, prompt) for slot in self._stored}
                source = max(overlaps, key=lambda slot: overlaps[slot][1], default=None)
                start = 0 if source is None else overlaps[source][1]
                if any(slot in self._running and common > start for slot, (common, _) in overlaps.items()):
                    return
            self._waiting.popleft()
            free = [slot for slot in range(self.slots) if slot not in self._running]
            slot = next((slot for slot in free if slot != source), free[0])
            if slot != source:
                self.lib.llama_memory_seq_rm(self.memory, slot, -1, -1)
                if start:
                    self.lib.llama_memory_seq_cp(self.memory, source, slot, -1, -1)
            self.lib.llama_memory_seq_rm(self.memory, slot, start, -1)
            self._stored[slot], self._cached[index] = (prompt, start), start
            self._running[slot] = Running(index, prompt, new_tokens, start)

    def _overlap(self, slot: int, prompt: list[int]) -> tuple[int, int]:
        """The number of tokens in the common prefix of the slot's prompt and `prompt` (without its last token), and how
        many of these are already computed."""
        stored, done = self._stored[slot]
        pairs = zip(prompt[:-1], stored, strict=False)  # to the end of the shorter one
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return common, min(common, done)

    def _fill_batch(self) -> list[tuple[int, int]]:
        """Fill the batch with decode tokens first, then prompt tokens. Returns the rows whose logits are wanted, with their
        slots."""
        wanted: list[tuple[int, int]] = []
        self.batch.n_tokens = 0
        for slot, request in self._running.items():
            if request.token is not None:
                wanted.append((self._push(request.token, request.done, slot, True), slot))
                request.done += 1
        for slot, request in self._running.items():
            if request.token is None:
                end = min(len(request.prompt), request.done + self.batch_tokens - self.batch.n_tokens)
                for position in range(request.done, end):
                    is_last = position == len(request.prompt) - 1
                    row = self._push(request.prompt[position], position, slot, is_last)
                    wanted += [(row, slot)] * is_last
                request.done = end
                self._stored[slot] = (request.prompt, end)
        return wanted

    def _push(self, token: int, position: int, slot: int, want: bool) -> int:
        """Add a token to the batch; returns its row."""
        batch, row = self.batch, self.batch.n_tokens
        batch.token[row], batch.pos[row], batch.logits[row] = token, position, want
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, slot
        batch.n_tokens = row + 1
        return int(row)
