"""Manual decoding with forward_tensor and advance_step: a token at a time, drafts in a line; and trees that are refused."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.ascend.advance_step import npu_advance_step_flashattn
from nanoinfer.ascend.draft_tree import DraftTree, keep_accepted
from nanoinfer.ascend.generator import GeneratorTorch
from nanoinfer.ascend.manual_decode import multi_step_decode
from nanoinfer.cache.memory_pool import TokenToKVPool

PROMPTS = [[5, 6, 7, 8, 9], [300, 2], [42] * 8]


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[..., Path]) -> LLM:
    return LLM(checkpoint("llama"), max_total_tokens=256)


@pytest.fixture(scope="module")
def generator(llm: LLM) -> GeneratorTorch:
    return GeneratorTorch(llm.model)


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[list[int]]:
    """The 40 tokens that the engine chooses, one at a time."""
    params = SamplingParams(max_new_tokens=40, temperature=0, ignore_eos=True)
    return [output.token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]


# --- one tree ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "parents", "named"),
    [([5, 6], [-1], "parents"), ([5, 6], [0, 0], r"parents\[0\]=0"), ([5, 6, 7], [-1, 2, 0], r"parents\[1\]=2")],
)
def test_what_is_no_tree_is_refused(tokens: list[int], parents: list[int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        DraftTree(tokens, parents)


# --- the inputs of a pass, and the K/V afterwards ------------------------------------------------------------------


def numbered_cache() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two layers of 6 blocks of 2 slots: every K is its slot, and every V the negative of that, plus 100 per layer."""
    slots = torch.arange(12.0).view(6, 2, 1, 1)
    return [(slots + 100 * layer, -slots - 100 * layer) for layer in range(2)]


def as_lists(cache: list[tuple[torch.Tensor, torch.Tensor]]) -> list[list[float]]:
    return [tensor.flatten().tolist() for pair in cache for tensor in pair]


@pytest.mark.parametrize(
    ("tables", "contexts", "paths", "message"),
    [
        ([[2, 0, 5]], [1], [[1, 2]], r"paths\[0\]"),
        ([[2, 0, 5]], [1], [[0, 3, 2]], r"paths\[0\]"),
        ([[2, 0, 5]], [1], [[0, 5]], r"block_tables\[0\]"),
        ([[2, 0, -1]], [1], [[0, 3]], r"block_tables\[0\]"),
        ([[2, 0, 6]], [1], [[0, 3]], r"block_tables\[0, 2\]=6"),
        ([[2, 0, 5], [1, 0, 4]], [1, 1], [[0, 2], [0, 1]], "block_tables"),
    ],
)
def test_a_move_that_does_not_fit_is_refused_and_moves_nothing(
    tables: list[list[int]], contexts: list[int], paths: list[list[int]], message: str
) -> None:
    cache = numbered_cache()
    with pytest.raises(ValueError, match=message):
        keep_accepted(cache, torch.tensor(tables), contexts, paths)
    assert as_lists(cache) == as_lists(numbered_cache())


# --- decoding with drafts ------------------------------------------------------------------------------------------


def known(expected: Sequence[Sequence[int]], tokens: list[int]) -> list[int]:
    """What the engine generates after `tokens`, which begin with one of PROMPTS."""
    for prompt, after in zip(PROMPTS, expected, strict=True):
        text = [*prompt, *after]
        if text[: len(tokens)] == tokens:
            return text[len(tokens) :]
    raise AssertionError(f"the engine does not generate {tokens}")


def some_right(expected: Sequence[Sequence[int]], num_drafts: int) -> Callable[[list[int]], list[int]]:
    """Drafts that are right up to a random place."""

    def propose(tokens: list[int]) -> list[int]:
        right = known(expected, tokens)[:num_drafts]
        for k in range(random.Random(sum(tokens)).randint(0, num_drafts), num_drafts):
            right[k] = (right[k] + 1) % 320
        return right

    return propose


