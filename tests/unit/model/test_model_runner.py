"""ModelRunner: logits of single passes are those of transformers (of every variant of every family: tests/families)."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.logits_processor import ROWS_AT_A_TIME, compute_logits
from nanoinfer.model.loader import load_model
from tests.helpers.rows import (
    HandWrittenRows,
    all_logits,
    assert_close,
    assert_likeliest,
    logprob_of_each_token,
    random_tokens,
)

Checkpoint = Callable[..., Path]


Oracle = Callable[[Path], transformers.PreTrainedModel]


@pytest.mark.parametrize("total", [256, 257, 258])
def test_prompt_logprobs_of_long_passes_are_complete(total: int, checkpoint: Checkpoint, oracle: Oracle) -> None:
    """The head is applied to 256 rows at a time: passes that end just before, at and after that boundary. Each request gets
    as many likeliest tokens as it wants."""
    path = checkpoint("llama")
    prompts = [random_tokens(length, seed) for seed, length in enumerate((100, total - 160, 60))]
    llm = LLM(path, max_total_tokens=512)
    counts = (3, 5, 0)
    params = [SamplingParams(max_new_tokens=1, prompt_logprobs=True, prompt_top_logprobs=count) for count in counts]
    outs = llm.generate(prompts, params, use_tqdm=False)
    assert llm.engine.stats()["extend_steps"] == 1
    for prompt, out, count in zip(prompts, outs, counts, strict=True):
        assert out.prompt_logprobs[0] is None
        assert_close(torch.tensor(out.prompt_logprobs[1:]), logprob_of_each_token(oracle(path), prompt)[1:])
        if not count:
            assert out.prompt_top_logprobs is None
            continue
        assert_likeliest(out.prompt_top_logprobs, all_logits(oracle(path), prompt).log_softmax(-1), count)


def test_likeliest_tokens_of_a_long_prompt_need_no_table_of_all_positions() -> None:
    """The head is given a block of rows at a time, and no block is kept."""
    blocks: list[weakref.ref[torch.Tensor]] = []

    def head(hidden: torch.Tensor) -> torch.Tensor:
        assert len(hidden) <= ROWS_AT_A_TIME
        assert sum(block() is not None for block in blocks[1:]) <= 1, "the first are the logits of the last token"
        logits = hidden.new_zeros(len(hidden), 50).index_put(
            (torch.arange(len(hidden)), hidden[:, 0].long()), hidden[:, 1]
        )
        blocks.append(weakref.ref(logits))
        return logits

    total = 5 * ROWS_AT_A_TIME
    hidden = torch.stack([torch.arange(total) % 50, torch.ones(total)], dim=1)
    metadata: Any = SimpleNamespace(
        return_normalized_logprob=True,
        logit_rows=torch.tensor([total - 1]),
        qo_indptr=torch.tensor([0, total]),
        only_likeliest=False,
        batch=SimpleNamespace(prompt_top_counts=[1]),
    )
    output = compute_logits(hidden, torch.zeros(total, dtype=torch.int64), head, metadata)
    assert len(blocks) == 6
    assert [next(iter(entry)) for entry in output.prompt_likeliest[0] or ()] == [i % 50 for i in range(total - 1)]


@pytest.mark.parametrize("first_slot", [0, 5])
def test_a_batch_in_neighbouring_slots_gives_the_same_logits(
    first_slot: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    """Neighbours are written as a slice. `forward_batch` is the way the engine calls the runner, `forward` the seed's."""
    path = checkpoint("llama")
    sequences = [random_tokens(6, seed=60), random_tokens(4, seed=61)]
    expected = [all_logits(oracle(path), tokens) for tokens in sequences]
    logprobs = [logprob_of_each_token(oracle(path), tokens) for tokens in sequences]
    rows = HandWrittenRows(load_model(path), 2)
    slots = torch.arange(first_slot, first_slot + 8, dtype=torch.int32)
    batch = ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        input_ids=torch.tensor(sequences[0][:5] + sequences[1][:3]),
        req_pool_indices=torch.tensor([2, 0], dtype=torch.int32),
        seq_lens=torch.tensor([5, 3], dtype=torch.int32),
        prefix_lens=torch.tensor([0, 0], dtype=torch.int32),
        out_cache_loc=slots,
    )
    metadata = InputMetadata.of(rows.runner, batch)
    assert (metadata.out_cache_cont_start, metadata.out_cache_cont_end) == (first_slot, first_slot + 8)
    assert metadata.batch is batch
    logits, normalized = rows.runner.forward(batch, ForwardMode.EXTEND)
    assert_close(logits, torch.stack([expected[0][4], expected[1][2]]))
    assert normalized is None
    assert torch.equal(rows.runner.forward_batch(batch).logits, logits)
    logits, normalized = rows.runner.forward(batch, ForwardMode.EXTEND, return_normalized_logprob=True)
    assert_close(normalized, torch.stack([logprobs[0][1:5].mean(), logprobs[1][1:3].mean()]))
    prompt_logprobs = rows.runner.forward_batch(replace(batch, wants_prompt_logprobs=True)).prompt_logprobs
    assert prompt_logprobs.isnan().nonzero()[:, 0].tolist() == [0, 5], "the first of each request"
    assert_close(prompt_logprobs[6:], logprobs[1][1:3])

    rows.rows.req_to_token[2, :5], rows.rows.req_to_token[0, :3] = slots[:5], slots[5:]
    end = first_slot + 8
    batch = ForwardBatch(
        forward_mode=ForwardMode.DECODE,
        input_ids=torch.tensor([sequences[0][5], sequences[1][3]]),
        req_pool_indices=torch.tensor([2, 0], dtype=torch.int32),
        seq_lens=torch.tensor([6, 4], dtype=torch.int32),
        out_cache_loc=torch.tensor([end, end + 1], dtype=torch.int32),
    )
    logits, normalized = rows.runner.forward(batch, ForwardMode.DECODE)
    assert_close(logits, torch.stack([expected[0][5], expected[1][3]]))
    assert normalized is None
    assert rows.written_slots(2) == list(range(first_slot, end + 2))


