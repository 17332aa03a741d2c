"""Greedy decoding with drafts by hand: one pass of forward_tensor verifies several tokens of each request.

Drafts in a line stay where they are: the accepted ones are in order, and the next pass writes over the rest. So
npu_advance_step_flashattn can move the whole batch on, although each request accepts another number of them. Drafts in a
tree are moved on by DraftTree and keep_accepted. Either way a draft is accepted only if the model has chosen the same
token, so the tokens are those of a decode without drafts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.ops.advance_step import npu_advance_step_flashattn
from nanoinfer.paged.checks import KVCache, as_integer
from nanoinfer.paged.draft_tree import DraftTree, keep_accepted, tree_inputs
from nanoinfer.paged.generator import GeneratorTorch
from nanoinfer.paged.prompts import check_prompts, prefill, reserve_blocks

ProposeLine = Callable[[list[int]], Sequence[int]]  # a request's tokens, the newest included → drafts
ProposeTree = Callable[[list[int]], DraftTree]


@dataclass(frozen=True)
class LinePass:
    """The inputs and results of one pass with K drafts for each of B requests: copies, int64 on the host."""

    input_tokens: torch.Tensor  # [B, 1 + K]: the newest token, then the drafts
    input_positions: torch.Tensor  # [B, 1 + K]
    slots: torch.Tensor  # [B, 1 + K]
    sampled_token_ids: torch.Tensor  # [B, 1 + K]: the accepted drafts and the token after them, then −1
    accepted_num: torch.Tensor  # [B]: how many drafts were accepted


@dataclass(frozen=True)
class TreePass:
    """What one pass did for one request. `tokens` are new: the accepted drafts and the token after them."""

    tree: DraftTree
    context: int  # tokens before the root
    slots: list[int]  # where the pass put the K/V of each node; afterwards slots[d] has that of path[d]
    path: list[int]  # accepted nodes, beginning with the root
    tokens: list[int]


def decode_with_lines(
    generator: GeneratorTorch,
    pool: TokenToKVPool,
    prompts: Sequence[Sequence[int]],
    propose: ProposeLine,
    num_drafts: int,
    num_passes: int,
) -> Iterator[LinePass]:
    """Prefill all `prompts` (token ids), then run `num_passes` passes with `num_drafts` drafts for each request.

    `propose(tokens)` returns the drafts that follow a request's tokens. The prefill's token is the first of the first pass.
    Blocks are whole pages of `pool`, enough for every draft to be accepted. They go back when the iterator ends or is
    closed.

    Raises ValueError naming the argument: when there are no prompts or an empty one, a number is below 1, `propose` returns
    another number of drafts, the pool has too few free blocks; and for everything that `forward_tensor` refuses.
    """
    width, batch_size = 1 + as_integer("num_drafts", num_drafts), len(prompts)
    with _started(generator, pool, prompts, num_drafts, num_passes) as (kv_cache, tables, first, in_the_end):
        texts = [[*prompt, token] for prompt, token in zip(prompts, first.tolist(), strict=True)]
        # advance_step moves a request on by its accepted drafts and one more. So it begins one token back, with none.
        accepted = torch.zeros_like(first)
        sampled = torch.full((batch_size, width), -1, device=first.device)
        sampled[:, 0] = first
        lens = torch.tensor([len(prompt) for prompt in prompts], device=first.device)
        positions = (lens[:, None] - 1 + torch.arange(width, device=first.device)).flatten()
        tokens, seq_lens, slots = (torch.zeros_like(positions) for _ in range(3))
        for _ in range(num_passes):
            drafts = torch.tensor([_drafts(propose(list(text)), num_drafts) for text in texts], device=first.device)
            npu_advance_step_flashattn(
                tokens,
                sampled,
                positions,
                seq_lens,
                slots,
                tables,
                batch_size,
                batch_size,
                pool.page_size,
                spec_token=drafts,
                accepted_num=accepted,
            )
            logits = generator.forward_tensor(
                tokens,
                positions,
                False,
                kv_cache,
                tables,
                slots,
                seq_lens.view(batch_size, width)[:, -1],
                in_the_end,
                q_lens=[width] * batch_size,
            )
            chosen = logits.argmax(-1).view(batch_size, width)
            accepted = (drafts == chosen[:, :-1]).long().cumprod(1).sum(1)  # up to the first that differs
            sampled = chosen.masked_fill(torch.arange(width, device=first.device) > accepted[:, None], -1)
            for text, row in zip(texts, sampled.tolist(), strict=True):
                text += [token for token in row if token >= 0]
            inputs = (tensor.view(batch_size, width) for tensor in (tokens, positions, slots))
            yield LinePass(*(tensor.cpu().clone() for tensor in (*inputs, sampled, accepted)))


def decode_with_trees(
    generator: GeneratorTorch,
    pool: TokenToKVPool,
    prompts: Sequence[Sequence[int]],
    propose: ProposeTree,
    max_drafts: int,
    num_passes: int,
) -> Iterator[list[TreePass]]:
    """Prefill all `prompts` (token ids), then run `num_passes` passes with a tree of drafts for each request.

    `propose(tokens)` returns a tree: its root is the last of the tokens, and it has at most `max_drafts` nodes below. A
    root alone is fine. Yields what each pass did, request by request. Blocks and errors as in `decode_with_lines`, and
    ValueError for a tree that is too large or has another root.
    """
    as_integer("max_drafts", max_drafts)
    with _started(generator, pool, prompts, max_drafts, num_passes) as (kv_cache, tables, first, in_the_end):
        texts = [[*prompt, token] for prompt, token in zip(prompts, first.tolist(), strict=True)]
        contexts = [len(prompt) for prompt in prompts]
        for _ in range(num_passes):
            trees = [propose(list(text)) for text in texts]
            for tree, text in zip(trees, texts, strict=True):
                _check_tree(tree, text[-1], max_drafts)
            inputs = tree_inputs(trees, contexts, tables, pool.page_size)
            logits = generator.forward_tensor(
                is_prefill=False, kv_cache=kv_cache, block_tables=tables, max_seq_len=in_the_end, **inputs
            )
            chosen = logits.argmax(-1).split(inputs["q_lens"])
            verdicts = [tree.accepted(tokens.tolist()) for tree, tokens in zip(trees, chosen, strict=True)]
            before, contexts = contexts, keep_accepted(kv_cache, tables, contexts, [path for path, _ in verdicts])
            done = []
            slots = [part.tolist() for part in inputs["slots"].split(inputs["q_lens"])]
            for text, tree, context, where, (path, after) in zip(texts, trees, before, slots, verdicts, strict=True):
                new = [*(tree.tokens[node] for node in path[1:]), after]
                text += new
                done.append(TreePass(tree, context, where, path, new))
            yield done


@contextmanager
def _started(
    generator: GeneratorTorch,
    pool: TokenToKVPool,
    prompts: Sequence[Sequence[int]],
    num_drafts: int,
    num_passes: int,
) -> Iterator[tuple[KVCache, torch.Tensor, torch.Tensor, int]]:
    """Check, reserve blocks and prefill: the K/V cache, block tables, first tokens [B], and the longest request's length
    if all drafts are accepted. Gives the blocks back at the end."""
    growth = as_integer("num_passes", num_passes) * (1 + num_drafts)
    check_prompts(generator, prompts, growth, f"num_passes={num_passes} with {num_drafts} drafts")
    lens = [len(prompt) for prompt in prompts]
    kv_cache = generator.pool_as_blocks(pool)
    tables, slots = reserve_blocks(pool, lens, [n + growth for n in lens])
    try:
        tables = tables.to(generator.model.device)
        logits = prefill(generator, kv_cache, tables, prompts)[-1]
        yield kv_cache, tables, logits.argmax(-1), max(lens) + growth
    finally:
        pool.free(slots)


def _drafts(drafts: Sequence[int], num_drafts: int) -> list[int]:
    if len(drafts) != num_drafts:
        raise ValueError(f"propose: returned {len(drafts)} drafts, must be num_drafts={num_drafts}")
    return list(drafts)


def _check_tree(tree: DraftTree, newest: int, max_drafts: int) -> None:
    if tree.tokens[0] != newest:
        raise ValueError(f"propose: returned a tree with root {tree.tokens[0]}, must be {newest}, the newest token")
    if len(tree) > 1 + max_drafts:
        raise ValueError(f"propose: returned a tree of {len(tree) - 1} drafts, must be at most max_drafts={max_drafts}")
