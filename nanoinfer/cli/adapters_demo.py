"""`python -m nanoinfer demo adapters`: three styles from one batch, and who shares which K/V."""

import argparse

from nanoinfer.adapters.peft_files import BUNDLED_ADAPTERS
from nanoinfer.cli.options import load
from nanoinfer.cli.prefix_demo import tree_lines
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.terminal import filled, room, side_by_side, styled

OPENING = (
    "Once upon a time, there was a little fox named Ruby. She lived in a small house near the river. Every morning, Ruby "
    "went down to the water and looked at the boats."
)
ENDINGS = (" Ruby had a friend,", " Her best friend was")
PARAMS = SamplingParams(max_new_tokens=72, temperature=0.0, ignore_eos=True)


def run(args: argparse.Namespace) -> None:
    """Serve every prompt with every adapter in one batch (the bundled ones, if none is given), and print the texts and
    the tree."""
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


def _text(prompt: str, text: str) -> str:
    """What was written after the opening, on one line."""
    return f"...{prompt.removeprefix(OPENING)} {styled(' '.join(text.split()), 'cyan')} ..."
