"""Small engines over a model that counts, so that every token is known beforehand; and how tests drive an engine."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from nanoinfer import Engine, RequestOutput, SamplingParams
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.config import EngineConfig
from nanoinfer.model.attention import TorchNativeBackend
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.logits_processor import LogitsOutput
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.tokenizer import Tokenizer

V = 128
CONTEXT = 64


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class CountingModel:
    """After token t comes t + 1. Raises `error` once, in its pass number `fail_at`."""

    def __init__(self) -> None:
        self.passes = 0
        self.fail_at: int | None = None
        self.error: BaseException = RuntimeError("the model broke")

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, input_metadata: InputMetadata) -> LogitsOutput:
        self.passes += 1
        if self.passes == self.fail_at:
            raise self.error
        newest = input_ids[input_metadata.qo_indptr[1:].long() - 1]
        return LogitsOutput(20.0 * torch.nn.functional.one_hot((newest + 1) % V, V).float())


class LetterTokenizer(Tokenizer):
    """A token is an ASCII character."""

    eos_token_id = None

    def __init__(self) -> None:
        pass

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode()


def make_engine(
    rows: int = 4,
    slots: int = 256,
    page_size: int = 1,
    eos: Sequence[int] = (),
    tokenizer: Tokenizer | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **options: Any,
) -> Engine:
    config = EngineConfig(rows, slots, CONTEXT, page_size=page_size, **options)
    pools = ReqToTokenPool(rows, CONTEXT), TokenToKVPool(slots, torch.float32, 1, 1, 1, page_size=page_size)
    runner = ModelRunner(CountingModel(), *pools, TorchNativeBackend())
    return Engine(runner, config, V, eos, tokenizer or LetterTokenizer(), clock)


def greedy(max_new_tokens: int = 4, **fields: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, temperature=0, **fields)


def step(engine: Engine) -> dict[int, RequestOutput]:
    outputs = engine.step()
    engine.check_integrity()
    by_id = {output.request_id: output for output in outputs}
    assert len(by_id) == len(outputs), "two outputs of one request in one step"
    return by_id


def finish(engine: Engine) -> dict[int, RequestOutput]:
    """Step until nothing is left; the last output of each request."""
    last: dict[int, RequestOutput] = {}
    while engine.has_unfinished():
        last |= step(engine)
    return last


def serve(engine: Engine, *prompts: Any, **fields: Any) -> list[RequestOutput]:
    """Add the prompts and finish everything; their outputs, in order."""
    ids = [engine.add_request(prompt, greedy(**fields)) for prompt in prompts]
    last = finish(engine)
    return [last[i] for i in ids]


def assert_all_free(engine: Engine) -> None:
    assert not engine.has_unfinished()
    engine.flush_cache()
    engine.check_integrity()
    stats = engine.stats()
    assert stats["free_slots"] == stats["total_slots"]
    assert engine.model_runner.req_to_token_pool.available_size() == engine.config.max_running_requests


def model_of(engine: Engine) -> CountingModel:
    assert isinstance(engine.model_runner.model, CountingModel)
    return engine.model_runner.model
