"""Greedy decoding by hand, without a scheduler: several passes of forward_tensor with only argmax and advance_step between.

The scheduler's work is done in advance: every request gets the blocks for all of its tokens. After that, a step is three
operations on tensors that stay where they are. On an accelerator, the host does not have to look at anything in between.

With drafts, one pass verifies several tokens of each request. Drafts in a line stay where they are: the accepted ones are
in order, and the next pass writes over the rest. So npu_advance_step_flashattn can move the whole batch on, although each
request accepts another number of them. Drafts in a tree are moved on by DraftTree and keep_accepted. Either way a draft is
accepted only if the model has chosen the same token, so the tokens are those of a decode without drafts.
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

Prompts = Sequence[Sequence[int]]  # token ids
ProposeLine = Callable[[list[int]], Sequence[int]]  # a request's tokens, the newest included → drafts
ProposeTree = Callable[[list[int]], DraftTree]


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


@dataclass(frozen=True)
class _Prefilled:
    """Prompts after their prefill, with blocks for all that they will be."""

    kv_cache: KVCache
    tables: torch.Tensor  # [R, max_blocks]
    lens: torch.Tensor  # [prompts]
    in_the_end: int  # tokens of the longest request
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # the prefill's input_ids, position_ids and slots, [T]
    first: torch.Tensor  # [prompts]: the first sampled tokens


def multi_step_decode(
    generator: GeneratorTorch, pool: TokenToKVPool, prompts: Prompts, num_steps: int, num_padding: int = 1
) -> Iterator[Step]:
    """Prefill all `prompts` (token ids) in one pass, then decode `num_steps` times, greedily: 1 + num_steps passes.

    Blocks are whole pages of `pool`: first those for all prompts, then those for what they will generate. They go back when
    the iterator ends or is closed. `num_padding` extra requests are added to show that padding changes nothing.

    Raises ValueError naming the argument: when there are no prompts or an empty one, a number is negative, or the pool has
    too few free blocks; and for everything that `forward_tensor` refuses.
    """
    as_integer("num_steps", num_steps)
    as_integer("num_padding", num_padding, least=0)
    with _prefilled(generator, pool, prompts, num_steps, f"num_steps={num_steps}", num_padding) as started:
        num_seqs, num_queries = len(started.tables), len(prompts)
        sampled = started.first[:, None]
        seq_lens = torch.zeros(num_seqs, dtype=torch.int64, device=sampled.device)
        seq_lens[:num_queries] = started.lens
        yield _step(True, *started.inputs, seq_lens, started.tables, sampled)
        tokens, positions, slots = (torch.zeros_like(seq_lens) for _ in range(3))
        for _ in range(num_steps):
            sizes = num_seqs, num_queries, pool.page_size
            npu_advance_step_flashattn(tokens, sampled, positions, seq_lens, slots, started.tables, *sizes)
            logits = generator.forward_tensor(
                tokens, positions, False, started.kv_cache, started.tables, slots, seq_lens, started.in_the_end
            )
            sampled = logits[:num_queries].argmax(-1, keepdim=True)
            yield _step(False, tokens, positions, slots, seq_lens, started.tables, sampled)


def _step(is_prefill: bool, *tensors: torch.Tensor) -> Step:
    return Step(is_prefill, *(tensor.cpu().clone() for tensor in tensors))


def decode_with_lines(
    generator: GeneratorTorch,
    pool: TokenToKVPool,
    prompts: Prompts,
    propose: ProposeLine,
    num_drafts: int,
    num_passes: int,
) -> Iterator[LinePass]:
    """Prefill all `prompts` (token ids), then run `num_passes` passes with `num_drafts` drafts for each request.

    `propose(tokens)` returns the drafts that follow a request's tokens. The prefill's token is the first of the first pass.
    Blocks are enough for every draft to be accepted. Blocks and errors as in `multi_step_decode`, and ValueError when
    `propose` returns another number of drafts.
    """
    width, batch_size = 1 + as_integer("num_drafts", num_drafts), len(prompts)
    with _started(generator, pool, prompts, num_drafts, num_passes) as (started, texts):
        first = started.first
        # advance_step moves a request on by its accepted drafts and one more. So it begins one token back, with none.
        accepted = torch.zeros_like(first)
        sampled = torch.full((batch_size, width), -1, device=first.device)
        sampled[:, 0] = first
        positions = (started.lens[:, None] - 1 + torch.arange(width, device=first.device)).flatten()
        tokens, seq_lens, slots = (torch.zeros_like(positions) for _ in range(3))
        for _ in range(num_passes):
            drafts = torch.tensor([_drafts(propose(list(text)), num_drafts) for text in texts], device=first.device)
            npu_advance_step_flashattn(
                *(tokens, sampled, positions, seq_lens, slots, started.tables, batch_size, batch_size, pool.page_size),
                spec_token=drafts,
                accepted_num=accepted,
            )
            logits = generator.forward_tensor(
                *(tokens, positions, False, started.kv_cache, started.tables, slots),
                seq_lens.view(batch_size, width)[:, -1],
                started.in_the_end,
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
    prompts: Prompts,
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
    with _started(generator, pool, prompts, max_drafts, num_passes) as (started, texts):
        kv_cache, tables = started.kv_cache, started.tables
        contexts = [len(prompt) for prompt in prompts]
        for _ in range(num_passes):
            trees = [propose(list(text)) for text in texts]
            for tree, text in zip(trees, texts, strict=True):
                _check_tree(tree, text[-1], max_drafts)
            inputs = tree_inputs(trees, contexts, tables, pool.page_size)
            logits = generator.forward_tensor(
                is_prefill=False, kv_cache=kv_cache, block_tables=tables, max_seq_len=started.in_the_end, **inputs
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


def _drafts(drafts: Sequence[int], num_drafts: int) -> list[int]:
    if len(drafts) != num_drafts:
        raise ValueError(f"propose: returned {len(drafts)} drafts, must be num_drafts={num_drafts}")
    return list(drafts)


def _check_tree(tree: DraftTree, newest: int, max_drafts: int) -> None:
    if tree.tokens[0] != newest:
        raise ValueError(f"propose: returned a tree with root {tree.tokens[0]}, must be {newest}, the newest token")
    if len(tree) > 1 + max_drafts:
        raise ValueError(f"propose: returned a tree of {len(tree) - 1} drafts, must be at most max_drafts={max_drafts}")


@contextmanager
def _started(
    generator: GeneratorTorch, pool: TokenToKVPool, prompts: Prompts, num_drafts: int, num_passes: int
) -> Iterator[tuple[_Prefilled, list[list[int]]]]:
    """Prompts after their prefill, with blocks for drafts that are all accepted; and each request's tokens so far."""
    growth = as_integer("num_passes", num_passes) * (1 + num_drafts)
    with _prefilled(generator, pool, prompts, growth, f"num_passes={num_passes} with {num_drafts} drafts") as started:
        yield started, [[*prompt, token] for prompt, token in zip(prompts, started.first.tolist(), strict=True)]


