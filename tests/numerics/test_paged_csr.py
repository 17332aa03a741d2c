"""The two CSR descriptions of a pass, read as FlashInfer defines them: both attend as the engine's backend does."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.attention import AttentionLayer, TorchNativeBackend
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.registry import ATTENTION_BACKENDS

Checkpoint = Callable[..., Path]
Csr = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, qo_indptr: torch.Tensor, csr: Csr
) -> torch.Tensor:
    """FlashInfer's batch attention over a paged K/V cache, causal: `q` [T, H, D], K and V [pages, P, Hk, D] → [T, H, D].

    Sequence i has pages `kv_indices[kv_indptr[i] : kv_indptr[i + 1]]`, the last with `kv_last_page_len[i]` tokens, so
    `P * (pages - 1) + kv_last_page_len[i]` in all. Its queries are its last tokens.
    """
    kv_indptr, kv_indices, kv_last_page_len = csr
    page_size, out = keys.shape[1], torch.empty_like(q)
    for i, last in enumerate(kv_last_page_len.tolist()):
        pages = kv_indices[kv_indptr[i] : kv_indptr[i + 1]].long()
        length = page_size * (len(pages) - 1) + last
        k, v = keys[pages].flatten(0, 1)[:length], values[pages].flatten(0, 1)[:length]
        rows = slice(int(qo_indptr[i]), int(qo_indptr[i + 1]))
        num_new, shared = rows.stop - rows.start, q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q[rows], k.repeat_interleave(shared, 1)) / q.shape[2] ** 0.5
        hidden = torch.ones(num_new, length, dtype=torch.bool).triu(length - num_new + 1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(shared, 1))
    return out


class Compared(TorchNativeBackend):
    """The plain-torch backend, and beside each of its answers those by the two descriptions."""

    def __init__(self) -> None:
        self.passes: set[tuple[ForwardMode, bool]] = set()  # with a prefix?

    def _compare(
        self, out: torch.Tensor, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata
    ) -> torch.Tensor:
        pool = metadata.token_to_kv_pool
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        token_csr = (metadata.kv_indptr, metadata.kv_indices, metadata.kv_last_page_len)
        for size, csr in ((1, token_csr), (pool.page_size, metadata.paged_csr())):
            in_pages = [buffer.view(pool.size // size, size, *buffer.shape[1:]) for buffer in (keys, values)]
            got = attend(q, *in_pages, metadata.qo_indptr, csr)
            torch.testing.assert_close(got, out, rtol=1e-5, atol=1e-5)
        self.passes.add((metadata.forward_mode, metadata.total_num_tokens > len(metadata.positions)))
        return out

    def forward_extend(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        return self._compare(super().forward_extend(q, layer, metadata), q, layer, metadata)

    def forward_decode(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        return self._compare(super().forward_decode(q, layer, metadata), q, layer, metadata)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_flashinfers_definition_attends_as_the_engine_with_slots_and_with_pages(
    page_size: int, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared prefixes, chunks and evictions on the way: slots lie in pages wherever they come from."""
    backend = Compared()
    monkeypatch.setitem(ATTENTION_BACKENDS, "compared", lambda dtype, device: backend)
    llm = LLM(
        checkpoint(),
        attention_backend="compared",
        page_size=page_size,
        max_total_tokens=128,
        max_running_requests=3,
        chunked_prefill_size=16,
    )
    common = list(range(10, 45))
    prompts = [common, [*common, 7], [*common[:17], 8, 9], [5], [*common[:32]], [6] * 31, list(range(60, 93))]
    params = SamplingParams(max_new_tokens=20, temperature=0, ignore_eos=True)
    llm.generate(prompts, params, use_tqdm=False)
    assert llm.engine.cache.evicted_tokens > 0
    assert backend.passes >= {(ForwardMode.EXTEND, False), (ForwardMode.EXTEND, True), (ForwardMode.DECODE, True)}
