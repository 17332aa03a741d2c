"""Where the time of a DECODE pass goes: each call of a C++ kernel, from when to when, made from Python or replayed; and
where that of a step goes. And passes with drafts: what each gave, and how quick they are."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.engine.engine import Engine
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.llm import LLM
from nanoinfer.model.attention import select_attention_backend
from nanoinfer.model.attention.base import wanted_features
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.graph_runner import CapturedGraph, GraphRunner
from nanoinfer.model.kernels.functions import Function
from nanoinfer.model.kernels.program import Program
from nanoinfer.model.loader import LoadedModel
from nanoinfer.model.lora.adapter import Adapter, random_adapter
from nanoinfer.model.lora.pool import AdapterPool
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.sampling import sampler
from nanoinfer.sampling_params import SamplingParams

Pass = tuple[list[int], list[int]]  # of one request: its drafts, and the tokens that it gave


class Span(NamedTuple):
    """One call of a kernel: its function, the module that made it, and from when to when, in seconds of the pass."""

    kernel: str
    label: str
    start: float
    end: float


class PassTimes(NamedTuple):
    """The calls of one pass in order, and how long the whole pass took."""

    spans: list[Span]
    seconds: float


class DecodePass:
    """One DECODE pass of `model`: one new token for each of `requests` requests that have `context` tokens with it.

    `adapters`: one for each request, None for the base model; or none for all.
    `captured` and `program` are the pass as it was recorded. KernelsUnavailableError, with the reason, when it cannot be.
    """

    def __init__(
        self, model: LoadedModel, requests: int = 1, context: int = 32, adapters: Sequence[Adapter | None] = ()
    ):
        rows = ReqToTokenPool(requests, context)
        rows.req_to_token.copy_(torch.arange(requests * context).view(requests, context))
        backend = select_attention_backend("auto", model.dtype, model.device, wanted_features(model.model))
        self.runner = ModelRunner(model.model, rows, model.new_kv_pool(requests * context), backend)
        if reason := GraphRunner(self.runner).reason:
            raise KernelsUnavailableError(reason)
        places = self._places(model, adapters) if adapters else None
        every = torch.arange(requests, dtype=torch.int32)
        self._batch = ForwardBatch(
            forward_mode=ForwardMode.DECODE,
            input_ids=torch.arange(requests) % model.config.vocab_size,
            req_pool_indices=every,
            seq_lens=torch.full_like(every, context),
            out_cache_loc=every * context + context - 1,
            adapter_slots=places,
        )
        self.captured = CapturedGraph(self.runner, requests, adapted=places is not None)
        self.replayed()  # records
        assert self.captured.program is not None
        self.program: Program = self.captured.program

    def from_python(self) -> torch.Tensor:
        """Logits [requests, V], with Python between the kernels."""
        return self.runner.forward_batch(self._batch).logits  # the runner captures nothing

    def replayed(self) -> torch.Tensor:
        """The same logits, by the recorded pass. The next replay overwrites them."""
        self.captured.fill(self._batch)
        return self.captured.run()[0]

    def _places(self, model: LoadedModel, adapters: Sequence[Adapter | None]) -> np.ndarray:
        """Put each adapter into a place of its own; the places by request, int32."""
        own = {adapter: adapter.again() for adapter in adapters if adapter is not None}
        pool = AdapterPool(model.model, max(1, len(own)))
        for adapter in own.values():
            while not pool.obtain(adapter, own.values()) and pool.wait():
                if (failure := pool.take_failure()) is not None:
                    raise failure[1]
        self.runner.adapters = pool
        return np.array([-1 if each is None else own[each].slot for each in adapters], dtype=np.int32)

    def times_from_python(self, repeats: int = 30) -> PassTimes:
        """Of the fastest of some passes made from Python."""
        with _timed_calls() as spans:
            return min((self._one_from_python(spans) for _ in range(repeats)), key=lambda times: times.seconds)

    def times_replayed(self, repeats: int = 30) -> PassTimes:
        """Of the fastest of some replays, filling the buffers included."""
        try:
            return min((self._one_replayed() for _ in range(repeats)), key=lambda times: times.seconds)
        finally:
            self.program.measure(False)

    def _one_from_python(self, spans: list[tuple[str, float, float]]) -> PassTimes:
        spans.clear()
        begin = time.perf_counter()
        self.from_python()
        seconds = time.perf_counter() - begin
        labels: Sequence[str] = self.program.labels
        labels = labels if len(labels) == len(spans) else [""] * len(spans)
        each = zip(spans, labels, strict=True)
        return PassTimes([Span(name, label, a - begin, b - begin) for (name, a, b), label in each], seconds)

    def _one_replayed(self) -> PassTimes:
        self.program.measure()
        begin = time.perf_counter()
        self.replayed()
        seconds = time.perf_counter() - begin
        measured = self.program.seconds()
        now = seconds - sum(spent for *_, spent in measured)  # what came before the first call: the buffers were filled
        spans = []
        for name, label, spent in measured:
            spans.append(Span(name, label, now, now + spent))
            now += spent
        return PassTimes(spans, seconds)


@contextmanager
def _timed_calls() -> Iterator[list[tuple[str, float, float]]]:
    """Inside the block, every call of a C++ kernel in this process is noted: its name, when it began, when it ended."""
    original, spans = Function.__call__, list[tuple[str, float, float]]()

    def timed(function: Function, *arguments: Any) -> None:
        begin = time.perf_counter()
        original(function, *arguments)
        spans.append((function.name, begin, time.perf_counter()))

    Function.__call__ = timed  # type: ignore[method-assign, assignment]
    try:
        yield spans
    finally:
        Function.__call__ = original  # type: ignore[method-assign]


def seconds_by_rows(models: Mapping[str, LoadedModel], sizes: Sequence[int]) -> dict[str, dict[int, float]]:
    """The time of a replayed pass of each size. The sizes take turns, and the median of nine rounds counts."""
    found = {}
    for name, model in models.items():
        made = {rows: DecodePass(model, rows) for rows in sizes}
        rounds = [{rows: each.times_replayed(3).seconds for rows, each in made.items()} for _ in range(9)]
        found[name] = {rows: float(np.median([times[rows] for times in rounds])) for rows in sizes}
    return found


def passes_of(llm: LLM, prompt: str, params: SamplingParams) -> list[Pass]:
    """The passes of one request."""
    llm.engine.add_request(prompt, params)
    found, known = list[Pass](), 0
    while llm.engine.has_unfinished():
        llm.engine.step()
        batch = llm.engine.last_batch
        assert batch is not None
        (req,) = batch.reqs
        drafts = batch.input_ids[1:].tolist() if batch.forward_mode is ForwardMode.VERIFY else []
        found.append((drafts, req.output_ids[known:]))
        known = req.num_output_tokens
    return found


def tokens_of(found: Sequence[Pass]) -> list[int]:
    return [token for _, tokens in found for token in tokens]


def said(found: Sequence[Pass]) -> str:
    """The passes in numbers."""
    drafted = sum(len(drafts) for drafts, _ in found)
    accepted = sum(one == other for drafts, tokens in found for one, other in zip(drafts, tokens, strict=False))
    return f"{len(found):3} passes for {len(tokens_of(found))} tokens; {accepted} of {drafted} drafts accepted"


@contextmanager
def one_stream() -> Iterator[None]:
    """Inside the block, the sampler's random numbers come from one stream, and not from a request's seed and place."""
    generator, right = np.random.default_rng(0), sampler.uniform
    sampler.uniform = lambda seeds, indices: generator.random(len(seeds))
    try:
        yield
    finally:
        sampler.uniform = right


def speed_of(engines: Mapping[str, LLM], task: str, text: str) -> dict[str, float]:
    """Tokens per second of each engine's answer, the best of three; prints the passes and drafts of the last."""
    rates, replies = dict.fromkeys(engines, 0.0), {}
    for name, llm in [*engines.items()] * 3:  # they take turns
        steps, begin = llm.engine.stats().decode_steps, time.perf_counter()
        (reply,) = llm.chat([{"role": "user", "content": text}], SamplingParams(max_new_tokens=80, temperature=0))
        replies[name] = reply.text
        rates[name] = max(rates[name], len(reply.token_ids) / (time.perf_counter() - begin))
    passes = 1 + llm.engine.stats().decode_steps - steps
    drafts = f"{reply.accepted_tokens} of {reply.drafted_tokens} drafts accepted"
    print(f"{task:8} {len(reply.token_ids)} tokens in {passes} passes; {drafts}")
    print(f"         same text: {len({*replies.values()}) == 1}; {reply.text[:90]!r} ...")
    return rates


