"""The worked example of design.md section 4 (seed 002), number for number, through the real engine.

It is served without captured graphs, so that each pass has an InputMetadata of its own.

Request 1 is "12345" and gets some output tokens, request 2 is "1234512345": the description of each pass is compared.
"""

from collections.abc import Callable
from copy import copy
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer import LLM, Engine, RequestOutput, SamplingParams
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.model_runner import ModelRunner
from tests.helpers.checkpoints import greedy

VOCAB_SIZE = 32000
REQUEST_1 = [1, 29871, 29896, 29906, 29941, 29946, 29945]
REQUEST_2 = [1, 29871, 29896, 29906, 29941, 29946, 29945, 29896, 29906, 29941, 29946, 29945]


class Recorder:
    """An engine with the example's vocabulary, and the InputMetadata of every pass it runs."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch):
        self.engine: Engine = LLM(
            path, max_total_tokens=64, max_running_requests=4, max_context_len=48, capture=False
        ).engine
        self.passes: list[InputMetadata] = []
        describe = InputMetadata.of

        def recording(model_runner: ModelRunner, batch: ForwardBatch) -> InputMetadata:
            metadata = describe(model_runner, batch)
            self.passes.append(copy(metadata))
            return metadata

        monkeypatch.setattr(InputMetadata, "of", recording)

    def run(self, prompt: list[int], num_tokens: int) -> RequestOutput:
        """One request from its arrival to its end; `passes` holds those of this request only."""
        self.passes.clear()
        params = SamplingParams(max_new_tokens=num_tokens, temperature=0, ignore_eos=True)
        request_id = self.engine.add_request(prompt, params)
        outs: list[RequestOutput] = []
        while self.engine.has_unfinished():
            outs += self.engine.step()
            self.engine.check_integrity()
        assert {out.request_id for out in outs} == {request_id}
        assert outs[-1].finished
        return outs[-1]

    def nodes(self) -> list[tuple[int, list[int], list[int]]]:
        """`(depth, tokens, slots)` of every node of the tree."""
        return [(depth, node.key.tolist(), node.value.tolist()) for depth, node in self.engine.radix_cache.nodes()]


@pytest.fixture(scope="module")
def path(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint("llama", vocab_size=VOCAB_SIZE, hidden_size=16, intermediate_size=16, num_hidden_layers=1)


@pytest.fixture
def recorder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(path, monkeypatch)


def assert_int32(tensor: torch.Tensor | None, expected: list[int]) -> None:
    assert tensor.dtype == torch.int32
    assert tensor.tolist() == expected


def test_request_1_is_one_extend_pass_into_slots_0_to_6(recorder: Recorder) -> None:
    recorder.run(REQUEST_1, 10)
    extend = recorder.passes[0]
    assert extend.forward_mode is ForwardMode.EXTEND
    assert (extend.batch_size, extend.total_num_tokens, extend.max_seq_len, extend.max_extend_len) == (1, 7, 7, 7)
    assert_int32(extend.req_pool_indices, [0])
    assert_int32(extend.seq_lens, [7])
    assert_int32(extend.prefix_lens, [0])
    assert_int32(extend.start_loc, [0])
    assert_int32(extend.extend_seq_lens, [7])
    assert_int32(extend.extend_start_loc, [0])
    assert_int32(extend.out_cache_loc, [0, 1, 2, 3, 4, 5, 6])
    assert (extend.out_cache_cont_start, extend.out_cache_cont_end) == (0, 7)
    assert extend.positions.dtype == torch.int64
    assert extend.positions.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert_int32(extend.qo_indptr, [0, 7])
    assert_int32(extend.kv_indptr, [0, 7])
    assert_int32(extend.kv_indices, [0, 1, 2, 3, 4, 5, 6])
    assert_int32(extend.kv_last_page_len, [1])
    assert extend.other_kv_index is None
    assert extend.return_normalized_logprob is False


def test_nine_decodes_follow_into_slots_7_to_15_which_are_the_trees_afterwards(recorder: Recorder) -> None:
    out = recorder.run(REQUEST_1, 10)
    assert [metadata.forward_mode for metadata in recorder.passes] == [ForwardMode.EXTEND] + 9 * [ForwardMode.DECODE]
    for slot, decode in enumerate(recorder.passes[1:], start=7):
        assert_int32(decode.out_cache_loc, [slot])
        assert (decode.other_kv_index, decode.positions.tolist()) == (slot, [slot])
        assert_int32(decode.kv_indices, list(range(slot + 1)))
    assert out.cached_tokens == 0
    assert recorder.nodes() == [(1, REQUEST_1 + out.token_ids[:9], list(range(16)))]
    tree, pool = recorder.engine.radix_cache, recorder.engine.model_runner.token_to_kv_pool
    assert (tree.total_size(), tree.evictable_size(), tree.protected_size()) == (16, 16, 0)
    assert pool.available_size() == 64 - 16, "the last sampled token never gets a slot"
    rows = recorder.engine.model_runner.req_to_token_pool
    assert rows.available_size() == 4
    assert rows.alloc(1).tolist() == [0]  # type: ignore[union-attr]


def test_request_2_extends_only_its_last_five_tokens(recorder: Recorder) -> None:
    recorder.run(REQUEST_1, 10)
    out = recorder.run(REQUEST_2, 3)
    assert (out.prompt_tokens, out.cached_tokens) == (12, 7)
    extend = recorder.passes[0]
    assert extend.forward_mode is ForwardMode.EXTEND
    assert_int32(extend.req_pool_indices, [0])
    assert_int32(extend.seq_lens, [12])
    assert_int32(extend.prefix_lens, [7])
    assert_int32(extend.out_cache_loc, [16, 17, 18, 19, 20])
    assert (extend.out_cache_cont_start, extend.out_cache_cont_end) == (16, 21)
    assert extend.positions.dtype == torch.int64
    assert extend.positions.tolist() == [7, 8, 9, 10, 11]
    assert_int32(extend.start_loc, [0])
    assert (extend.batch_size, extend.total_num_tokens, extend.max_seq_len, extend.max_extend_len) == (1, 12, 12, 5)
    assert_int32(extend.extend_seq_lens, [5])
    assert_int32(extend.extend_start_loc, [0])
    assert_int32(extend.qo_indptr, [0, 5])
    assert_int32(extend.kv_indptr, [0, 12])
    assert_int32(extend.kv_indices, [0, 1, 2, 3, 4, 5, 6, 16, 17, 18, 19, 20])
    # Its two decode passes go on after that, and see the shared prefix, the extended tokens and themselves.
    assert [decode.other_kv_index for decode in recorder.passes[1:]] == [21, 22]
    assert_int32(recorder.passes[2].kv_indices, [*range(7), *range(16, 23)])


def test_request_2_splits_the_node_of_request_1(recorder: Recorder) -> None:
    first = recorder.run(REQUEST_1, 10)
    params = SamplingParams(max_new_tokens=3, temperature=0, ignore_eos=True)
    recorder.engine.add_request(REQUEST_2, params)
    recorder.engine.step()
    shared, rest = (1, REQUEST_1, list(range(7))), (2, first.token_ids[:9], list(range(7, 16)))
    new = (2, REQUEST_2[7:], [16, 17, 18, 19, 20])
    assert recorder.nodes()[0] == shared
    assert sorted(recorder.nodes()[1:]) == sorted([rest, new])
    tree = recorder.engine.radix_cache
    assert (tree.protected_size(), tree.evictable_size()) == (12, 9), "request 2 is running and locks its own path only"
    recorder.engine.check_integrity()


def test_the_tokens_are_those_of_transformers(
    recorder: Recorder, path: Path, oracle: Callable[[Path], transformers.PreTrainedModel]
) -> None:
    model = oracle(path)
    assert recorder.engine.builder.vocab_size == VOCAB_SIZE
    assert recorder.run(REQUEST_1, 10).token_ids == greedy(model, REQUEST_1, 10)
    assert recorder.run(REQUEST_2, 10).token_ids == greedy(model, REQUEST_2, 10)
    engine = recorder.engine
    assert engine.flush_cache() == 16 + 5 + 9
    assert engine.stats()["free_slots"] == 64
    engine.check_integrity()
