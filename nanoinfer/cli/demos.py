"""`python -m nanoinfer demo`, `demo adapters`, `demo sessions`: a few requests, what they share, and what was written."""

import argparse
from dataclasses import replace

import numpy as np

from nanoinfer.cache.indices import consecutive_runs
from nanoinfer.cli.options import load
from nanoinfer.cli.terminal import filled, shortened, styled, table, terminal_width
from nanoinfer.engine.engine import Engine
from nanoinfer.llm import make_engine
from nanoinfer.model.lora.peft_files import BUNDLED_ADAPTERS
from nanoinfer.outputs import RequestOutput
from nanoinfer.requests.request import AdapterKey
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.sessions.inference import InferenceEngine
from nanoinfer.sessions.offline_scheduler import OfflineScheduler

FOX = (
    "Once upon a time, there was a little fox named Ruby. She lived in a small house near the river. Every morning, Ruby "
    "went down to the water and looked at the boats."
)
OPENING = f"""\
{FOX} She wished for a boat of her own more than for anything else. She \
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
ENDINGS = (" Ruby had a friend,", " Her best friend was")  # of FOX, for adapters
SESSIONS = ("Once upon a time, there was a fox", "One day, a little", "In the forest,")
SESSION_TOKENS = 48
ROUNDS = 5  # times to the first token are medians over these rounds


def prefix(args: argparse.Namespace) -> None:
    """Serve the branches one after another, each also on an engine without a radix cache, and print the results."""
    llm = load(args, needs_text=True)
    assert llm.tokenizer is not None
    cached = llm.engine
    context_slots = min(llm.config.max_total_tokens, cached.cache.whole_pages(llm.config.max_context_len))
    plain = make_engine(llm.model, replace(llm.config, disable_radix_cache=True, max_total_tokens=context_slots))
    prompts = [llm.tokenizer.encode(OPENING + branch) for branch in BRANCHES]
    rounds = [(_first_token_times(cached, prompts), _first_token_times(plain, prompts)) for _ in range(ROUNDS)]
    with_cache, without = (1e3 * np.median([times[i] for times in rounds], axis=0) for i in (0, 1))
    served = [_serve(cached, prompt, PARAMS) for prompt in prompts]

    kv_bytes = llm.model.config.kv_bytes_per_token(llm.model.dtype)
    title(f"Model {llm.model.name}: {llm.config.max_total_tokens:,} slots for K/V, {kv_bytes:,} bytes each.")
    about = f"{len(prompts)} requests begin with the same text and then branch. They are served one after another:"
    print(
        filled(about, terminal_width())
        + "\n\n"
        + styled(filled(shortened(OPENING, 160), terminal_width()), "dim")
        + "\n"
    )
    rows = [
        (
            *(i, output.prompt_tokens, styled(output.cached_tokens, "green")),
            *(output.prompt_tokens - output.cached_tokens, ranges(np.sort(slots))),
            *(styled(f"{with_cache[i]:.1f} ms", "green"), f"{without[i]:.1f} ms"),
        )
        for i, (output, slots) in enumerate(served)
    ]
    head = ("request", "prompt tokens", "cached", "extended", "slots of their K/V", "first token with cache", "without")
    print(table(head, rows, left=(4,)))
    title("\nThe radix tree afterwards: a token's K/V is stored once, however many requests used it.")
    print(tree_lines(cached, llm.tokenizer))
    title("\nWhat the model wrote")
    for i, (branch, (output, _)) in enumerate(zip(BRANCHES, served, strict=True)):
        print(f"{i}: ...{styled(branch, 'dim')}{output.text}{' ...' if output.finish_reason == 'length' else ''}\n")
    found, stats = sum(output.cached_tokens for output, _ in served), cached.stats()
    title(f"{found} of {sum(map(len, prompts))} prompt tokens came from the cache.")
    print(f"Slots: {stats['free_slots']:,} free + {stats['evictable_slots']:,} in the tree = {stats['total_slots']:,}.")


def adapters(args: argparse.Namespace) -> None:
    """Serve every prompt with every adapter in one batch (the bundled ones, if none is given), and print the texts and
    the tree."""
    llm = load(args, needs_text=True)
    assert llm.tokenizer is not None
    if not llm.adapters:
        for name in BUNDLED_ADAPTERS:
            llm.load_adapter(name, name)
    names: list[str | None] = [None, *llm.adapters]
    prompts = [FOX + ending for ending in ENDINGS for _ in names]
    of_each = names * len(ENDINGS)
    title(f"{len(prompts)} requests in one batch, with {len(names)} styles. All begin with the same words:")
    print("\n" + styled(filled(FOX, terminal_width()), "dim") + "\n")
    llm.engine.flush_cache()
    params = SamplingParams(max_new_tokens=72, temperature=0.0, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False, adapter=of_each)
    rows = [
        (
            *(i, name or "base", each.prompt_tokens, each.cached_tokens),
            f"...{prompt.removeprefix(FOX)} {styled(' '.join(each.text.split()), 'cyan')} ...",
        )
        for i, (name, prompt, each) in enumerate(zip(of_each, prompts, outputs, strict=True))
    ]
    print(table(("", "adapter", "prompt", "cached", "what was written"), rows, left=(0, 1, 4)))
    title(
        "\nThe radix tree afterwards: the same words have other K/V with each adapter, so nobody shares across styles."
    )
    print(tree_lines(llm.engine, llm.tokenizer))


def sessions(args: argparse.Namespace) -> None:
    """The first engine of the notebooks: serve prompts greedily with an OfflineScheduler, side by side."""
    scheduler = OfflineScheduler(InferenceEngine(load(args, needs_text=True).model))
    for prompt in SESSIONS:
        scheduler.add_request(prompt, SESSION_TOKENS, do_sample=False)
    texts = [f"{styled(f'### request {i}', 'bold')}\n{text.rstrip()}" for i, text in scheduler.run().items()]
    print("\n\n".join(texts))


def title(text: str) -> None:
    """Print a line in bold."""
    print(styled("\n" * text.startswith("\n") + filled(text.lstrip(), terminal_width()), "bold"))


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


def ranges(slots: np.ndarray) -> str:
    """Slots in the order given, neighbours as ranges: `0-3, 8-9`."""
    runs = consecutive_runs(slots)
    return ", ".join(str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in runs)


def tree_lines(engine: Engine, tokenizer: Tokenizer) -> str:
    """One line per node: its place, size and slots, and the beginning and the end of its text. If adapters are loaded, a
    line before each beginning says whose it is."""
    lines, limit = [], terminal_width()
    names = {adapter.id: name for name, adapter in engine.adapters.items()}
    for depth, node in engine.radix_cache.nodes():
        if depth == 1 and names:
            key = node.edge[0]
            lines.append(styled(names[key.id] if isinstance(key, AdapterKey) else "base", "bold"))
        start = f"{'   ' * (depth - 1)}└─ "
        size = f"{len(node):4} token{'s'[: len(node) > 1]}"
        where = f" in slot{'s'[: len(node) > 1]} {shortened(ranges(np.sort(node.value)), 15)}  "
        left = 60 if limit is None else min(60, limit - len(start + size + where) - 9)
        text = repr(shortened(tokenizer.decode(node.key.tolist()), max(left, 4)))
        lines.append(f"{start}{styled(size, 'cyan')}{where}{styled(text, 'dim')}")
    return "\n".join(lines)
