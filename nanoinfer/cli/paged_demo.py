"""`python -m nanoinfer demo paged`: shows block tables, slots and drafts, and compares the tokens with the engine's."""

from collections.abc import Sequence

import numpy as np
import torch

from nanoinfer.cache.indices import consecutive_runs
from nanoinfer.cli.paged_drafts_demo import DraftsDemo
from nanoinfer.frontends.llm import LLM
from nanoinfer.paged.by_hand import Step, multi_step_decode
from nanoinfer.paged.generator import GeneratorTorch
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.terminal import filled, room, side_by_side, styled

PROMPTS = ("Once upon a time, there was a little fox.", "One day, a bear", "Ruby and Oscar went to the river.")
NUM_PADDING = 1
MAX_DRAFT_PASSES = 8
WIDTH = 100  # of a line of text, at most


def run_paged_demo(llm: LLM, num_steps: int = 8, block_size: int = 4) -> bool:
    """Decode three prompts with only forward_tensor and advance_step, then with drafts too, and print every step.

    Returns whether the tokens equal the engine's. ValueError if the model has no tokenizer, or a number is out of range.
    """
    if llm.tokenizer is None:
        raise ValueError("demo: this model has no tokenizer files, but the demo's prompts are text")
    prompts = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    generator = GeneratorTorch(llm.model)
    blocks = sum(-(-(len(prompt) + max(num_steps, 0)) // max(block_size, 1)) for prompt in prompts)
    pool = llm.model.new_kv_pool(max(blocks * block_size, 1), block_size)
    steps = list(multi_step_decode(generator, pool, prompts, num_steps, NUM_PADDING))
    params = SamplingParams(max_new_tokens=num_steps + 1, temperature=0.0, ignore_eos=True)
    expected = [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    drafts = DraftsDemo(llm, prompts, min(num_steps, MAX_DRAFT_PASSES), block_size)
    tokens = torch.cat([step.sampled_token_ids for step in steps], dim=1).tolist()

    rows = f"{len(prompts)} requests and {NUM_PADDING} row of padding"
    limit = room()
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
    for i, (prompt, generated) in enumerate(zip(PROMPTS, tokens, strict=True)):
        text = f"{i}: {prompt}{llm.tokenizer.decode(generated)} ..."
        print(filled(" ".join(text.split()), min(limit or WIDTH, WIDTH), "   "))
    print(styled("\nThe engine's tokens for the same prompts", "bold"))
    for i, (generated, wanted) in enumerate(zip(tokens, expected, strict=True)):
        equal = sum(a == b for a, b in zip(generated, wanted, strict=True))
        verdict = styled("equal", "green") if generated == wanted else styled("DIFFERENT", "red")
        print(f"{i}: {verdict}, {equal} of {len(wanted)}")
    drafts.show(min(limit or WIDTH, WIDTH))
    same = tokens == expected and drafts.same
    explained = "notebooks/18_the_same_pools_in_blocks.ipynb does this by hand, step by step, with pictures."
    print("\n" + styled(filled(explained, min(limit or WIDTH, WIDTH)), "dim"))
    if not same and llm.model.dtype != torch.float32:
        dtype = str(llm.model.dtype).removeprefix("torch.")
        print(
            f"In {dtype}, the order of a sum may decide between two tokens. Run with --dtype float32 to rule out rounding."
        )
    return same


def _prefill_columns(step: Step, lens: Sequence[int]) -> list[list[str]]:
    """One row per request: its block table, the slots of its prompt, and the sampled token."""
    tables = [_numbers(table, 2) for table in step.block_tables.tolist()]
    padding = len(tables) - len(lens)
    slots = [_runs(row.numpy()) for row in step.slots.split(list(lens))]
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


def _runs(slots: np.ndarray) -> str:
    """Slots in the order of the tokens, adjacent ones as ranges: `0-3, 8-9`."""
    runs = consecutive_runs(slots)
    return ", ".join(str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in runs)
