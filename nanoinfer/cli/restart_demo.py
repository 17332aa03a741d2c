"""`python -m nanoinfer demo restart`: a chat whose process ends, and a new process that continues it from files."""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from nanoinfer.cli.demos import OPENING, ROUNDS, title
from nanoinfer.cli.options import llm_options
from nanoinfer.cli.terminal import filled, shortened, styled, table, terminal_width

QUESTIONS = (f"Continue this story. {OPENING}", "What did they do next?", "Who helped them?", "How does it end?")
BEFORE = 3  # questions that are answered before the process ends
NEW_TOKENS = 32

Message = dict[str, str]


def restart(args: argparse.Namespace) -> int:
    """Chat in one process, and continue the chat in two others, one with the files of the first and one without. The exit
    code is 1 if the answers of these two differ."""
    model, options = args.model, llm_options(args)
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(options.get("cache_dir") or Path(temporary, "kv"))
        without = {name: value for name, value in options.items() if not name.startswith("cache_dir")}
        first = _in_a_process(model, {**options, "cache_dir": folder}, [], QUESTIONS[:BEFORE], 1)
        messages = first["messages"]
        left = [path.stat().st_size for path in Path(folder).rglob("*.safetensors")]
        ways = {"with its files": {**options, "cache_dir": folder}, "without": without}
        runs = {name: _in_a_process(model, given, messages, QUESTIONS[BEFORE:], ROUNDS) for name, given in ways.items()}
    limit = terminal_width()
    title(f"Model {first['model']}: a chat of {len(QUESTIONS)} turns in two processes")
    turns = [(number, "first", turn) for number, turn in enumerate(first["turns"], start=1)]
    turns += [(BEFORE + 1, f"new, {name}", run["turns"][0]) for name, run in runs.items()]
    head = ("turn", "process", "prompt tokens", "from memory", "from files", "computed", "first token")
    print(table(head, [(number, process, *_cells(turn)) for number, process, turn in turns], left=(1,)))
    size = f"{sum(left) / 2**20:.1f} MiB of K/V in {len(left)} file{'s' * (len(left) != 1)}"
    print("\n" + filled(f"Between turns {BEFORE} and {BEFORE + 1}, the process ended and left {size}.", limit))
    print(filled(f"Times of turn {BEFORE + 1} are medians of {ROUNDS} first tokens, each from an empty memory.", limit))
    title("\nThe chat")
    answers = [run["messages"][-1]["content"] for run in runs.values()]
    for message in next(iter(runs.values()))["messages"]:
        print(filled(f"{message['role']}: {shortened(' '.join(message['content'].split()), 160)}", limit, "   "))
    same = len(set(answers)) == 1
    verdict = styled("equal", "green") if same else styled("DIFFERENT", "red")
    print(f"\nThe last answer with and without files: {verdict}")
    return 0 if same else 1


def _cells(turn: Mapping[str, Any]) -> tuple[object, ...]:
    tiers, total = turn["tiers"], turn["prompt_tokens"]
    memory, files = tiers["device"] + tiers["host"], tiers["disk"]
    found = styled(files, "green") if files else files
    return total, memory, found, total - memory - files, f"{1e3 * turn['ttft']:.1f} ms"


def _in_a_process(*job: Any) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        return processes.submit(serve, *job).result()


def serve(
    model: str, options: Mapping[str, Any], messages: Sequence[Message], questions: Sequence[str], rounds: int
) -> dict[str, Any]:
    """Load the model, answer the questions of a chat, and end as a process should: what is cached goes to `cache_dir`.

    With several `rounds`, each question is first asked once more per round with an empty memory, for the times.
    """
    from nanoinfer import LLM, SamplingParams

    llm = LLM(model, **options)
    if llm.tokenizer is None:
        raise ValueError("demo: this model has no tokenizer files, but the demo's prompts are text")
    size = min(200, llm.config.max_context_len // 2, llm.config.max_total_tokens // 2)
    params = SamplingParams(max_new_tokens=4, temperature=0, ignore_eos=True)
    llm.generate([1] * size, params)  # first passes take longer
    turns, chat = list[dict[str, Any]](), [*messages]
    for question in questions:
        chat.append({"role": "user", "content": question})
        times, served = [], []
        for _ in range(rounds):
            if rounds > 1 or not turns:
                llm.engine.flush_cache()
            (output,) = llm.chat(chat, SamplingParams(max_new_tokens=NEW_TOKENS, min_new_tokens=2, temperature=0))
            times.append(output.ttft or 0.0)
            served.append(output)
        chat.append({"role": "assistant", "content": served[0].text})
        tiers, total = served[0].cached_tokens_by_tier, served[0].prompt_tokens
        turns.append({"prompt_tokens": total, "tiers": tiers, "ttft": median(times)})
    name = llm.model.name
    llm.shutdown()
    return {"model": name, "messages": chat, "turns": turns}
