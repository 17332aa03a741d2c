"""VERIFY: a pass over newest tokens and drafts has the logits of an EXTEND with all rows, and of DECODEs one by one."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.engine.engine import Engine
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.attention.select import select_attention_backend
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode, expand_verify
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.req import DraftView, Req
from nanoinfer.scheduler.batch import Batch
from tests.helpers.engines import greedy, make_engine
from tests.helpers.rows import all_logits, assert_close, random_tokens

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
ROW_OF = [3, 0, 2]  # of three requests
PREFIXES, NEW = [13, 6, 1], [4, 1, 6]  # tokens before the pass; the newest one and its drafts
SLOTS = 96


class ChosenSlots:
    """Three requests with all tokens but the last `NEW` computed; rows and slots are written by hand, in shuffled pages."""

    def __init__(self, loaded: LoadedModel, page_size: int, attention: str):
        backend = select_attention_backend(attention, loaded.dtype, loaded.device)
        pool = loaded.new_kv_pool(SLOTS, page_size)
        self.runner = ModelRunner(loaded.model, ReqToTokenPool(5, 32), pool, backend)
        pages = np.random.default_rng(3).permutation(SLOTS // page_size)
        slots = (pages[:, None] * page_size + np.arange(page_size)).reshape(3, -1)
        self.ends = [prefix + new for prefix, new in zip(PREFIXES, NEW, strict=True)]
        for row, end, owned in zip(ROW_OF, self.ends, slots, strict=True):
            self.runner.req_to_token_pool.req_to_token[row, :end] = torch.from_numpy(owned[:end]).int()
        self.sequences = [random_tokens(end, seed) for seed, end in enumerate(self.ends)]
        self.runner.forward_extend(self.tokens([0] * 3, PREFIXES), *self.where([0] * 3, PREFIXES))

    def tokens(self, starts: Sequence[int], ends: Sequence[int]) -> torch.Tensor:
        parts = zip(self.sequences, starts, ends, strict=True)
        return torch.tensor([token for tokens, start, end in parts for token in tokens[start:end]])

    def where(self, starts: Sequence[int], ends: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """req_pool_indices, seq_lens, prefix_lens, out_cache_loc of a pass over these positions."""
        table = self.runner.req_to_token_pool.req_to_token
        slots = torch.cat([table[row, start:end] for row, start, end in zip(ROW_OF, starts, ends, strict=True)])
        int32 = [torch.tensor(values, dtype=torch.int32) for values in (ROW_OF, list(ends), list(starts))]
        return (*int32, slots)

    def batch(self) -> Batch:
        """The VERIFY pass; no Req is needed to compute it."""
        rows, seq_lens, prefix_lens, slots = self.where(PREFIXES, self.ends)
        tokens = self.tokens(PREFIXES, self.ends)
        return Batch(
            reqs=[],
            forward_mode=ForwardMode.VERIFY,
            input_ids=tokens,
            req_pool_indices=rows,
            seq_lens=seq_lens,
            prefix_lens=prefix_lens,
            out_cache_loc=slots,
        )

    def as_extend(self) -> torch.Tensor:
        """The logits of every new token [T, V], from EXTEND attention."""
        metadata = InputMetadata.create(self.runner, 1, ForwardMode.VERIFY, *self.where(PREFIXES, self.ends))
        assert metadata.logit_rows is None
        return self.runner.run(self.tokens(PREFIXES, self.ends), metadata).logits

    def one_by_one(self) -> torch.Tensor:
        """The same, each from a DECODE of its own."""
        logits = []
        for sequence, row, start, end in zip(self.sequences, ROW_OF, PREFIXES, self.ends, strict=True):
            slots = self.runner.req_to_token_pool.req_to_token[row]
            for p in range(start, end):
                newest = torch.tensor(sequence[p : p + 1])
                logits.append(self.runner.forward_decode(newest, [row], [p + 1], None, slots[p : p + 1]))
        return torch.cat(logits)


def chosen_slots(path: Path, page_size: int, kernels: str, attention: str) -> ChosenSlots:
    try:
        return ChosenSlots(load_model(path, kernels=kernels), page_size, attention)
    except KernelsUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.cpu
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize(
    ("kernels", "attention"), [("torch", "torch_native"), ("torch", "cpp"), ("onednn", "cpp"), ("cpp", "cpp")]
)
def test_verify_has_the_logits_of_transformers_with_every_kernel(
    kernels: str, attention: str, page_size: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint("llama")
    rows = chosen_slots(path, page_size, kernels, attention)
    compare(rows, oracle(path))


@pytest.mark.parametrize(
    ("family", "changes"),
    [("mistral", {"sliding_window": 5}), ("qwen2", {}), ("qwen3", {"head_dim": 24}), ("gemma3", {}), ("phi3", {})],
)
def test_verify_has_the_logits_of_transformers_in_every_family(
    family: str, changes: dict[str, object], checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint(family, **changes)
    compare(chosen_slots(path, 4, "auto", "auto"), oracle(path))


def compare(rows: ChosenSlots, model: transformers.PreTrainedModel) -> None:
    wanted = torch.cat(
        [all_logits(model, tokens)[start:] for tokens, start in zip(rows.sequences, PREFIXES, strict=True)]
    )
    verified = rows.runner.forward_batch(rows.batch()).logits
    assert_close(verified, wanted)
    assert_close(rows.as_extend(), wanted)
    assert_close(rows.one_by_one(), wanted)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_draft_has_the_very_bits_of_its_own_decode(page_size: int, checkpoint: Checkpoint) -> None:
    rows = chosen_slots(checkpoint("qwen3"), page_size, "cpp", "cpp")
    verified = rows.runner.forward_batch(rows.batch()).logits
    assert torch.equal(verified, rows.one_by_one())


def test_a_wrong_draft_changes_nothing_before_it_and_the_next_pass_nothing_after(checkpoint: Checkpoint) -> None:
    rows = chosen_slots(checkpoint("llama"), 1, "auto", "auto")
    right = rows.runner.forward_batch(rows.batch()).logits
    spoiled = rows.batch()
    spoiled.input_ids[2] = (spoiled.input_ids[2] + 1) % 300  # the second draft of the first request
    wrong = rows.runner.forward_batch(spoiled).logits
    same = (right == wrong).all(1).tolist()
    assert same == [True, True, False, False] + [True] * 7
    again, _ = rows.runner.forward(rows.batch(), ForwardMode.VERIFY)  # nano-sglang's name for it
    assert torch.equal(right, again)


# --- expand_verify and Batch.verify, field by field -----------------------------------------------------------------------


def running(engine: Engine, *prompts: Sequence[int]) -> list[Req]:
    """Requests with a prompt that is computed, each with its first token."""
    for prompt in prompts:
        engine.add_request(list(prompt), greedy(20))
    engine.step()
    assert len(engine.scheduler.running) == len(prompts)
    return engine.scheduler.running


@pytest.mark.parametrize("likeliest", [False, True])
def test_expand_verify_has_a_request_for_every_new_token(likeliest: bool) -> None:
    batch = ForwardBatch(
        forward_mode=ForwardMode.VERIFY,
        input_ids=torch.arange(70, 78),
        req_pool_indices=torch.tensor([4, 1, 3], dtype=torch.int32),
        seq_lens=torch.tensor([9, 3, 8], dtype=torch.int32),
        prefix_lens=torch.tensor([6, 2, 4], dtype=torch.int32),
        out_cache_loc=torch.arange(20, 28, dtype=torch.int32),
        adapter_slots=np.array([2, -1, 0], dtype=np.int32),
        only_likeliest=likeliest,
    )
    rows = expand_verify(batch)
    assert rows.req_pool_indices.tolist() == [4, 4, 4, 1, 3, 3, 3, 3]
    assert rows.seq_lens.tolist() == [7, 8, 9, 3, 5, 6, 7, 8]
    assert rows.seq_lens.dtype == rows.req_pool_indices.dtype == torch.int32
    assert torch.equal(rows.input_ids, batch.input_ids)
    assert torch.equal(rows.out_cache_loc, batch.out_cache_loc)
    assert (rows.forward_mode, rows.only_likeliest, rows.size_varies) == (ForwardMode.DECODE, likeliest, True)
    assert rows.adapter_slots.tolist() == [2, 2, 2, -1, 0, 0, 0, 0]
    assert rows.prefix_lens is None
    assert expand_verify(replace(batch, adapter_slots=None)).adapter_slots is None


def test_expand_verify_leaves_all_other_fields_as_they_are() -> None:
    """So that a field that is added to a pass reaches the layers of a VERIFY, too."""
    engine = make_engine()
    batch = Batch.verify(running(engine, [1, 2, 3], [50, 51]), [2, 0], engine.cache)
    of_decode = {"forward_mode", "req_pool_indices", "seq_lens", "prefix_lens", "adapter_slots", "size_varies"}
    rows = expand_verify(batch)
    for field in fields(batch):
        assert field.name in of_decode or getattr(rows, field.name) is getattr(batch, field.name), field.name


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_verify_batch_has_the_newest_tokens_and_the_drafts(page_size: int) -> None:
    engine = make_engine(page_size=page_size)
    reqs = running(engine, [1, 2, 3, 4, 5], [50, 51, 52], [90, 91])
    drafts = [[7, 8, 9], [], [60, 61]]
    newest = [6, 53, 92]
    for req, wanted in zip(reqs, drafts, strict=True):
        req.token_ids[req.num_tokens : req.num_tokens + len(wanted)] = wanted
    batch = Batch.verify(reqs, [3, 0, 2], engine.cache)
    assert batch.forward_mode is ForwardMode.VERIFY
    assert batch.input_ids.tolist() == [6, 7, 8, 9, 53, 92, 60, 61]
    assert batch.prefix_lens.tolist() == [5, 3, 2]
    assert batch.seq_lens.tolist() == [9, 4, 5]
    assert batch.req_pool_indices.tolist() == [req.req_pool_idx for req in reqs]
    spans = zip(reqs, [5, 3, 2], [9, 4, 5], strict=True)
    in_rows = [engine.cache.rows[req.req_pool_idx, start:end] for req, start, end in spans]
    assert batch.out_cache_loc.tolist() == np.concatenate(in_rows).tolist()
    assert len(set(batch.out_cache_loc.tolist())) == 8
    assert [req.allocated_len for req in reqs] == [-(-end // page_size) * page_size for end in (9, 4, 5)]
    assert [req.num_tokens for req in reqs] == [6, 4, 3], "drafts are no tokens of the request yet"
    assert [req.kv_len for req in reqs] == [5, 3, 2]
    assert (batch.adapter_slots, batch.chunked_req, batch.wants_prompt_logprobs) == (None, None, False)
    assert [int(req.token_ids[req.num_tokens - 1]) for req in reqs] == newest
    engine.check_integrity()


def test_the_rows_of_a_verify_are_the_requests_as_they_will_be() -> None:
    engine = make_engine()
    first, second = running(engine, [1, 2, 3], [50, 51])
    first.token_ids[4:6] = [5, 6]
    rows = Batch.verify([first, second], [2, 0], engine.cache).logits_owners
    assert [row.num_tokens for row in rows] == [4, 5, 6, 3]
    assert [row.num_output_tokens for row in rows] == [1, 2, 3, 1]
    assert [row.drafts for row in rows] == [0, 1, 2, 0]
    assert rows[0] is first
    assert rows[3] is second
    assert isinstance(rows[1], DraftView)
    assert rows[2].params is first.params
    assert rows[2].token_ids[: rows[2].num_tokens].tolist() == [1, 2, 3, 4, 5, 6]


def test_other_passes_have_a_row_per_request() -> None:
    engine = make_engine()
    reqs = running(engine, [1, 2, 3], [50, 51])
    batch = Batch.decode(reqs, engine.cache)
    assert list(batch.logits_owners) == list(reqs)
