"""Where drafting pays: the speed of decoding against a forced acceptance rate, on a checkpoint of any kind."""

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from tqdm.auto import tqdm

from nanoinfer.bench.draft_oracle import NAME, OracleDrafter, registered
from nanoinfer.bench.frozen_heap import frozen_heap
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.markdown import table
from nanoinfer.bench.report import ratio_cell
from nanoinfer.bench.settings import Settings, new_results
from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.frontends.llm import LLM, make_engine
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.requests.sampling_params import SamplingParams

FORMAT = "draft curve"
RATES = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
PROMPT = 32  # tokens
NEW_TOKENS = 64
TURNS = 2  # of a run, so that it begins with drafts and without
FIXED = (1, 3, 7)
ADAPTIVE = "adaptive"
LEGEND = """\
Decoding only, without prompts: tokens per second as a multiple of those without drafts, median over rounds
(lowest..highest). An oracle drafts: it knows the tokens, and spoils each with a probability of 1 less the acceptance rate.
`k`: always so many drafts. `adaptive`: as many as seem worth while, at most 7."""
Results = dict[str, Any]
Turn = Sequence[Sequence[int]]  # prompts


@dataclass(frozen=True)
class CurveSettings:
    """What to measure. `requests`: how many at a time. `rates`: the forced acceptance rates."""

    model: str
    requests: Sequence[int] = (1, 16)
    rates: Sequence[float] = RATES
    rounds: int = 3
    threads: int = 1
    seed: int = 0
    new_tokens: int = NEW_TOKENS

    def __post_init__(self) -> None:
        for option, numbers, most in (
            ("--requests", self.requests, 256),
            ("--rounds", [self.rounds], 1000),
            ("--threads", [self.threads], 1024),
        ):
            for number in numbers:
                if not 1 <= number <= most:
                    raise ValueError(f"{option} {number}: must be in 1..{most}")


def measure_curve(settings: CurveSettings, keep: Callable[[Results], None] = lambda results: None) -> Results:
    """Measure all rates; `keep` is called with the results after each. All engines share one model's weights."""
    checkpoint = Checkpoint.read(resolve_model_path(settings.model))
    results = {
        **new_results(Settings([], [], settings.rounds, threads=settings.threads, seed=settings.seed)),
        "format": FORMAT,
        "model": checkpoint.as_dict(),
        "requests": sorted(set(settings.requests)),
        "rates": sorted(set(settings.rates)),
        "lines": [*(f"k = {count}" for count in FIXED), ADAPTIVE],
        "points": [],
    }
    del results["models"], results["settings"]
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        context = PROMPT + settings.new_tokens
        llm = LLM(settings.model, max_running_requests=max(settings.requests), max_context_len=context)
        oracle = OracleDrafter(checkpoint.vocab_size, settings.seed)
        engines = _engines(llm, oracle)
        total = len(results["requests"]) * (1 + settings.rounds * len(results["rates"]))
        with frozen_heap(), tqdm(total=total, desc=f"drafts {checkpoint.name}", unit="rate") as bar:
            for together in results["requests"]:
                for number in range(-1, settings.rounds):  # the first is to warm up
                    turns = _turns(checkpoint.vocab_size, together, f"{settings.seed}/{number}")
                    outputs = _learn(llm.engine, turns, settings.new_tokens, oracle)
                    for rate in results["rates"] if number >= 0 else [1.0]:
                        oracle.rate = rate
                        speeds = _speeds(llm.engine, engines, turns, outputs, f"{number}/{rate}")
                        if number >= 0:
                            results["points"].append(
                                {"round": number, "requests": together, "rate": rate, "tok_s": speeds}
                            )
                            keep(results)
                        bar.update(1)
    finally:
        torch.set_num_threads(before)
    return results


def _engines(llm: LLM, oracle: OracleDrafter) -> dict[str, Engine]:
    """Line of the figure → its engine."""
    options = {f"k = {count}": {"num_draft_tokens": count, "adaptive_drafts": False} for count in FIXED}
    options[ADAPTIVE] = {"num_draft_tokens": max(FIXED), "adaptive_drafts": True}
    with registered(oracle):
        return {
            name: make_engine(llm.model, EngineConfig(**{**asdict(llm.config), "drafter": NAME, **changes}))
            for name, changes in options.items()
        }


def _turns(vocab_size: int, together: int, seed: str) -> list[Turn]:
    """The prompts that are served together, for each turn of a run."""
    rng = random.Random(f"draft curve/{together}/{seed}")
    return [[[rng.randrange(3, vocab_size) for _ in range(PROMPT)] for _ in range(together)] for _ in range(TURNS)]