PARTS = {  # of a step: the object and its method
    "schedule": ("scheduler", "schedule"),
    "forward pass": ("model_runner", "forward_batch"),
    "sample": ("sampler", "sample"),
    "process": ("scheduler", "process_batch_result"),
}


def step_parts(engine: Engine, prompt: str, params: SamplingParams, runs: int = 12) -> dict[str, float]:
    """Microseconds per token in a DECODE step of one request, by part: the median of all steps of some runs."""
    spent, steps = dict.fromkeys(PARTS, 0.0), []

    def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments)
            spent[part] += time.perf_counter() - start
            return result

        return wrapper

    for part, (owner, method) in PARTS.items():
        each = getattr(engine, owner)
        setattr(each, method, timed(part, getattr(each, method)))
    for _ in range(runs):
        engine.add_request(prompt, params)
        (output,) = engine.step()  # the EXTEND, which isn't counted
        while not output.finished:
            spent.update(dict.fromkeys(PARTS, 0.0))
            before, start = len(output.token_ids), time.perf_counter()
            (output,) = engine.step()
            whole, made = time.perf_counter() - start, len(output.token_ids) - before
            steps.append([1e6 * each / made for each in (*spent.values(), whole - sum(spent.values()))])
    return dict(zip((*PARTS, "the rest"), np.median(steps, axis=0).tolist(), strict=True))


