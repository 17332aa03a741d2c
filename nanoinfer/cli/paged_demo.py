"""`python -m nanoinfer demo paged`: shows block tables and slots, and compares the tokens with the engine's."""

import argparse
from collections.abc import Sequence

import torch

from nanoinfer.ascend.generator import GeneratorTorch
from nanoinfer.ascend.manual_decode import Step, multi_step_decode
from nanoinfer.cli.demos import ranges, title
from nanoinfer.cli.options import load
from nanoinfer.cli.terminal import filled, styled, table, terminal_width
from nanoinfer.sampling_params import SamplingParams

PROMPTS = ("Once upon a time, there was a little fox.", "One day, a bear", "Ruby and Oscar went to the river.")
NUM_PADDING = 1
BLOCK_SIZE = 4  # without --page-size


def paged(args: argparse.Namespace) -> int:
    """Decode three prompts with only forward_tensor and advance_step, and print every step. The exit code is 1 if the
    tokens are not the engine's."""
    num_steps, block_size = 8 if args.steps is None else args.steps, getattr(args, "page_size", BLOCK_SIZE)
    if num_steps < 1:
        raise ValueError(f"--steps {num_steps}: must be at least 1")
    llm = load(args, needs_text=True)
    assert llm.tokenizer is not None
    prompts = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    blocks = sum(-(-(len(prompt) + num_steps) // block_size) for prompt in prompts)
    pool = llm.model.new_kv_pool(blocks * block_size, block_size)
    steps = list(multi_step_decode(GeneratorTorch(llm.model), pool, prompts, num_steps, NUM_PADDING))
    params = SamplingParams(max_new_tokens=num_steps + 1, temperature=0.0, ignore_eos=True)
    expected = [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    tokens = torch.cat([step.sampled_token_ids for step in steps], dim=1).tolist()

    limit = terminal_width()
    title(f"Model {llm.model.name}: {blocks} blocks of {block_size} slots, 3 requests and 1 row of padding.")
    formula = f"slot block_table[n // {block_size}] * {block_size} + n % {block_size}"
    print(filled(f"The token at index n of a request is in {formula}.", limit))
    title("\nOne prefill of all prompts. Blocks for the tokens to be generated are reserved too")
    print(_prefill(steps[0], [len(prompt) for prompt in prompts]))
    title(f"\n{num_steps} decode steps: advance_step, forward_tensor, argmax, and nothing else")
    print(_decode(steps[1:]))
    title("\nWhat the model wrote")
    for i, (prompt, generated, wanted) in enumerate(zip(PROMPTS, tokens, expected, strict=True)):
        verdict = styled("the engine's tokens", "green") if generated == wanted else styled("DIFFERENT tokens", "red")
        text = f"{i}: {prompt}{llm.tokenizer.decode(generated)} ... ({verdict})"
        print(filled(" ".join(text.split()), limit, "   "))
    return 0 if tokens == expected else 1


def _prefill(step: Step, lens: Sequence[int]) -> str:
    """One row per request: its block table, the slots of its prompt, and the sampled token."""
    padding = ["-", "padding", ""]
    of_each = zip(lens, step.slots.split(list(lens)), step.sampled_token_ids[:, 0].tolist(), strict=False)
    cells = [[length, ranges(slots.numpy()), token] for length, slots, token in of_each]
    tables = [_numbers(row, 2) for row in step.block_tables.tolist()]
    rows = [(i, tables[i], *each) for i, each in enumerate([*cells, *[padding] * (len(tables) - len(cells))])]
    return table(("row", "block table", "tokens", "slots of the prompt", "sampled"), rows, left=(1, 3))


def _decode(steps: Sequence[Step]) -> str:
    """One row per step: the four tensors that advance_step writes, with one number per request, and the sampled tokens."""
    columns = {
        "input_tokens": [step.input_tokens.tolist() for step in steps],
        "input_positions": [step.input_positions.tolist() for step in steps],
        "seq_lens": [step.seq_lens.tolist() for step in steps],
        "slot_mapping": [step.slots.tolist() for step in steps],
        "sampled": [step.sampled_token_ids[:, 0].tolist() for step in steps],
    }
    texts = []
    for numbers in columns.values():
        digits = max(len(str(number)) for line in numbers for number in line)
        texts.append([_numbers(line, digits) for line in numbers])
    rows = [(i, *cells) for i, cells in enumerate(zip(*texts, strict=True), start=1)]
    return table(("step", *columns), rows, left=range(1, 6))


def _numbers(numbers: Sequence[int], width: int) -> str:
    return " ".join(f"{number:{width}}" for number in numbers)