def _learn(engine: Engine, turns: Sequence[Turn], new_tokens: int, oracle: OracleDrafter) -> list[list[list[int]]]:
    """Tell the oracle what the prompts' outputs are, and return them."""
    outputs = [decode(engine, prompts, new_tokens)[0] for prompts in turns]
    for prompts, found in zip(turns, outputs, strict=True):
        for prompt, output in zip(prompts, found, strict=True):
            oracle.learn(prompt, output)
    return outputs


def _speeds(
    without: Engine, engines: dict[str, Engine], turns: Sequence[Turn], expected: list[list[list[int]]], seed: str
) -> dict[str, list[float]]:
    """Of each engine the tokens per second, and those of `without` beside it: the two take turns. RuntimeError if tokens
    differ."""
    order = list(engines.items())
    random.Random(seed).shuffle(order)
    speeds = {}
    for name, engine in order:
        tokens, seconds = [0, 0], [0.0, 0.0]
        for number, (prompts, outputs) in enumerate(zip(turns, expected, strict=True)):
            for which in (0, 1) if number % 2 else (1, 0):
                found, count, took = decode((engine, without)[which], prompts, len(outputs[0]))
                tokens[which] += count
                seconds[which] += took
                if found != outputs:
                    request = next(i for i, output in enumerate(outputs) if found[i] != output)
                    raise RuntimeError(f"draft curve, {name}, request {request}: other tokens than without drafts")
        speeds[name] = [tokens[which] / seconds[which] for which in (0, 1)]
    return speeds


def decode(engine: Engine, prompts: Turn, new_tokens: int) -> tuple[list[list[int]], int, float]:
    """Serve all prompts at once, greedily, from an empty cache. Returns the tokens; and how many there were, in how many
    seconds, from when every request had its first."""
    engine.flush_cache()
    gc.collect()
    params = SamplingParams(max_new_tokens=new_tokens, temperature=0.0, ignore_eos=True)
    ids = [engine.add_request(list(prompt), params) for prompt in prompts]
    tokens: dict[int, list[int]] = {}
    began, earlier = 0.0, 0
    while engine.has_unfinished():
        for output in engine.step():
            tokens[output.request_id] = list(output.token_ids)
        if not began and len(tokens) == len(ids):
            began, earlier = time.perf_counter(), sum(map(len, tokens.values()))
    return [tokens[each] for each in ids], len(ids) * new_tokens - earlier, time.perf_counter() - began


def curve(results: Results, together: int, line: str) -> dict[float, list[float]]:
    """Acceptance rate → per round, the speed as a multiple of that without drafts, with so many requests at a time."""
    found: dict[float, list[float]] = {}
    for point in results["points"]:
        if point["requests"] == together:
            speed, without = point["tok_s"][line]
            found.setdefault(point["rate"], []).append(speed / without)
    return found


def pays_from(curve: dict[float, list[float]]) -> float | None:
    """The lowest measured rate from which on drafting is at least as fast as not drafting; None: it never is."""
    pays = None
    for rate in sorted(curve, reverse=True):
        if median(curve[rate]) < 1.0:
            break
        pays = rate
    return pays


def format_curve(results: Results) -> str:
    """A table per number of requests: a row per acceptance rate, a column per line of the figure."""
    machine, model = results["machine"], results["model"]
    parts = [
        f"{machine['cpu']}, {machine['cores']} cores; {results['threads']} threads, {results['rounds']} rounds, "
        f"{results['date'][:10]}\nCommand: `{results['command']}`",
        f"### {model['name']}: {model['parameters'] / 1e6:.1f} M parameters, {model['dtype']}",
    ]
    for together in results["requests"]:
        curves = {line: curve(results, together, line) for line in results["lines"]}
        rows = [[f"{rate:.0%}", *(ratio_cell(each[rate]) for each in curves.values())] for rate in results["rates"]]
        starts = {line: pays_from(each) for line, each in curves.items()}
        pays = ", ".join(f"{line} {'never' if rate is None else f'{rate:.0%}'}" for line, rate in starts.items())
        speeds = [
            without
            for point in results["points"]
            if point["requests"] == together
            for _, without in point["tok_s"].values()
        ]
        parts += [
            f"{together} at a time, {median(speeds):.1f} tokens per second without drafts:",
            table(["acceptance", *curves], rows),
            f"Not slower than without drafts from an acceptance of: {pays}",
        ]
    return "\n\n".join([*parts, LEGEND])
