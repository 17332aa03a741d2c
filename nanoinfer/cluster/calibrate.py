"""calibrate: measures what passes take on this machine with a real model, and fits PassCosts to them."""

import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

from nanoinfer.cluster.costs import MeasuredPass, PassCosts, fit, pass_of
from nanoinfer.engine.engine import Engine
from nanoinfer.llm import LLM
from nanoinfer.sampling_params import SamplingParams

DECODE_PASSES = 12  # of each batch size and context length, in a round
ROWS = (1, 2, 4, 8, 16, 32)
MOST_TOKENS = 4096  # that a measured DECODE reads, so that computing them does not take long


def calibrate(llm: LLM, rounds: int = 3, seed: int = 0) -> PassCosts:
    """Measure passes of many sizes (`measure_passes`), and fit costs to them.

    Takes seconds with a small model. Its cache holds other tokens afterwards. ValueError as in `measure_passes`.
    """
    engine = llm.engine
    name = f"{llm.model.name} in {llm.model.dtype}, measured".replace("torch.", "")
    return fit(measure_passes(engine, rounds, seed), source=name)


def measure_passes(
    engine: Engine, rounds: int = 3, seed: int = 0, clock: Callable[[], float] = time.perf_counter
) -> list[MeasuredPass]:
    """Steps of an engine with all that belongs to them, by size: EXTENDs of one and of several requests, with and without a
    cached prefix, and DECODEs of 1 to 32 requests, short and long. Of equal ones, the median counts.

    ValueError if the engine has open requests, drafts, or makes several passes per step.
    """
    config = engine.config
    if engine.has_unfinished():
        raise ValueError("engine: has open requests; calibrate needs it alone")
    if config.num_scheduler_steps != 1 or config.drafters:
        raise ValueError("engine: must make one pass per step, without a drafter")
    bench = _Bench(engine, np.random.default_rng(seed), clock)
    found: dict[tuple[object, ...], list[MeasuredPass]] = {}
    for number in range(rounds + 1):
        for shape, measured in bench.round():
            if number:  # the first round only warms up
                found.setdefault(shape, []).append(measured)
    return [_median(group) for group in found.values()]


class _Bench:
    """One round of passes after another, each with tokens that were never used before."""

    def __init__(self, engine: Engine, rng: np.random.Generator, clock: Callable[[], float]):
        self._engine, self._rng, self._clock = engine, rng, clock
        self._context = min(engine.config.max_context_len, engine.config.max_total_tokens)
        self._budget = engine.config.chunked_prefill_size or self._context

    def round(self) -> Iterator[tuple[tuple[object, ...], MeasuredPass]]:
        """Passes, each with the shape that it has in common with the same pass of another round."""
        longest = min(self._context - 1, self._budget)
        for new in [*(4 << k for k in range(20) if 4 << k < longest), longest]:
            yield ("alone", new), self._extend(1, 0, new)
            if 2 * new < self._context and new >= 16:
                yield ("cached", new), self._extend(1, min(self._context // 2, self._context - new - 1), new)
            if 4 * new <= longest and self._engine.config.max_running_requests >= 4:
                yield ("several", new), self._extend(4, 0, new)
        for rows in (each for each in ROWS if each <= self._engine.config.max_running_requests):
            most = min(self._engine.config.max_total_tokens, max(MOST_TOKENS, 2 * rows * DECODE_PASSES))
            room = min(most // rows, self._context) - self._new_tokens(rows, 0)
            room -= room * rows // self._budget
            for context in sorted({min(16, room), room - 1}):
                if context >= 1:
                    yield ("decode", rows, context), self._decode(rows, context)

    def _tokens(self, count: int) -> np.ndarray:
        return self._rng.integers(self._engine.builder.vocab_size, size=count)

    def _extend(self, rows: int, cached: int, new: int) -> MeasuredPass:
        prefix = self._tokens(cached)
        if cached:
            self._engine.add_request(prefix, _params(1))
            self._finish()
        for _ in range(rows):
            self._engine.add_request(np.concatenate((prefix, self._tokens(new))), _params(1))
        measured = self._step()
        self._finish()
        return measured

    def _decode(self, rows: int, context: int) -> MeasuredPass:
        for _ in range(rows):
            self._engine.add_request(self._tokens(context), _params(self._new_tokens(rows, context)))
        passes = []
        while self._engine.has_unfinished():
            measured = self._step()
            if measured.kind == "decode" and measured.rows == rows:
                passes.append(measured)
        return _median(passes)

    def _new_tokens(self, rows: int, context: int) -> int:
        """So many that all requests decode together at the end: while prompts are computed, others already decode."""
        return DECODE_PASSES + 2 + rows * context // self._budget

    def _step(self) -> MeasuredPass:
        began = self._clock()
        self._engine.step()
        took, batch = self._clock() - began, self._engine.last_batch
        assert batch is not None
        return pass_of(batch, took)

    def _finish(self) -> None:
        while self._engine.has_unfinished():
            self._engine.step()


def _params(tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True)


def _median(group: list[MeasuredPass]) -> MeasuredPass:
    """The same pass with the median of the seconds; its pairs are the middle pass's."""
    middle = sorted(group, key=lambda each: each.pairs)[len(group) // 2]
    seconds = median(each.seconds for each in group)
    return MeasuredPass(middle.kind, middle.rows, middle.new_tokens, middle.pairs, seconds)
