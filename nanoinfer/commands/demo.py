"""`python -m nanoinfer demo`: a few requests that share a prefix, and how the engine serves them."""

from dataclasses import replace

import numpy as np

from nanoinfer.cache.indices import consecutive_runs
from nanoinfer.commands.terminal import styled
from nanoinfer.engine import Engine
from nanoinfer.llm import LLM, make_engine
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.requests.tokenizer import Tokenizer

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


def run_demo(llm: LLM) -> None:
    """Serve the branches one after another, each also on an engine without a radix cache, and print what happened."""
    if llm.tokenizer is None:
        raise ValueError("demo: this model has no tokenizer files; the demo's prompts are text")
    cached = llm.engine
    context_slots = min(llm.config.max_total_tokens, cached.cache.whole_pages(llm.config.max_context_len))
    plain = make_engine(llm.model, replace(llm.config, disable_radix_cache=True, max_total_tokens=context_slots))
    prompts = [llm.tokenizer.encode(OPENING + branch) for branch in BRANCHES]
    rounds = [(_first_token_times(cached, prompts), _first_token_times(plain, prompts)) for _ in range(ROUNDS)]
    with_cache, without = (np.median([times[i] for times in rounds], axis=0) for i in (0, 1))

    kv_bytes = llm.model.config.kv_bytes_per_token(llm.model.dtype)
    print(
        styled(
            f"Model {llm.model.name}: {llm.config.max_total_tokens:,} slots for K/V, {kv_bytes:,} bytes each.", "bold"
        )
    )
    print(f"{len(prompts)} requests, one after another, that begin with the same text and then branch:\n")
    print(styled(_shortened(OPENING, 160), "dim"))
    print(styled("\n            prompt tokens          slots that their     time to first token", "bold"))
    print(styled("request    all  cached  extended   K/V was written to   with cache  without", "bold"))
    outputs = []
    for i, prompt in enumerate(prompts):
        output, slots = _serve(cached, prompt, PARAMS)
        outputs.append(output)
        hit = styled(f"{output.cached_tokens:6}", "green")
        ttft = styled(f"{1e3 * with_cache[i]:7.1f} ms", "green")
        print(
            f"{i:7}  {output.prompt_tokens:5}  {hit}  {output.prompt_tokens - output.cached_tokens:8}"
            f"   {_ranges(slots):19}  {ttft}  {1e3 * without[i]:5.1f} ms"
        )

    print(styled("\nThe radix tree afterwards: a token's K/V is stored once, however many requests used it.", "bold"))
    print(_tree(cached, llm.tokenizer))
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
    """Seconds to the first token of each prompt, served one after another, starting and ending with an empty cache."""
    outputs = [_serve(engine, prompt, replace(PARAMS, max_new_tokens=2))[0] for prompt in prompts]
    engine.flush_cache()
    return [output.ttft or 0.0 for output in outputs]


def _serve(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[RequestOutput, np.ndarray]:
    """Serve one request alone: its last output, and the slots that the K/V of its prompt's new tokens went to."""
    request_id = engine.add_request(prompt, params)
    outputs = engine.step()
    assert engine.last_batch is not None
    slots = engine.last_batch.out_cache_loc.numpy()
    while engine.is_unfinished(request_id):
        outputs = engine.step()
    return outputs[0], slots


def _ranges(slots: np.ndarray) -> str:
    runs = consecutive_runs(np.sort(slots))
    return ", ".join(str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in runs)


def _shortened(text: str, limit: int) -> str:
    """`text` on one line; its beginning and its end where it is longer than `limit`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit // 2]} ... {line[-limit // 2 :]}"


def _tree(engine: Engine, tokenizer: Tokenizer) -> str:
    lines = []
    for depth, node in engine.radix_cache.nodes():
        text = _shortened(tokenizer.decode(node.key.tolist()), 60)
        size = styled(f"{len(node):4} tokens", "cyan")
        lines.append(f"{'   ' * (depth - 1)}└─ {size} in slots {_ranges(node.value)}  {styled(repr(text), 'dim')}")
    return "\n".join(lines)
