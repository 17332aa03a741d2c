"""llama.cpp with saved slots, for `bench tiers`: one state per chat, restored into a slot before the chat's next turn.

That is what llama.cpp's server does with its prompt cache in host memory, and on request (`/slots`) with files.
"""

import ctypes
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoinfer.bench.peers import llamacpp
else:  # a worker runs this file where nanoinfer is not installed
    spec = importlib.util.spec_from_file_location("llamacpp", Path(__file__).with_name("llamacpp.py"))
    llamacpp = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(llamacpp)

INDEX = "states.json"
SAME_CHAT = 0.5  # a state is of the chat of a prompt that begins with at least this share of the state's tokens


@dataclass
class State:
    """The K/V of `tokens`: `data`, or what is in `file`."""

    tokens: list[int]
    data: Any = None
    file: Path | None = None


class Peer(llamacpp.Peer):
    """`slots`: how many chats take a turn at a time. States are in host memory, without a limit; with a `folder`, `save`
    writes them to files there, and a later process restores them from those. Options as for `llamacpp.py`."""

    def __init__(self, model: str, dtype: str, threads: int, folder: str | None = None, **options: Any):
        self._folder = None if folder is None else Path(folder)
        self._states: list[State] = []
        self._tokens: dict[int, list[int]] = {}  # index → tokens emitted
        super().__init__(model, dtype, threads, **options)
        if self._folder is not None and (self._folder / INDEX).exists():
            index = json.loads((self._folder / INDEX).read_text())
            self._states = [State(tokens, file=self._folder / name) for name, tokens in index.items()]

    def step(self, emit: llamacpp.Emit) -> None:
        def note(index: int, tokens: list[int]) -> None:
            self._tokens.setdefault(index, []).extend(tokens)
            emit(index, tokens)

        self._admit()
        running = dict(self._running)
        super().step(note)
        for slot, request in running.items():
            if slot not in self._running:  # its last token has no K/V
                self._states.append(self._state(slot, request.prompt + self._tokens.pop(request.index)[:-1]))

    def save(self) -> None:
        """Write all states to the folder, if there is one."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        index = {}
        for number, state in enumerate(self._states):
            self._restore(state, 0)
            state.file = self._folder / f"{number}.state"
            tokens = (self.lib.llama_token * len(state.tokens))(*state.tokens)
            path = str(state.file).encode()
            if not self.lib.llama_state_seq_save_file(self.context, path, 0, tokens, len(tokens)):
                raise RuntimeError(f"{state.file}: llama.cpp could not write it")
            index[state.file.name] = state.tokens
        (self._folder / INDEX).write_text(json.dumps(index))

    def _admit(self) -> None:
        """Put waiting requests into free slots, each with what the state of its chat has of its prompt."""
        while self._waiting and len(self._running) < self.slots:
            index, prompt, new_tokens = self._waiting.popleft()
            slot = next(slot for slot in range(self.slots) if slot not in self._running)
            self.lib.llama_memory_seq_rm(self.memory, slot, -1, -1)
            start = 0
            if state := self._state_of_chat(prompt):
                self._restore(state, slot)
                self._states.remove(state)  # the one at the end of this turn is in its place
                start = common(state.tokens, prompt)
                self.lib.llama_memory_seq_rm(self.memory, slot, start, -1)
            self._stored[slot], self._cached[index] = (prompt, start), start
            self._running[slot] = llamacpp.Running(index, prompt, new_tokens, start)

    def _state_of_chat(self, prompt: list[int]) -> State | None:
        best = max(self._states, key=lambda state: common(state.tokens, prompt), default=None)
        return best if best and common(best.tokens, prompt) >= SAME_CHAT * len(best.tokens) else None

    def _state(self, slot: int, tokens: list[int]) -> State:
        size = self.lib.llama_state_seq_get_size(self.context, slot)
        data = (ctypes.c_uint8 * size)()
        if self.lib.llama_state_seq_get_data(self.context, data, size, slot) != size:
            raise RuntimeError(f"slot {slot}: llama.cpp could not copy its state")
        return State(tokens, data)

    def _restore(self, state: State, slot: int) -> None:
        if state.data is not None:
            size = self.lib.llama_state_seq_set_data(self.context, state.data, len(state.data), slot)
        else:
            tokens, count = (self.lib.llama_token * len(state.tokens))(), ctypes.c_size_t()
            size = self.lib.llama_state_seq_load_file(
                self.context, str(state.file).encode(), slot, tokens, len(tokens), ctypes.byref(count)
            )
            if size and list(tokens[: count.value]) != state.tokens:
                raise RuntimeError(f"{state.file}: has other tokens")
        if not size:
            raise RuntimeError(f"llama.cpp could not restore a state of {len(state.tokens)} tokens")


def common(tokens: list[int], prompt: list[int]) -> int:
    """How many tokens both begin with, at most all but the last of the prompt."""
    count = 0
    for token, other in zip(tokens, prompt[:-1], strict=False):
        if token != other:
            break
        count += 1
    return count
