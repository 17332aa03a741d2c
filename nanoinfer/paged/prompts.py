"""How decoding by hand begins: check the prompts, reserve blocks for all that a request will be, and run one prefill."""

from collections.abc import Sequence

import numpy as np
import torch

from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.paged.checks import KVCache
from nanoinfer.paged.generator import GeneratorTorch


def check_prompts(generator: GeneratorTorch, prompts: Sequence[Sequence[int]], num_new: int, cause: str) -> None:
    """ValueError unless there are prompts, none is empty, and each can grow by `num_new` tokens. `cause`: why it would."""
    if not len(prompts):
        raise ValueError("prompts: there are none; decoding needs at least one")
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompts[{i}]: is empty")
    lens = [len(prompt) for prompt in prompts]
    context = generator.model.max_context_len
    if (longest := max(lens) + num_new) > context:
        raise ValueError(f"{cause}: a prompt of {max(lens)} tokens would grow to {longest}; must not exceed {context}")


def reserve_blocks(
    pool: TokenToKVPool, first: Sequence[int], in_the_end: Sequence[int], num_padding: int = 0
) -> tuple[torch.Tensor, np.ndarray]:
    """Allocate blocks for the `first` tokens of each request, then for the rest: tables [R, max_blocks], and all slots.

    The slots are the caller's to free. ValueError when the pool has too few free blocks.
    """
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


def prefill(
    generator: GeneratorTorch, kv_cache: KVCache, block_tables: torch.Tensor, prompts: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run all prompts in one pass → `input_ids`, `position_ids`, `slots` [T] and the logits of each prompt's last token."""
    device, block_size = block_tables.device, kv_cache[0][0].shape[1]
    lens = torch.tensor([len(prompt) for prompt in prompts], device=device)
    input_ids = torch.tensor([token for prompt in prompts for token in prompt], device=device)
    positions = torch.cat([torch.arange(len(prompt), device=device) for prompt in prompts])
    row = torch.arange(len(prompts), device=device).repeat_interleave(lens)
    slots = block_tables[row, positions // block_size] * block_size + positions % block_size
    tables, last = block_tables[: len(prompts)], lens.cumsum(0) - 1
    logits = generator.forward_tensor(input_ids, positions, True, kv_cache, tables, slots, lens, int(lens.max()), last)
    return input_ids, positions, slots, logits
