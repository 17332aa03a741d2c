"""What tiers below the pool bring: chats of several turns over a pool for a few of them, the last turn after a restart.

Every way to keep K/V serves the same chats in processes of its own. A few chats take a turn together, then the next few,
until each has had its turn; so with many chats, the pool has forgotten a chat before its next turn. Before the last turn,
the process ends, and a new one continues. Answers in prompts are drawn, not the model's own, so that all prompts are equal.
"""

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nanoinfer.bench.engines import EngineSpec, parse_engine
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.report import by_round, number_cell, page, ratio_cell, same_cell, table
from nanoinfer.bench.results import Keep, Results, new_results
from nanoinfer.bench.session import Settings, measure_rounds
from nanoinfer.bench.workloads import Job, Request, draw_tokens, warm_up

WITHOUT, HOST, DISK = "without", "host memory", "files"
TOGETHER = 4  # chats that take a turn together, and for which the pool has room
LEGEND = """\
Medians over rounds. The first three figures are those of later turns in the same process, the others those of the last,
in a new process. ×: its TTFT relative to the one without tiers in the same round."""


@dataclass(frozen=True)
class Chats:
    """So many chats of `turns`. One begins with `first_tokens`, each later turn adds the last answer and a question of
    `question_tokens`, and `new_tokens` are generated."""

    count: int
    turns: int = 3
    first_tokens: int = 256
    question_tokens: int = 24
    new_tokens: int = 32

    def __str__(self) -> str:
        return f"{self.count} chats"

    @property
    def longest(self) -> int:
        """Tokens of a chat at its end."""
        return self.first_tokens + (self.turns - 1) * (self.question_tokens + self.new_tokens) + self.new_tokens

    @property
    def pool(self) -> int:
        """Slots: for `TOGETHER` chats, in whole pages of 16."""
        return TOGETHER * (-(-self.longest // 16) * 16)

    def requests(self, vocab_size: int, seed: int) -> list[list[Request]]:
        """For each turn, the request of each chat."""
        rng = random.Random(f"tiers/{seed}/{self.count}")
        prompts = [draw_tokens(rng, self.first_tokens, vocab_size) for _ in range(self.count)]
        turns, more = [], self.new_tokens + self.question_tokens
        for _ in range(self.turns):
            turns.append([Request(prompt, self.new_tokens) for prompt in prompts])
            prompts = [prompt + draw_tokens(rng, more, vocab_size) for prompt in prompts]
        return turns

    def options(self, spec: EngineSpec, folder: str) -> dict[str, Any]:
        """Room for a few chats, and what is below it."""
        if not spec.is_ours:
            return {}
        below: dict[str, dict[str, Any]] = {
            HOST: {"host_cache_tokens": max(self.count, TOGETHER) * self.pool // TOGETHER},
            DISK: {"cache_dir": folder},
        }
        return {"max_total_tokens": self.pool, "max_running_requests": TOGETHER, **below.get(spec.name, {})}


def tier_engines(compare: Sequence[str]) -> list[EngineSpec]:
    """nanoinfer without tiers, with host memory and with files, and the engines of `--compare`."""
    ours = parse_engine("nanoinfer")
    ways = [EngineSpec(way, ours.file, is_ours=True) for way in (WITHOUT, HOST, DISK)]
    return [*ways, *(parse_engine(text) for text in compare)]


def measure_tiers(
    path: Path, dtype: str | None, settings: Settings, chats: Sequence[Chats], keep: Keep = lambda results: None
) -> Results:
    """Measure all ways and engines in every round. ValueError if a chat does not fit into the model's context."""
    checkpoint = Checkpoint.read(path)
    for each in chats:
        if each.longest > checkpoint.context_len:
            raise ValueError(
                f"--first-tokens {each.first_tokens}: a chat would have {each.longest} tokens at its end, but the "
                f"context of {checkpoint.name} has {checkpoint.context_len}"
            )
    model = {**checkpoint.as_dict(), "dtype": dtype or checkpoint.dtype}
    results = new_results("tiers", settings.as_dict(), model=model, versions={}, runs=[])

    def one_run(number: int, case: Chats, spec: EngineSpec) -> dict[str, Any]:
        """Figures of the turns before the restart, and of the last. Of the first, no way has anything to find."""
        turns = case.requests(checkpoint.vocab_size, settings.seed + number)
        tokens, figures = [], []
        with tempfile.TemporaryDirectory() as folder:
            chosen = spec.with_options(**case.options(spec, folder))
            for some in (turns[:-1], turns[-1:]):
                with chosen.start(checkpoint.path, model["dtype"], settings.threads, settings.timeout) as worker:
                    results["versions"][spec.name] = worker.about["versions"]
                    worker.ask(asdict(warm_up(checkpoint)))
                    for requests in some:
                        groups = [requests[i : i + TOGETHER] for i in range(0, len(requests), TOGETHER)]
                        answers = [worker.ask(asdict(Job(group, []))) for group in groups]
                        tokens += [each for answer in answers for each in answer["tokens"]]
                        figures.append(turn_figures(requests, answers))
                    worker.ask({"save": True})
        before = {name: median(each[name] for each in figures[1:-1]) for name in figures[0]}
        return {**before, **{f"{name}_after": value for name, value in figures[-1].items()}, "tokens": tokens}

    measure_rounds(results, chats, settings, one_run, keep)
    return results


def turn_figures(requests: Sequence[Request], answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of one turn of all chats: median seconds to the first token, output tokens per second, and the share of the prompts'
    tokens that were cached, of engines that report it."""
    cached = [each or 0 for answer in answers for each in answer["cached_tokens"]]
    return {
        "ttft_s": median(times[0] for answer in answers for times in answer["times"]),
        "output_tok_s": sum(request.new_tokens for request in requests) / sum(answer["wall_s"] for answer in answers),
        "cached": sum(cached) / sum(len(request.prompt) for request in requests),
    }


def format_tiers(results: Mapping[str, Any]) -> str:
    """A row for each number of chats and way, and what failed."""
    rows = []
    for chats in dict.fromkeys(run["workload"] for run in results["runs"]):
        base = by_round(results, chats, WITHOUT, "ttft_s_after")
        for name in results["settings"]["engines"]:
            row = [chats, name]
            for key in ("ttft_s", "output_tok_s", "cached", "ttft_s_after", "output_tok_s_after", "cached_after"):
                values = by_round(results, chats, name, key)
                text = number_cell(median(values.values()) * (1000 if "ttft" in key else 1)) if values else "–"
                row.append(f"{median(values.values()):.0%}" if "cached" in key and values else text)
            after = by_round(results, chats, name, "ttft_s_after")
            row.append(ratio_cell([after[number] / base[number] for number in after if number in base]))
            rows.append([*row, same_cell(results, chats, name)])
    head = ["", "below the pool", "TTFT ms", "tok/s", "cached", "TTFT ms after", "tok/s", "cached", "×", "same answers"]
    return page(results, table(head, rows), legend=LEGEND)
