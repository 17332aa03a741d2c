"""`python -m nanoinfer demo paged`: block tables and slots, step by step, and a comparison with the engine's tokens."""

import textwrap
from collections.abc import Sequence

import numpy as np
import torch

from nanoinfer.cache.indices import consecutive_runs
from nanoinfer.commands.terminal import styled
from nanoinfer.llm import LLM
from nanoinfer.paged.generator import GeneratorTorch
from nanoinfer.paged.multi_step import Step, multi_step_decode
from nanoinfer.requests.sampling_params import SamplingParams

PROMPTS = ("Once upon a time, there was a little fox.", "One day, a bear", "Ruby and Oscar went to the river.")
NUM_PADDING = 1
WIDTH = 100  # of a line


def run_paged_demo(llm: LLM, num_steps: int = 8, block_size: int = 4) -> bool:
    """Decode three prompts with forward_tensor and advance_step alone and print every step.

    Returns whether the tokens equal the engine's. ValueError when the model has no tokenizer, or a number is out of range.
    """
    if llm.tokenizer is None:
        raise ValueError("demo: this model has no tokenizer files; the demo's prompts are text")
    prompts = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    generator = GeneratorTorch(llm.model)
    blocks = sum(-(-(len(prompt) + max(num_steps, 0)) // max(block_size, 1)) for prompt in prompts)
    pool = llm.model.new_kv_pool(max(blocks * block_size, 1), block_size)
    steps = list(multi_step_decode(generator, pool, prompts, num_steps, NUM_PADDING))
    params = SamplingParams(max_new_tokens=num_steps + 1, temperature=0.0, ignore_eos=True)
    expected = [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    tokens = torch.cat([step.sampled_token_ids for step in steps], dim=1).tolist()

    rows = f"{len(prompts)} requests and {NUM_PADDING} row of padding"
    print(styled(f"Model {llm.model.name}: {blocks} blocks of {block_size} slots, {rows}.", "bold"))
    print(
        f"The token at index n of a request has slot = block_table[n // {block_size}] * {block_size} + n % {block_size}."
    )
    print(styled("\nOne prefill of all prompts; blocks for the tokens to be generated are reserved as well", "bold"))
    print(_prefill_table(steps[0], [len(prompt) for prompt in prompts]))
    print(styled(f"\n{num_steps} decode steps: advance_step, forward_tensor, argmax, and nothing else", "bold"))
    print(_decode_table(steps[1:]))
    print(styled("\nWhat the model wrote", "bold"))
    for i, (prompt, generated) in enumerate(zip(PROMPTS, tokens, strict=True)):
        text = f"{i}: {prompt}{llm.tokenizer.decode(generated)} ..."
        print(textwrap.fill(" ".join(text.split()), WIDTH, subsequent_indent="   "))
    print(styled("\nThe engine's tokens for the same prompts", "bold"))
    for i, (generated, wanted) in enumerate(zip(tokens, expected, strict=True)):
        same = sum(a == b for a, b in zip(generated, wanted, strict=True))
        verdict = styled("equal", "green") if generated == wanted else styled("DIFFERENT", "red")
        print(f"{i}: {verdict}, {same} of {len(wanted)}")
    if tokens != expected and llm.model.dtype != torch.float32:
        dtype = str(llm.model.dtype).removeprefix("torch.")
        print(
            f"In {dtype} the order of a sum may decide between two tokens; run with --dtype float32 to rule out rounding."
        )
    return tokens == expected


def _prefill_table(step: Step, lens: Sequence[int]) -> str:
    """One line per request: its block table, the slots of its prompt, and the sampled token."""
    tables = [_numbers(table, 2) for table in step.block_tables.tolist()]
    width = max(len("block table"), *map(len, tables))
    lines = [f"row  tokens  {'block table':{width}}  {'slots of the prompt':40} sampled"]
    slots = step.slots.split(list(lens))
    for i, (length, row) in enumerate(zip(lens, slots, strict=True)):
        lines.append(
            f"{i:3}  {length:6}  {tables[i]:{width}}  {_runs(row.numpy()):40} {int(step.sampled_token_ids[i, 0]):7}"
        )
    lines += [f"{i:3}  {'-':>6}  {tables[i]:{width}}  padding" for i in range(len(lens), len(tables))]
    return "\n".join(lines)


def _decode_table(steps: Sequence[Step]) -> str:
    """One line per step: the four tensors that advance_step writes, one number per row, and the sampled tokens."""
    columns = {
        "input_tokens": [step.input_tokens.tolist() for step in steps],
        "input_positions": [step.input_positions.tolist() for step in steps],
        "seq_lens": [step.seq_lens.tolist() for step in steps],
        "slot_mapping": [step.slots.tolist() for step in steps],
        "sampled": [step.sampled_token_ids[:, 0].tolist() for step in steps],
    }
    texts = []
    for name, numbers in columns.items():
        digits = max(len(str(number)) for line in numbers for number in line)
        cells = [_numbers(line, digits) for line in numbers]
        width = max(len(name), *map(len, cells))
        texts.append([f"{name:{width}}", *(f"{cell:{width}}" for cell in cells)])
    head = ["step", *(f"{i:4}" for i in range(1, len(steps) + 1))]
    return "\n".join("  ".join(line).rstrip() for line in zip(head, *texts, strict=True))


def _numbers(numbers: Sequence[int], width: int) -> str:
    return " ".join(f"{number:{width}}" for number in numbers)


def _runs(slots: np.ndarray) -> str:
    """Slots in the order of the tokens, adjacent ones as ranges: `0-3, 8-9`."""
    runs = consecutive_runs(slots)
    return ", ".join(str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in runs)
