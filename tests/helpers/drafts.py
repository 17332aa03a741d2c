"""Requests that are served with and without drafts, or in groups of passes, and what of their outputs must be the same."""

import shutil
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nanoinfer import LLM, AsyncEngine, RequestOutput, SamplingParams, StreamPiece
from nanoinfer.requests.req import Req
from tests.helpers.engines import step
from tests.helpers.oracles import VOCAB
from tests.helpers.waiting import run

Asked = list[tuple[Any, dict[str, Any]]]  # prompts, and SamplingParams of each; "adapter" among them goes to the engine
STEM = np.random.default_rng(1).integers(0, VOCAB, 30).tolist()
ASKED: Asked = [
    (STEM[:12], {"temperature": 0}),
    ([*STEM[:12], 3], {"temperature": 0, "logprobs": 2, "prompt_logprobs": True, "max_new_tokens": 30}),
    (STEM[:20], {"seed": 1, "n": 3, "logprobs": 0}),
    (STEM[3:9], {"seed": 2, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.3}),
    (STEM[:16], {"seed": 3, "frequency_penalty": 0.5, "presence_penalty": 0.3, "min_p": 0.01, "logprobs": 3}),
    ([7], {"temperature": 0, "stop_token_ids": list(range(0, VOCAB, 3)), "min_new_tokens": 9}),
    ([7, 7, 7, 7], {"temperature": 0.2, "seed": 9, "logit_bias": {4: -100.0, 5: 2.0}, "max_new_tokens": 30}),
    ([9, 9], {"seed": 6, "temperature": 3.0, "max_new_tokens": 1}),
]
WITH_TEXT: Asked = [
    *ASKED,
    (STEM[5:25], {"seed": 4, "stop": ["w1", "w2 w", "w9"]}),
    (STEM[:30], {"seed": 5, "stop": ["w30"], "include_stop_str_in_output": True, "min_new_tokens": 2}),
    (STEM[:8], {"temperature": 0, "stop": ["w7 w", "w3 w3", "w11"], "max_new_tokens": 30}),
]


def serve(llm: LLM, asked: Asked) -> list[RequestOutput]:
    """The requests arrive one after another while others run; slots are checked after every step."""
    engine, last = llm.engine, dict[int, RequestOutput]()
    for prompt, fields in asked:
        fields = {"max_new_tokens": 16, **fields}
        adapter = fields.pop("adapter", None)
        engine.add_request(prompt, SamplingParams(**fields), adapter=adapter)
        last |= step(engine)
    while engine.has_unfinished():
        last |= step(engine)
    return [last[request_id] for request_id in sorted(last)]


def contents(outputs: Sequence[RequestOutput]) -> list[Any]:
    """Everything about them that does not depend on when they were computed, but for the log-probabilities' values."""
    return [
        (each.token_ids, each.text, each.finish_reason, each.stop_reason, [*map(list, each.logprobs or [])])
        for output in outputs
        for each in output.outputs
    ]


def values(outputs: Sequence[RequestOutput]) -> list[float]:
    entries = [entry for output in outputs for each in output.outputs for entry in each.logprobs or []]
    of_prompts = [value for output in outputs for value in output.prompt_logprobs or [] if value is not None]
    return [value for entry in entries for value in entry.values()] + of_prompts


def check_same(llm: LLM, outputs: Sequence[RequestOutput], plain: Sequence[RequestOutput]) -> None:
    assert contents(outputs) == contents(plain)
    stats = llm.engine.stats()
    if stats.kernels == stats.attention_backend == "cpp":  # whose sums do not depend on the batch
        assert values(outputs) == values(plain)
    else:
        assert values(outputs) == pytest.approx(values(plain), abs=1e-4)


def check_streams(llm: LLM, prompt: str, asked: SamplingParams, wanted: RequestOutput, ends: set[int]) -> None:
    """Both kinds of streams say what `wanted` says, in pieces that end after so many tokens."""

    async def streamed() -> list[StreamPiece]:
        async with AsyncEngine(llm) as engine:
            return [piece async for piece in engine.stream(prompt, asked)]

    for pieces in (list(llm.stream(prompt, asked)), run(streamed)):
        assert set(accumulate(len(piece.token_ids) for piece in pieces)) <= ends
        assert "".join(piece.text for piece in pieces) == wanted.text
        assert [token for piece in pieces for token in piece.token_ids] == wanted.token_ids


def noisy(path: Path, target: Path, scale: float = 0.08) -> Path:
    """A copy of a checkpoint whose weights are a little different: a draft model that is right often, but not always."""
    shutil.copytree(path, target)
    generator = torch.Generator().manual_seed(5)
    weights = load_file(path / "model.safetensors")
    for name, weight in weights.items():
        weights[name] = weight + scale * weight.std(correction=0) * torch.randn(weight.shape, generator=generator)
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


Key = tuple[tuple[int, ...], int | None]
# of a request and the most drafts it may get: how many drafts to propose, and how many of them are right
Plan = Callable[[Req, int], tuple[int, int]]


def key_of(req: Req) -> Key:
    """What a request's tokens depend on in these tests: its prompt and, if they are drawn, its seed."""
    return tuple(req.token_ids[: req.prompt_len].tolist()), None if req.params.greedy else req.seed


class OracleDrafter:
    """A drafter that knows what each request will get, and spoils it where a test says so.

    It proposes as much as it may, or by `plan`; `known` holds the tokens of each request. Wrong drafts are the right ones
    plus one."""

    def __init__(self, vocab_size: int):
        self.vocab_size, self.known = vocab_size, dict[Key, list[int]]()
        self.plan: Plan = lambda req, most: (most, most)

    def remember(self, reqs: Sequence[Req]) -> None:
        """Keep the tokens of requests that have ended, in an engine without drafts."""
        for req in reqs:
            self.known[key_of(req)] = req.output_ids

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        return [self._drafts(req, count) for req, count in zip(reqs, most, strict=True)]

    def _drafts(self, req: Req, most: int) -> list[int]:
        count, right = self.plan(req, most)
        coming = self.known[key_of(req)][req.num_output_tokens :][:count]
        coming += [0] * (count - len(coming))  # behind the end of the output
        return [token if i < right else (token + 1) % self.vocab_size for i, token in enumerate(coming)]
