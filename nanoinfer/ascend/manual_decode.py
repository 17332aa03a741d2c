"""Manual greedy decoding, without a scheduler: several passes of forward_tensor with only argmax and advance_step between.

The scheduler's work is done in advance: every request gets the blocks for all of its tokens. After that, a step is three
operations on tensors that stay where they are. On an accelerator, the host does not have to look at anything in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from nanoinfer.ascend.advance_step import npu_advance_step_flashattn
from nanoinfer.ascend.generator import GeneratorTorch
from nanoinfer.cache.memory_pool import TokenToKVPool

Prompts = Sequence[Sequence[int]]  # token ids


@dataclass(frozen=True)
class Step:
    """The inputs and results of one pass: copies of all tensors, int64 on the host. R requests: prompts, then padding.

    `input_tokens`, `input_positions` and `slots` are [T] for the prefill, prompt after prompt, and [R] for a decode pass.
    """

    input_tokens: torch.Tensor
    input_positions: torch.Tensor
    slots: torch.Tensor
    seq_lens: torch.Tensor  # [R], after this pass; 0 for padding
    block_tables: torch.Tensor  # [R, max_blocks], −1 for unused entries
    sampled_token_ids: torch.Tensor  # [prompts, 1]


def multi_step_decode(
    generator: GeneratorTorch, pool: TokenToKVPool, prompts: Prompts, num_steps: int, num_padding: int = 1
) -> Iterator[Step]:
    """Prefill all `prompts` (token ids) in one pass, then decode `num_steps` times, greedily: 1 + num_steps passes.

    Blocks are whole pages of `pool`, for the prompts and what they will generate. They go back when the iterator ends or is
    closed. `num_padding` extra requests are added to show that padding changes nothing.

    Raises ValueError when a text would outgrow the context or the pool has too few free blocks, and for everything that
    `forward_tensor` refuses.
    """
    lengths, context = [len(prompt) for prompt in prompts], generator.model.max_context_len
    if (longest := max(lengths) + num_steps) > context:
        raise ValueError(f"num_steps={num_steps}: a prompt would grow to {longest} tokens; must not exceed {context}")
    kv_cache, size, device = generator.pool_as_blocks(pool), pool.page_size, generator.model.device
    counts = [-(-(length + num_steps) // size) for length in lengths]
    reserved = pool.alloc(sum(counts) * size)
    if reserved is None:
        raise ValueError(f"pool: {pool.available_size() // size} free blocks of {size}, must be at least {sum(counts)}")
    try:
        num_seqs, num_queries = len(prompts) + num_padding, len(prompts)
        tables = torch.full((num_seqs, max(counts)), -1, dtype=torch.int64)
        for row, blocks in zip(tables, (reserved[::size] // size).split(counts), strict=False):
            row[: len(blocks)] = blocks
        tables, lens = tables.to(device), torch.tensor(lengths, device=device)
        input_ids = torch.tensor([token for prompt in prompts for token in prompt], device=device)
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        row = torch.arange(num_queries, device=device).repeat_interleave(lens)
        slots = tables[row, positions // size] * size + positions % size
        own, last = tables[:num_queries], lens.cumsum(0) - 1
        logits = generator.forward_tensor(input_ids, positions, True, kv_cache, own, slots, lens, max(lengths), last)
        sampled = logits.argmax(-1, keepdim=True)
        seq_lens = torch.zeros(num_seqs, dtype=torch.int64, device=device)
        seq_lens[:num_queries] = lens
        yield _step(input_ids, positions, slots, seq_lens, tables, sampled)
        tokens, positions, slots = (torch.zeros_like(seq_lens) for _ in range(3))
        for _ in range(num_steps):
            npu_advance_step_flashattn(tokens, sampled, positions, seq_lens, slots, tables, num_seqs, num_queries, size)
            logits = generator.forward_tensor(tokens, positions, False, kv_cache, tables, slots, seq_lens, longest)
            sampled = logits[:num_queries].argmax(-1, keepdim=True)
            yield _step(tokens, positions, slots, seq_lens, tables, sampled)
    finally:
        pool.free(reserved.numpy())


def _step(*tensors: torch.Tensor) -> Step:
    return Step(*(tensor.cpu().clone() for tensor in tensors))