def roofline_points(model: LoadedModel, requests: int) -> dict[str, tuple[str, float, float, float]]:
    """For each product of a DECODE pass in float32: label, operations, bytes and seconds, the median of the layers."""
    c, spans = model.config, DecodePass(model, requests).times_replayed(8).spans
    queries, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    products = {  # inputs, outputs
        "qkv_proj": (c.hidden_size, queries + 2 * kv),
        "o_proj": (queries, c.hidden_size),
        "gate_up_proj": (c.hidden_size, 2 * c.intermediate_size),
        "down_proj": (c.intermediate_size, c.hidden_size),
        "lm_head": (c.hidden_size, c.vocab_size),
    }
    points = {}
    for name, (inputs, outputs) in products.items():
        seconds = float(np.median([span.end - span.start for span in spans if span.label.endswith(name)]))
        numbers = inputs * outputs + requests * (inputs + outputs)
        points[name] = f"T = {requests}", 2.0 * requests * inputs * outputs, 4.0 * numbers, seconds
    return points


def times_with_adapters(
    model: LoadedModel, ranks: Sequence[int], distinct: Sequence[int], requests: int = 16
) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    """A DECODE pass in which `requests` requests have n of `distinct` adapters of a rank: (n, rank) → how many times as
    long as the base model's, by the bytes of weights, A and B; and measured, the medians of passes that take turns."""
    made = {rank: [random_adapter(model, rank, seed) for seed in range(max(distinct))] for rank in ranks}
    numbers = {rank: sum(part.a.numel() + part.b.numel() for part in made[rank][0].parts.values()) for rank in ranks}
    keys = [(n, rank) for n in distinct for rank in ranks]
    passes = [DecodePass(model, requests)]
    passes += [DecodePass(model, requests, adapters=[made[rank][i % n] for i in range(requests)]) for n, rank in keys]
    rounds = [[each.times_replayed(3).seconds for each in passes] for _ in range(8)]
    base, *others = np.median(rounds, axis=0).tolist()
    by_bytes = {(n, rank): 1 + n * numbers[rank] / model.model.num_parameters for n, rank in keys}
    return by_bytes, {key: each / base for key, each in zip(keys, others, strict=True)}
