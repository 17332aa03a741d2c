"""`python -m nanoinfer demo`: shows how the engine serves a few requests that share a prefix."""

import argparse
from dataclasses import replace

import numpy as np

from nanoinfer.cache.indices import consecutive_runs
from nanoinfer.cli.options import load
from nanoinfer.engine.engine import Engine
from nanoinfer.frontends.llm import make_engine
from nanoinfer.requests.adapter_key import AdapterKey
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.terminal import filled, room, shortened, side_by_side, styled, width

OPENING = """\
Once upon a time, there was a little fox named Ruby. She lived in a small house near the river. Every morning, Ruby \
went down to the water and looked at the boats. She wished for a boat of her own more than for anything else. She \
drew boats in the sand, and she gave every one of them a name.

One day, Ruby found an old red boat under a big tree. It had a hole in it, and nobody wanted it any more. "I can mend \
it," said Ruby. She worked all day. She found a piece of wood, and she made a little sail. But the boat was very heavy, \
and Ruby was very small. She pushed and pushed, but it did not move.

Just then, a big bear named Oscar came by."""
BRANCHES = (
    ' "What are you doing?" asked Oscar.',
    ' "Can I help you?" asked Oscar.',
    ' "Can I help you?" asked Oscar. "Yes, please," said Ruby.',
    " Oscar laughed at the little boat.",
    ' "What are you doing?" asked Oscar.',
)
PARAMS = SamplingParams(max_new_tokens=40, min_new_tokens=2, temperature=0.0)

ROUNDS = 5  # times to the first token are medians over these rounds


def run(args: argparse.Namespace) -> None:
    """Serve the branches one after another, each also on an engine without a radix cache, and print the results."""
    llm = load(args, needs_text=True)
    assert llm.tokenizer is not None
    cached = llm.engine
    context_slots = min(llm.config.max_total_tokens, cached.cache.whole_pages(llm.config.max_context_len))
    plain = make_engine(llm.model, replace(llm.config, disable_radix_cache=True, max_total_tokens=context_slots))
    prompts = [llm.tokenizer.encode(OPENING + branch) for branch in BRANCHES]
    rounds = [(_first_token_times(cached, prompts), _first_token_times(plain, prompts)) for _ in range(ROUNDS)]
    with_cache, without = (np.median([times[i] for times in rounds], axis=0) for i in (0, 1))

    kv_bytes = llm.model.config.kv_bytes_per_token(llm.model.dtype)
    limit = room()
    slots = f"{llm.config.max_total_tokens:,} slots for K/V, {kv_bytes:,} bytes each."
    print(styled(filled(f"Model {llm.model.name}: {slots}", limit), "bold"))
    print(
        filled(
            f"{len(prompts)} requests begin with the same text and then branch. They are served one after another:",
            limit,
        )
    )
    print("\n" + styled(filled(shortened(OPENING, 160), limit), "dim") + "\n")
    served = [_serve(cached, prompt, PARAMS) for prompt in prompts]
    outputs = [output for output, _ in served]
    print(side_by_side(_columns(served, with_cache, without), limit, gap=3))

    below = "The radix tree afterwards: a token's K/V is stored once, however many requests used it."
    print("\n" + styled(filled(below, limit), "bold"))
    print(tree_lines(cached, llm.tokenizer, limit))
    print(styled("\nWhat the model wrote", "bold"))
    for i, (branch, output) in enumerate(zip(BRANCHES, outputs, strict=True)):
        print(f"{i}: ...{styled(branch, 'dim')}{output.text}{' ...' if output.finish_reason == 'length' else ''}\n")
    stats = cached.stats()
    print(
        styled(f"{sum(output.cached_tokens for output in outputs)} of {sum(map(len, prompts))} prompt tokens ", "bold")
        + styled("came from the cache. ", "bold")
        + f"Slots: {stats['free_slots']:,} free + {stats['evictable_slots']:,} in the tree = {stats['total_slots']:,}."
    )


def _first_token_times(engine: Engine, prompts: list[list[int]]) -> list[float]:
    """Seconds to the first token of each prompt, served one after another. The cache is empty before and after."""
    outputs = [_serve(engine, prompt, replace(PARAMS, max_new_tokens=2))[0] for prompt in prompts]
    engine.flush_cache()
    return [output.ttft or 0.0 for output in outputs]


def _serve(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[RequestOutput, np.ndarray]:
    """Serve one request alone. Returns its last output, and the slots of the prompt tokens whose K/V it computed."""
    request_id = engine.add_request(prompt, params)
    outputs = engine.step()
    assert engine.last_batch is not None
    slots = engine.last_batch.out_cache_loc.numpy()
    while engine.is_unfinished(request_id):
        outputs = engine.step()
    return outputs[0], slots


def _columns(
    served: list[tuple[RequestOutput, np.ndarray]], with_cache: np.ndarray, without: np.ndarray
) -> list[list[str]]:
    """The table's columns: requests, prompt tokens, slots, times (given in seconds). Those that belong together are one."""
    heads = [
        ("", "request"),
        ("  prompt tokens", " all  cached  extended"),
        ("slots that their", "K/V was written to"),
        ("time to first token", "with cache  without"),
    ]
    columns = [[styled(cell, "bold") for cell in head] for head in heads]
    for i, (output, slots) in enumerate(served):
        hit = styled(f"{output.cached_tokens:6}", "green")
        ttft = styled(f"{1e3 * with_cache[i]:7.1f} ms", "green")
        cells = (
            f"{i:7}",
            f"{output.prompt_tokens:4}  {hit}  {output.prompt_tokens - output.cached_tokens:8}",
            ranges(np.sort(slots)),
            f"{ttft}  {1e3 * without[i]:5.1f} ms",
        )
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell)
    return columns


def ranges(slots: np.ndarray) -> str:
    """Slots in the order given, neighbours as ranges: `0-3, 8-9`."""
    runs = consecutive_runs(slots)
    return ", ".join(str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in runs)


def tree_lines(engine: Engine, tokenizer: Tokenizer, limit: int | None) -> str:
    """One line per node, with at most `limit` characters: its place, size and slots, and as much of its text as fits. If
    adapters are loaded, a line before each beginning says whose it is."""
    lines = []
    names = {adapter.id: name for name, adapter in engine.adapters.items()}
    for depth, node in engine.radix_cache.nodes():
        if depth == 1 and names:
            key = node.edge[0]
            lines.append(styled(names[key.id] if isinstance(key, AdapterKey) else "base", "bold"))
        slots = ranges(np.sort(node.value))
        slots = slots if limit is None else shortened(slots, 15)
        size, plural = (f"{len(node):4} token", "") if len(node) == 1 else (f"{len(node):4} tokens", "s")
        line = f"{'   ' * (depth - 1)}└─ {styled(size, 'cyan')} in slot{plural} {slots}"
        text, shown = tokenizer.decode(node.key.tolist()), 60
        left = None if limit is None else limit - width(line) - 2
        while left is not None and shown >= 4 and len(repr(shortened(text, shown))) > left:
            shown -= 2
        lines.append(f"{line}  {styled(repr(shortened(text, shown)), 'dim')}" if shown >= 4 else line)
    return "\n".join(lines)
