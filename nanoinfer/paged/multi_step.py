"""Multi-step decode by hand: several decode passes with only argmax and advance_step between them.

The scheduler's work is done in advance: every request gets the blocks for all of its tokens. After that, a step is three
operations on tensors that stay where they are. On an accelerator, the host does not have to look at anything in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from nanoinfer.paged.checks import as_integer
from nanoinfer.paged.generator import GeneratorTorch
from nanoinfer.paged.prompts import check_prompts, prefill, reserve_blocks


@dataclass(frozen=True)
class Step:
    """The inputs and results of one pass: copies of all tensors, int64 on the host. R requests: prompts, then padding.

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
    the iterator ends or is closed. `num_padding` extra requests are added to show that padding changes nothing.

    Raises ValueError naming the argument: when there are no prompts or an empty one, a number is negative, or the pool has
    too few free blocks; and for everything that `forward_tensor` refuses.
    """
    as_integer("num_steps", num_steps)
    as_integer("num_padding", num_padding, least=0)
    check_prompts(generator, prompts, num_steps, f"num_steps={num_steps}")
    lens = [len(prompt) for prompt in prompts]
    kv_cache = generator.pool_as_blocks(pool)
    tables, slots = reserve_blocks(pool, lens, [n + num_steps for n in lens], num_padding)
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
    input_ids, positions, slots, logits = prefill(generator, kv_cache, block_tables, prompts)
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


def _snapshot(is_prefill: bool, *tensors: torch.Tensor) -> Step:
    tokens, positions, slots, seq_lens, tables, sampled = (tensor.cpu().clone() for tensor in tensors)
    return Step(is_prefill, tokens, positions, slots, seq_lens, tables, sampled)
