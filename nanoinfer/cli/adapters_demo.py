"""`python -m nanoinfer demo adapters`: three styles from one batch, who shares which K/V, and what a token costs more."""

import argparse
import time

import numpy as np

from nanoinfer.adapters.peft_files import BUNDLED_ADAPTERS
from nanoinfer.cli.options import load
from nanoinfer.cli.prefix_demo import tree_lines
from nanoinfer.engine.engine import Engine
from nanoinfer.frontends.llm import LLM
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.terminal import filled, room, side_by_side, styled

OPENING = (
    "Once upon a time, there was a little fox named Ruby. She lived in a small house near the river. Every morning, Ruby "
    "went down to the water and looked at the boats."
)
ENDINGS = (" Ruby had a friend,", " Her best friend was")
PARAMS = SamplingParams(max_new_tokens=72, temperature=0.0, ignore_eos=True)
ROUNDS = 5  # times are medians over these rounds


def run(args: argparse.Namespace) -> None:
    """Serve every prompt with every adapter in one batch (the bundled ones, if none is given), and print the texts, the
    tree and the times."""
    llm = load(args, needs_text=True)
    assert llm.tokenizer is not None
    if not llm.adapters:
        for name in BUNDLED_ADAPTERS:
            llm.load_adapter(name, name)
    names: list[str | None] = [None, *llm.adapters]
    prompts = [OPENING + ending for ending in ENDINGS for _ in names]
    of_each = names * len(ENDINGS)
    limit = room() or 124
    head = f"{len(prompts)} requests in one batch, with {len(names)} styles. All begin with the same words:"
    print(styled(filled(head, limit), "bold") + "\n\n" + styled(filled(OPENING, limit), "dim") + "\n")
    llm.engine.flush_cache()
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False, adapter=of_each)
    cells = [
        ["", *map(str, range(len(outputs)))],
        ["adapter", *(name or "base" for name in of_each)],
        ["prompt", *(str(output.prompt_tokens) for output in outputs)],
        ["cached", *(str(output.cached_tokens) for output in outputs)],
        ["what was written", *(_text(prompt, output.text) for prompt, output in zip(prompts, outputs, strict=True))],
    ]
    print(side_by_side(cells, limit, gap=3))
    below = (
        "The radix tree afterwards: the same words have other K/V with each adapter, so nobody shares across styles."
    )
    print("\n" + styled(filled(below, limit), "bold"))
    print(tree_lines(llm.engine, llm.tokenizer, limit))
    print("\n" + _costs(llm, prompts, of_each, limit))


def _text(prompt: str, text: str) -> str:
    """What was written after the opening, on one line."""
    return f"...{prompt.removeprefix(OPENING)} {styled(' '.join(text.split()), 'cyan')} ..."


def _costs(llm: LLM, prompts: list[str], of_each: list[str | None], limit: int) -> str:
    """A line per batch: time of a decode pass of all the prompts, and how it compares with the base model's."""
    first = next(iter(llm.adapters))
    batches: dict[str, list[str | None]] = {
        "base model only": [None] * len(prompts),
        f"all with {first}": [first] * len(prompts),
        ", ".join(f"{len(ENDINGS)} {name or 'base'}" for name in dict.fromkeys(of_each)): of_each,
    }
    rounds = [[_pass_time(llm.engine, prompts, adapters) for adapters in batches.values()] for _ in range(ROUNDS)]
    times = np.median(rounds, axis=0)
    return side_by_side(
        [
            [styled(f"A decode pass of {len(prompts)} requests", "bold"), *batches],
            ["", *(f"{1e3 * seconds:.2f} ms" for seconds in times)],
            ["", *(f"{seconds / times[0]:.2f} x base" for seconds in times)],
        ],
        limit,
        gap=3,
    )


def _pass_time(engine: Engine, prompts: list[str], adapters: list[str | None]) -> float:
    """The median seconds of a decode pass of these requests, which are then aborted."""
    ids = [
        engine.add_request(prompt, PARAMS, adapter=adapter) for prompt, adapter in zip(prompts, adapters, strict=True)
    ]
    while engine.stats().running < len(ids) or engine.last_batch is None or engine.last_batch.prefix_lens is not None:
        engine.step()
    times = []
    for _ in range(16):
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    for request_id in ids:
        engine.abort(request_id)
    return float(np.median(times))
