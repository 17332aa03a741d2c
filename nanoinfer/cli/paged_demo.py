"""`python -m nanoinfer demo paged`: shows block tables and slots, and compares the tokens with the engine's."""

import argparse
from collections.abc import Sequence

import torch

from nanoinfer.cli.options import load
from nanoinfer.cli.prefix_demo import ranges
from nanoinfer.paged.by_hand import Step, multi_step_decode
from nanoinfer.paged.generator import GeneratorTorch
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.terminal import filled, room, side_by_side, styled

PROMPTS = ("Once upon a time, there was a little fox.", "One day, a bear", "Ruby and Oscar went to the river.")
NUM_PADDING = 1
BLOCK_SIZE = 4  # without --page-size


def run(args: argparse.Namespace) -> int:
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

    rows, limit = f"{len(prompts)} requests and {NUM_PADDING} row of padding", room()
    print(styled(filled(f"Model {llm.model.name}: {blocks} blocks of {block_size} slots, {rows}.", limit), "bold"))
    formula = f"slot block_table[n // {block_size}] * {block_size} + n % {block_size}"
    print(filled(f"The token at index n of a request is in {formula}.", limit))
    prefill = "One prefill of all prompts. Blocks for the tokens to be generated are reserved too"
    print("\n" + styled(filled(prefill, limit), "bold"))
    print(side_by_side(_prefill_columns(steps[0], [len(prompt) for prompt in prompts]), limit))
    decode = f"{num_steps} decode steps: advance_step, forward_tensor, argmax, and nothing else"
    print("\n" + styled(filled(decode, limit), "bold"))
    print(side_by_side(_decode_columns(steps[1:]), limit))
    print(styled("\nWhat the model wrote", "bold"))
    for i, (prompt, generated, wanted) in enumerate(zip(PROMPTS, tokens, expected, strict=True)):
        verdict = styled("the engine's tokens", "green") if generated == wanted else styled("DIFFERENT tokens", "red")
        text = f"{i}: {prompt}{llm.tokenizer.decode(generated)} ... ({verdict})"
        print(filled(" ".join(text.split()), limit, "   "))
    return 0 if tokens == expected else 1


def _prefill_columns(step: Step, lens: Sequence[int]) -> list[list[str]]:
    """One row per request: its block table, the slots of its prompt, and the sampled token."""
    tables = [_numbers(table, 2) for table in step.block_tables.tolist()]
    padding = len(tables) - len(lens)
    slots = [ranges(row.numpy()) for row in step.slots.split(list(lens))]
    sampled = [f"{token:7}" for token in step.sampled_token_ids[: len(lens), 0].tolist()]
    return [
        ["row", *(f"{i:3}" for i in range(len(tables)))],
        ["tokens", *(f"{length:6}" for length in lens), *[f"{'-':>6}"] * padding],
        ["block table", *tables],
        ["slots of the prompt", *slots, *["padding"] * padding],
        ["sampled", *sampled, *[""] * padding],
    ]


def _decode_columns(steps: Sequence[Step]) -> list[list[str]]:
    """One row per step: the four tensors that advance_step writes, with one number per request, and the sampled tokens."""
    columns = {
        "input_tokens": [step.input_tokens.tolist() for step in steps],
        "input_positions": [step.input_positions.tolist() for step in steps],
        "seq_lens": [step.seq_lens.tolist() for step in steps],
        "slot_mapping": [step.slots.tolist() for step in steps],
        "sampled": [step.sampled_token_ids[:, 0].tolist() for step in steps],
    }
    texts = [["step", *(f"{i:4}" for i in range(1, len(steps) + 1))]]
    for name, numbers in columns.items():
        digits = max(len(str(number)) for line in numbers for number in line)
        texts.append([name, *(_numbers(line, digits) for line in numbers)])
    return texts


def _numbers(numbers: Sequence[int], width: int) -> str:
    return " ".join(f"{number:{width}}" for number in numbers)
