"""llama.cpp's calls for one context, in Python: K/V of a token is the token, and the next token is a sum over all."""

import ctypes
import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

VOCAB = 64
LOAD_ERROR = 0  # what llama.cpp returns instead of a number of bytes


class Context:
    """`kv`: slot → its tokens. `computed`: how many tokens each decode had. `calls`: what was saved and restored."""

    def __init__(self) -> None:
        self.kv: dict[int, list[int]] = defaultdict(list)
        self.rows: list[np.ndarray] = []
        self.computed: list[int] = []
        self.calls: list[str] = []


class FakeLlamaCpp:
    """The module `llama_cpp`, as far as its peers use it."""

    __version__ = "fake"
    llama_token = ctypes.c_int32

    def __init__(self) -> None:
        self.context = Context()
        for name in ("llama_log_set", "llama_backend_init", "llama_free", "llama_model_get_vocab"):
            setattr(self, name, lambda *args: None)
        self.llama_log_callback = lambda function: function
        self.llama_model_load_from_file = lambda path, params: "model"
        self.llama_model_default_params = self.llama_context_default_params = SimpleNamespace
        self.llama_vocab_n_tokens = lambda vocab: VOCAB
        self.llama_model_n_ctx_train = lambda model: 256
        self.llama_init_from_model = lambda model, params: self.context
        self.llama_get_memory = lambda context: context

    def llama_batch_init(self, size: int, embd: int, slots: int) -> Any:
        fields: dict[str, Any] = {name: [0] * size for name in ("token", "pos", "logits", "n_seq_id")}
        return SimpleNamespace(n_tokens=0, seq_id=[[0] for _ in range(size)], **fields)

    def llama_memory_clear(self, memory: Context, data: bool) -> None:
        memory.kv.clear()

    def llama_memory_seq_rm(self, memory: Context, slot: int, start: int, end: int) -> bool:
        assert end == -1
        del memory.kv[slot][max(start, 0) :]
        return True

    def llama_decode(self, context: Context, batch: Any) -> int:
        context.rows, rows = [], range(batch.n_tokens)
        for i in rows:
            kv = context.kv[batch.seq_id[i][0]]
            assert batch.pos[i] == len(kv), "a position is left out, or computed again"
            kv.append(batch.token[i])
            context.rows.append(np.eye(VOCAB, dtype=np.float32)[sum(kv) * 7 % VOCAB])
        context.computed.append(len(rows))
        return 0

    def llama_get_logits_ith(self, context: Context, row: int) -> Any:
        return context.rows[row].ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    def llama_state_seq_get_size(self, context: Context, slot: int) -> int:
        return 4 * len(context.kv[slot])

    def llama_state_seq_get_data(self, context: Context, data: Any, size: int, slot: int) -> int:
        ctypes.memmove(data, np.array(context.kv[slot], np.int32).tobytes(), size)
        context.calls.append("get")
        return size

    def llama_state_seq_set_data(self, context: Context, data: Any, size: int, slot: int) -> int:
        context.kv[slot] = np.frombuffer(bytes(data), np.int32).tolist()
        context.calls.append("set")
        return size

    def llama_state_seq_save_file(self, context: Context, path: bytes, slot: int, tokens: Any, count: int) -> int:
        text = json.dumps([context.kv[slot], list(tokens[:count])])
        Path(path.decode()).write_text(text)
        context.calls.append("save")
        return len(text)

    def llama_state_seq_load_file(
        self, context: Context, path: bytes, slot: int, tokens: Any, capacity: int, count: Any
    ) -> int:
        file = Path(path.decode())
        if not file.exists():
            return LOAD_ERROR
        context.kv[slot], kept = json.loads(file.read_text())
        assert len(kept) <= capacity
        tokens[: len(kept)] = kept
        ctypes.cast(count, ctypes.POINTER(ctypes.c_size_t)).contents.value = len(kept)
        context.calls.append("load")
        return file.stat().st_size