@contextmanager
def _prefilled(
    generator: GeneratorTorch, pool: TokenToKVPool, prompts: Prompts, growth: int, cause: str, num_padding: int = 0
) -> Iterator[_Prefilled]:
    """Check that each prompt can grow by `growth` tokens (`cause`: why it would), reserve blocks for them, and run all
    prompts in one pass. The blocks go back at the end."""
    if not len(prompts):
        raise ValueError("prompts: there are none; decoding needs at least one")
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompts[{i}]: is empty")
    lengths, context = [len(prompt) for prompt in prompts], generator.model.max_context_len
    if (longest := max(lengths) + growth) > context:
        raise ValueError(
            f"{cause}: a prompt of {max(lengths)} tokens would grow to {longest}; must not exceed {context}"
        )
    kv_cache, size = generator.pool_as_blocks(pool), pool.page_size
    now, in_the_end = ([-(-(n + more) // size) for n in lengths] for more in (0, growth))
    reserved = pool.alloc(sum(in_the_end) * size)
    if reserved is None:
        raise ValueError(
            f"pool: {pool.available_size() // size} free blocks of {size}, must be at least {sum(in_the_end)}"
        )
    try:
        blocks = iter((reserved[::size] // size).tolist())
        tables = torch.full((len(prompts) + num_padding, max(in_the_end)), -1, dtype=torch.int64)
        for begins, ends in (([0] * len(now), now), (now, in_the_end)):
            for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                for page in range(begin, end):
                    tables[i, page] = next(blocks)
        device = generator.model.device
        tables, lens = tables.to(device), torch.tensor(lengths, device=device)
        input_ids = torch.tensor([token for prompt in prompts for token in prompt], device=device)
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        row = torch.arange(len(prompts), device=device).repeat_interleave(lens)
        slots = tables[row, positions // size] * size + positions % size
        own, last = tables[: len(prompts)], lens.cumsum(0) - 1
        logits = generator.forward_tensor(input_ids, positions, True, kv_cache, own, slots, lens, max(lengths), last)
        yield _Prefilled(kv_cache, tables, lens, longest, (input_ids, positions, slots), logits.argmax(-1))
    finally:
        pool.free(reserved.numpy())
