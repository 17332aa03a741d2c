"""Models that are split over ranks which are threads of this process: all of model/parallel/ but the processes. And
what a split model and a whole one are asked, and how their answers are compared.

Starting a process takes seconds, and most tests are about numbers. The threads run the Worker that processes run, and
rank 0 sends them the same messages.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from nanoinfer import LLM, RequestOutput, SamplingParams
from nanoinfer.errors import RankError
from nanoinfer.model.parallel.communicator import Communicator
from nanoinfer.model.parallel.ranks import Ranks, Workers
from nanoinfer.model.parallel.shard import Shard
from nanoinfer.model.parallel.worker import Worker
from tests.helpers.rows import random_tokens
from tests.helpers.waiting import HANG_S


class Room:
    """Where the threads of `size` ranks exchange tensors."""

    def __init__(self, size: int):
        self.size = size
        self.tensors: list[torch.Tensor | None] = [None] * size
        self._changed = threading.Condition()
        self._arrived = self._rounds = 0
        self._is_left = False

    def wait(self) -> None:
        """Until all ranks are here. RankError when one never will be. (A threading.Barrier that is broken behind a meeting
        raises also in threads that were at it and have not gone on yet.)"""
        with self._changed:
            rendezvous = self._rounds
            self._arrived += 1
            if self._arrived == self.size:
                self._arrived, self._rounds = 0, rendezvous + 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._rounds > rendezvous or self._is_left, HANG_S)
            if self._rounds == rendezvous:
                raise RankError("a thread has left the room")

    def leave(self) -> None:
        """No thread comes any more: those that wait, and whoever comes, get a RankError."""
        with self._changed:
            self._is_left = True
            self._changed.notify_all()


class ThreadCommunicator(Communicator):
    """The rank `rank` of `room`."""

    def __init__(self, room: Room, rank: int):
        super().__init__(Shard(rank, room.size))
        self._room = room

    def gather_all(self, x: torch.Tensor) -> list[torch.Tensor]:
        self._room.tensors[self.shard.rank] = x.clone()
        self._room.wait()
        found = [each.clone() for each in self._room.tensors if each is not None]
        self._room.wait()
        assert len({(each.shape, each.dtype) for each in found}) == 1, "ranks do different things"
        return found

    def gather(self, x: torch.Tensor) -> list[torch.Tensor] | None:
        found = self.gather_all(x)
        return found if self.shard.rank == 0 else None

    def broadcast(self, x: torch.Tensor) -> None:
        if self.shard.rank == 0:
            self._room.tensors[0] = x.clone()
        self._room.wait()
        source = self._room.tensors[0]
        assert source is not None
        x.copy_(source)
        self._room.wait()

    def close(self) -> None:
        pass  # there is no library


class ThreadWorkers(Workers):
    """The other ranks. One that fails leaves the room in which the others wait."""

    def __init__(self, room: Room):
        self.room = room
        self.errors: dict[int, BaseException] = {}
        self._threads = [threading.Thread(target=self._run, args=(rank,)) for rank in range(1, room.size)]
        for thread in self._threads:
            thread.start()

    def _run(self, rank: int) -> None:
        try:
            Worker(ThreadCommunicator(self.room, rank)).run()
        except RankError:
            pass  # another one has failed
        except BaseException as error:
            self.errors[rank] = error
            self.room.leave()

    def ended(self) -> list[str]:
        return [f"rank {rank}: {error!r}" for rank, error in self.errors.items()]

    def end(self, patiently: bool) -> None:
        if not patiently:
            self.room.leave()
        for thread in self._threads:
            thread.join(HANG_S)
            assert not thread.is_alive()


@contextmanager
def split_llm(path: Path | str, size: int, **options: Any) -> Iterator[LLM]:
    """`LLM(path, tensor_parallel_size=size, **options)`, whose ranks are threads. They have ended afterwards."""
    workers: list[ThreadWorkers] = []

    def start(cls: type[Ranks], wanted: int) -> Ranks:
        room = Room(wanted)
        workers.append(ThreadWorkers(room))
        return cls(ThreadCommunicator(room, 0), workers[0])

    with patch.object(Ranks, "start", classmethod(start)):
        llm = LLM(path, tensor_parallel_size=size, **options)
    try:
        yield llm
    finally:
        llm.shutdown()


Checkpoint = Callable[..., Path]

WHOLE = {"max_total_tokens": 256}
STEM = random_tokens(18, seed=1)
PROMPTS = [STEM, random_tokens(1, seed=2), STEM + random_tokens(9, seed=3), random_tokens(30, seed=4)]


def of(temperature: float, seed: int | None = None, **fields: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=10, temperature=temperature, seed=seed, ignore_eos=True, **fields)


PARAMS = [of(0, logprobs=3, prompt_logprobs=True), of(0.7, 5), of(1.0, 6, logprobs=0), of(0)]


def served(llm: LLM, adapters: Sequence[str | None] | None = None) -> list[RequestOutput]:
    """The prompts, with an empty tree and with what is in it then."""
    found = []
    for _ in range(2):
        found += llm.generate(PROMPTS, PARAMS, use_tqdm=False, adapter=adapters)
        llm.engine.check_integrity()
    return found


def assert_same(found: Sequence[RequestOutput], wanted: Sequence[RequestOutput], exactly: bool = False) -> None:
    """The same tokens; log-probabilities up to rounding, or `exactly` the same."""
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.cached_tokens == theirs.cached_tokens
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        for one, other in zip(ours.logprobs or (), theirs.logprobs or (), strict=True):
            assert one == (other if exactly else pytest.approx(other, rel=1e-3, abs=1e-3))
        if theirs.prompt_logprobs is not None:
            assert ours.prompt_logprobs is not None
            assert ours.prompt_logprobs[0] is theirs.prompt_logprobs[0] is None
            expected = theirs.prompt_logprobs[1:]
            assert ours.prompt_logprobs[1:] == (expected if exactly else pytest.approx(expected, rel=1e-3, abs=1e-3))


# 323 tokens and an MLP of 97 can be divided by nothing; four ranks and two key/value heads: each head is in two ranks.
ODD = {"vocab_size": 323, "intermediate_size": 97}
SIX_HEADS = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}
VARIANTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "llama": ("llama", {}, 2),
    "llama-replicated-odd": ("llama", ODD, 4),
    "llama-tied-odd-three": ("llama", {**ODD, **SIX_HEADS, "tie_word_embeddings": True}, 3),
    "llama-mqa-biases": ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}, 2),
    "mistral-window": ("mistral", {"sliding_window": 5}, 2),
    "qwen2": ("qwen2", {}, 2),
    "qwen2-tied-replicated": ("qwen2", {"tie_word_embeddings": True}, 4),
    "qwen3-bias": ("qwen3", {"head_dim": 24, "attention_bias": True}, 2),
    "qwen3-replicated": ("qwen3", {"head_dim": 24}, 4),
    "gemma3": ("gemma3", {}, 2),
    "gemma3-softcap-untied-odd": ("gemma3", {**ODD, "final_logit_softcapping": 0.2, "tie_word_embeddings": False}, 4),
    "phi3": ("phi3", {}, 2),
    "phi3-odd-replicated": ("phi3", ODD, 4),
}  # fmt: skip
