"""Multi-step decode by hand: several decode passes with only argmax and advance_step between them.

The scheduler's work is done in advance: every request gets the blocks for all of its tokens. After that, a step is three
operations on tensors that stay where they are. On an accelerator, the host does not have to look at anything in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from nanoinfer.paged.checks import as_integer
from nanoinfer.paged.generator import GeneratorTorch


@dataclass(frozen=True)
class Step:
    """The inputs and results of one pass: copies of all tensors, int64 on the host. R rows: prompts, then padding.

    `input_tokens`, `input_positions` and `slots` are [T] for the prefill (`is_prefill`), prompt after prompt, and [R] for
    a decode pass.
    """

    is_prefill: bool
    input_tokens: torch.Tensor
    input_positions: torch.Tensor
    slots: torch.Tensor
    seq_lens: torch.Tensor  # [R], after this pass; 0 for padding
    block_tables: torch.Tensor  # [R, max_blocks], −1 for unused entries
    sampled_token_ids: torch.Tensor  # [prompts, 1]


def multi_step_decode(
    generator: GeneratorTorch,
    pool: TokenToKVPool,
    prompts: Sequence[Sequence[int]],
    num_steps: int,
    num_padding: int = 1,
) -> Iterator[Step]:
    """Prefill all `prompts` (token ids) in one pass, then decode `num_steps` times, greedily: 1 + num_steps passes.

    Blocks are whole pages of `pool`: first those for all prompts, then those for what they will generate. They go back when
    the iterator ends or is closed. `num_padding` extra rows are added to show that padding changes nothing.

    Raises ValueError naming the argument: when there are no prompts or an empty one, a number is negative, or the pool has
    too few free blocks; and for everything that `forward_tensor` refuses.
    """
    if not len(prompts):
        raise ValueError("prompts: there are none; multi-step decode needs at least one")
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompts[{i}]: is empty")
    as_integer("num_steps", num_steps)
    as_integer("num_padding", num_padding, least=0)
    lens = [len(prompt) for prompt in prompts]
    context = generator.model.max_context_len
    if (longest := max(lens) + num_steps) > context:
        raise ValueError(
            f"num_steps={num_steps}: a prompt of {max(lens)} tokens would grow to {longest}; must not exceed {context}"
        )
    kv_cache = generator.pool_as_blocks(pool)
    tables, slots = _reserve(pool, lens, [n + num_steps for n in lens], num_padding)
    try:
        yield from _steps(generator, kv_cache, tables.to(generator.model.device), prompts, num_steps)
    finally:
        pool.free(slots)


def _steps(
    generator: GeneratorTorch,
    kv_cache: list[tuple[torch.Tensor, torch.Tensor]],
    block_tables: torch.Tensor,
    prompts: Sequence[Sequence[int]],
    num_steps: int,
) -> Iterator[Step]:
    device, block_size = block_tables.device, kv_cache[0][0].shape[1]
    num_seqs, num_queries = len(block_tables), len(prompts)
    lens = torch.tensor([len(prompt) for prompt in prompts], device=device)
    max_seq_len = int(lens.max()) + num_steps

    # Prefill: all prompts in one pass. The logits of each prompt's last token choose its first new token.
    input_ids = torch.tensor([token for prompt in prompts for token in prompt], device=device)
    positions = torch.cat([torch.arange(len(prompt), device=device) for prompt in prompts])
    row = torch.arange(num_queries, device=device).repeat_interleave(lens)
    slots = block_tables[row, positions // block_size] * block_size + positions % block_size
    logits = generator.forward_tensor(
        input_ids, positions, True, kv_cache, block_tables[:num_queries], slots, lens, max_seq_len, lens.cumsum(0) - 1
    )
    sampled = logits.argmax(-1, keepdim=True)  # [num_queries, 1]
    seq_lens = torch.zeros(num_seqs, dtype=torch.int64, device=device)
    seq_lens[:num_queries] = lens
    yield _snapshot(True, input_ids, positions, slots, seq_lens, block_tables, sampled)

    input_tokens, input_positions, slot_mapping = (torch.zeros_like(seq_lens) for _ in range(3))
    for _ in range(num_steps):
        npu_advance_step_flashattn(
            input_tokens,
            sampled,
            input_positions,
            seq_lens,
            slot_mapping,
            block_tables,
            num_seqs,
            num_queries,
            block_size,
        )
        logits = generator.forward_tensor(
            input_tokens, input_positions, False, kv_cache, block_tables, slot_mapping, seq_lens, max_seq_len
        )
        sampled = logits[:num_queries].argmax(-1, keepdim=True)
        yield _snapshot(False, input_tokens, input_positions, slot_mapping, seq_lens, block_tables, sampled)


def _reserve(
    pool: TokenToKVPool, first: Sequence[int], in_the_end: Sequence[int], num_padding: int
) -> tuple[torch.Tensor, np.ndarray]:
    """Allocate blocks for the `first` tokens of each request, then for the rest: tables [R, max_blocks], and all slots."""
    size = pool.page_size
    wanted = [[-(-n // size) for n in lens] for lens in (first, in_the_end)]
    now, more = wanted[0], [end - begin for begin, end in zip(*wanted, strict=True)]
    slots = pool.alloc((sum(now) + sum(more)) * size)
    if slots is None:
        raise ValueError(
            f"pool: {pool.available_size() // size} free blocks of {size}, must be at least {sum(now) + sum(more)}"
        )
    blocks = iter((slots[::size] // size).tolist())
    tables = torch.full((len(first) + num_padding, max(wanted[1])), -1, dtype=torch.int64)
    filled = [0] * len(first)
    for counts in (now, more):
        for i, count in enumerate(counts):
            for _ in range(count):
                tables[i, filled[i]] = next(blocks)
                filled[i] += 1
    return tables, slots.numpy()


def _snapshot(is_prefill: bool, *tensors: torch.Tensor) -> Step:
    tokens, positions, slots, seq_lens, tables, sampled = (tensor.cpu().clone() for tensor in tensors)
    return Step(is_prefill, tokens, positions, slots, seq_lens, tables, sampled)