def test_a_mode_that_does_not_suit_the_batch_is_refused(checkpoint: Checkpoint) -> None:
    rows = HandWrittenRows(load_model(checkpoint("llama")), 1)
    one = torch.ones(1, dtype=torch.int32)
    of_decode = ForwardBatch(
        forward_mode=ForwardMode.DECODE, input_ids=one.long(), req_pool_indices=0 * one, seq_lens=one, out_cache_loc=one
    )
    of_extend = replace(of_decode, forward_mode=ForwardMode.EXTEND, prefix_lens=0 * one)
    for batch, mode, message in (
        (of_decode, ForwardMode.EXTEND, "prefix_lens=None: EXTEND needs one per request"),
        (of_decode, ForwardMode.VERIFY, "prefix_lens=None: VERIFY needs one per request"),
        (of_extend, ForwardMode.DECODE, "prefix_lens: must be None in DECODE"),
        (of_decode, "DECODE", "forward_mode='DECODE': must be a ForwardMode"),
    ):
        with pytest.raises(ValueError, match=message):
            rows.runner.forward(batch, mode)  # type: ignore[arg-type]
    assert rows.written_slots(0) == []


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_token_ids_may_be_int32_and_need_not_be_side_by_side_in_memory(kernels: str, checkpoint: Checkpoint) -> None:
    rows = HandWrittenRows(load_model(checkpoint("llama"), kernels=kernels), 1)
    ids = torch.tensor([5, 6, 7])
    apart = torch.stack([ids, ids + 9], dim=1)[:, 0]
    assert not apart.is_contiguous()
    where = ([0], [3], [0], [4, 9, 2])
    wanted, _ = rows.runner.forward_extend(ids, *where)
    for given in (ids.int(), apart, apart.int()):
        assert torch.equal(rows.runner.forward_extend(given, *where)[0], wanted)
    rows.rows.req_to_token[0, :3] = torch.tensor([4, 9, 2])
    newest = ([0], [4], None, [5])
    wanted = rows.runner.forward_decode(ids[:1], *newest)
    assert torch.equal(rows.runner.forward_decode(ids[:1].int(), *newest), wanted)