def prefilled(generator: GeneratorTorch, pool: TokenToKVPool) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
    """PROMPTS after their prefill: the cache, block tables of all blocks in turn, lengths, and the first tokens [B]."""
    kv_cache, size, lens = generator.pool_as_blocks(pool), pool.page_size, torch.tensor(list(map(len, PROMPTS)))
    tables = torch.arange(pool.size // size // len(PROMPTS) * len(PROMPTS)).view(-1, len(PROMPTS)).T.contiguous()
    positions = torch.cat([torch.arange(length) for length in lens.tolist()])
    rows = torch.arange(len(PROMPTS)).repeat_interleave(lens)
    slots = tables[rows, positions // size] * size + positions % size
    ids = torch.tensor([token for prompt in PROMPTS for token in prompt])
    last = lens.cumsum(0) - 1
    logits = generator.forward_tensor(ids, positions, True, kv_cache, tables, slots, lens, int(lens.max()), last)
    return kv_cache, tables, lens, logits.argmax(-1).cpu()


@pytest.mark.parametrize(("block_size", "num_drafts"), [(1, 1), (4, 3), (16, 4)])
def test_advance_step_moves_a_batch_on_past_its_accepted_drafts(
    block_size: int, num_drafts: int, llm: LLM, generator: GeneratorTorch, expected: list[list[int]]
) -> None:
    pool = llm.model.new_kv_pool(192, block_size)
    kv_cache, tables, lens, first = prefilled(generator, pool)
    propose, width, batch = some_right(expected, num_drafts), 1 + num_drafts, len(PROMPTS)
    texts = [[*prompt, token] for prompt, token in zip(PROMPTS, first.tolist(), strict=True)]
    # advance_step moves a request on by its accepted drafts and one more. So it begins one token back, with none.
    accepted, counts = torch.zeros_like(first), list[int]()
    sampled = torch.full((batch, width), -1)
    sampled[:, 0] = first
    positions = (lens[:, None] - 1 + torch.arange(width)).flatten()
    tokens, seq_lens, slots = (torch.zeros_like(positions) for _ in range(3))
    for _ in range(6):
        drafts = torch.tensor([propose(text) for text in texts])
        before = (tokens, sampled, positions, seq_lens, slots, tables, batch, batch, block_size)
        npu_advance_step_flashattn(*before, spec_token=drafts, accepted_num=accepted)
        lengths = seq_lens.view(batch, width)[:, -1]
        logits = generator.forward_tensor(
            tokens, positions, False, kv_cache, tables, slots, lengths, 64, q_lens=[width] * batch
        )
        chosen = logits.argmax(-1).view(batch, width).cpu()
        accepted = (drafts == chosen[:, :-1]).long().cumprod(1).sum(1)  # up to the first that differs
        sampled = chosen.masked_fill(torch.arange(width) > accepted[:, None], -1)
        for i, text in enumerate(texts):
            right, where = known(expected, text), slice(i * width, (i + 1) * width)
            number = next((k for k in range(num_drafts) if int(drafts[i, k]) != right[k]), num_drafts)
            assert tokens[where].tolist() == [text[-1], *drafts[i].tolist()]
            assert positions[where].tolist() == list(range(len(text) - 1, len(text) + num_drafts))
            assert (slots[where] % block_size == positions[where] % block_size).all()
            assert int(accepted[i]) == number
            assert sampled[i].tolist() == [*right[: number + 1], *[-1] * (num_drafts - number)]
            text += right[: number + 1]
            counts.append(number)
    assert 0 < sum(counts) < num_drafts * len(counts), "some, but not all"


def new_pool(num_blocks: int, block_size: int) -> TokenToKVPool:
    return TokenToKVPool(num_blocks * block_size, torch.float32, 2, 16, 3, page_size=block_size)


@pytest.mark.cpu
@pytest.mark.parametrize(("block_size", "num_padding"), [(1, 0), (4, 1), (16, 5), (128, 1)])
def test_its_tokens_are_the_engines(block_size: int, num_padding: int, llm: LLM, generator: GeneratorTorch) -> None:
    pool = new_pool(-(-60 // block_size) + 3, block_size)
    steps = list(multi_step_decode(generator, pool, PROMPTS, num_steps=9, num_padding=num_padding))
    tokens = torch.cat([step.sampled_token_ids for step in steps], dim=1).tolist()
    params = SamplingParams(max_new_tokens=10, temperature=0, ignore_eos=True)
    assert tokens == [output.token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert pool.available_size() == pool.size


@pytest.mark.cpu
def test_every_step_shows_what_advance_step_wrote(generator: GeneratorTorch) -> None:
    prefill, *steps = multi_step_decode(generator, new_pool(10, 4), PROMPTS, num_steps=4, num_padding=2)
    assert prefill.block_tables.tolist() == [[0, 1, 2], [3, 4, -1], [5, 6, 7], [-1] * 3, [-1] * 3]
    assert prefill.slots.tolist() == [0, 1, 2, 3, 4, 12, 13, *range(20, 28)]
    assert prefill.input_positions.tolist() == [*range(5), 0, 1, *range(8)]
    assert prefill.seq_lens.tolist() == [5, 2, 8, 0, 0]
    assert [step.slots.tolist() for step in steps] == [
        [5, 14, 28, -1, -1],
        [6, 15, 29, -1, -1],
        [7, 16, 30, -1, -1],
        [8, 17, 31, -1, -1],
    ]
    sampled = prefill.sampled_token_ids
    for n, step in enumerate(steps):
        assert step.input_tokens.tolist() == [*sampled[:, 0].tolist(), 0, 0]
        assert step.input_positions.tolist() == [5 + n, 2 + n, 8 + n, 0, 0]
        assert step.seq_lens.tolist() == [6 + n, 3 + n, 9 + n, 0, 0]
        sampled = step.sampled_token_ids


@pytest.mark.cpu
def test_blocks_go_back_when_it_is_left_halfway(generator: GeneratorTorch) -> None:
    pool = new_pool(10, 4)
    steps = multi_step_decode(generator, pool, PROMPTS, num_steps=4)
    next(steps)
    assert pool.available_size() == 8
    steps.close()
    assert pool.available_size() == 40
    pool.check_integrity()


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("prompts", "named"), [([[1] * 250], "num_steps=8"), ([[1], [2] * 30], "pool: 10 free blocks"), ([[320]], "=320")]
)
def test_what_does_not_fit_is_refused_and_keeps_no_blocks(
    prompts: list[list[int]], named: str, generator: GeneratorTorch
) -> None:
    pool = new_pool(10, 4)
    with pytest.raises(ValueError, match=named):
        list(multi_step_decode(generator, pool, prompts, num_steps=8))
    assert pool.available_size() == 40
