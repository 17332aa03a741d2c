"""forward_tensor (seed 000): runs the model over blocks that the caller owns. It is Ascend's view of pools, rows and slots.

    rows of the ReqToTokenPool      position → slot       block tables      index // P → block, slot = block · P + index % P
    out_cache_loc                   slot of a new token   slots             the same
    key_buffer [N, Hk, D]                                 kv_cache          key_buffer.view(N // P, P, Hk, D)

The network, its weights and the way into it are the same as in the engine. Only the bookkeeping is different: in the
engine a scheduler does it, here the caller does.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from nanoinfer.ascend.attention import BlockKV, PagedAttention
from nanoinfer.ascend.checks import KVCache, as_integer, check_kv_cache
from nanoinfer.ascend.inputs import PagedInputs, read_inputs
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.errors import KernelsUnavailableError, UnknownArgumentError
from nanoinfer.model.attention import AttentionBackend, select_attention_backend
from nanoinfer.model.attention.base import MASK, UNSTORED, missing_features, wanted_features
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.loader import LoadedModel, as_loaded_model
from nanoinfer.model.lora.adapter import Adapter
from nanoinfer.model.lora.manager import Adapters
from nanoinfer.model.model_runner import ModelRunner

logger = logging.getLogger("nanoinfer.ascend")
logger.addHandler(logging.NullHandler())  # what is logged here is also raised
OPTIONS = {"q_lens": None, "spec_mask": None, "atten_mask": None, "adapter_ids": None, "max_out_len": 256}


class GeneratorTorch:
    """A model that you drive with block tables. `model`: as in `LLM`, or an `LLM`'s loaded model (`llm.model`).

    It keeps nothing between calls: the caller owns all K/V. `dtype` and `device` as in `LLM`; a loaded model has them.

    `adapters`: LoRA adapters by name, as in `LLM`. All of them stay on the device, where there is room for as many as are
    given here, and for one if none is: `adapters.load` refuses more.

    `attention_backend`: as in `LLM`; None: `cpp` if it can be used. PagedAttention computes the passes that this backend
    does not support (masks, K/V that is not stored, blocks with gaps between them), and all passes if there is no backend.
    """

    def __init__(
        self,
        model: LoadedModel | str | Path,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        attention_backend: str | None = None,
        adapters: Mapping[str, str | Path] | None = None,
    ):
        self.model = as_loaded_model(model, dtype, device)
        room = max(1, len(adapters or ()))
        self.adapters = Adapters(self.model.model, room, most=room)
        self._fetching = threading.Lock()
        for name, path in (adapters or {}).items():
            self.adapters.load(name, path)
        where = (self.model.dtype, self.model.device, wanted_features(self.model.model))
        self.attention_backend: AttentionBackend | None = None
        try:
            self.attention_backend = select_attention_backend(attention_backend or "cpp", *where)
        except KernelsUnavailableError:
            if attention_backend is not None:
                raise

    def new_kv_cache(self, num_blocks: int, block_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Zeroed K and V of every layer, each [num_blocks, block_size, Hk, D], in the model's dtype and on its device.

        They belong to the caller, who decides what each block is for. ValueError when a size is below 1.
        """
        sizes = (as_integer("num_blocks", num_blocks), as_integer("block_size", block_size))
        config = self.model.config
        shape = (*sizes, config.num_key_value_heads, config.head_dim)

        def zeros() -> torch.Tensor:
            return torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)

        return [(zeros(), zeros()) for _ in range(config.num_hidden_layers)]

    def pool_as_blocks(self, pool: TokenToKVPool) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The buffers of `pool` as a `kv_cache`, with blocks of its `page_size`. It is the same memory, not a copy.

        Slots and blocks have the same numbers as in the pool, whose owner decides which ones to use. ValueError when the
        pool does not fit this model.
        """
        blocks = (pool.size // pool.page_size, pool.page_size)
        num_layers = self.model.config.num_hidden_layers
        try:
            buffers = [(pool.get_key_buffer(i), pool.get_value_buffer(i)) for i in range(num_layers)]
        except IndexError:
            raise ValueError(f"pool: has fewer layers than the model, which has {num_layers}") from None
        kv_cache = [
            (keys.view(*blocks, *keys.shape[1:]), values.view(*blocks, *values.shape[1:])) for keys, values in buffers
        ]
        check_kv_cache(kv_cache, self.model)
        return kv_cache

    def forward_tensor(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        is_prefill: bool,
        kv_cache: KVCache,
        block_tables: torch.Tensor,
        slots: torch.Tensor,
        input_lengths: torch.Tensor,
        max_seq_len: int,
        lm_head_indices: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Run one pass over `T` new tokens of `B` requests → logits [T, V] of the model's dtype, or [k, V].

        Index tensors may be int64 or int32, on any device. There are `P` slots per block, `N = num_blocks · P` in all.

        | argument | shape | |
        |---|---|---|
        | `input_ids` | [T] | new tokens, request by request. In decode one each (T = B), unless `q_lens` says otherwise |
        | `position_ids` | [T] | for rotary embeddings. Without a mask: each token's index in its sequence |
        | `is_prefill` | bool | True if these are prompts |
        | `kv_cache` | | a list with (K, V) per layer, each [num_blocks, P, Hk, D], any strides; written in place |
        | `block_tables` | [B, max_blocks] | row i: the blocks of request i in order, unused entries −1 |
        | `slots` | [T] | where each token's K/V goes: `block · P + index % P` by its row; −1: nowhere |
        | `input_lengths` | [B] | tokens of each request, including the new ones |
        | `max_seq_len` | int | at least the longest of these |
        | `lm_head_indices` | [k] | which of the T tokens get logits, in this order; None: all |

        If the first tokens of a prefill have K/V already (a prefix that another request has computed, or an earlier chunk
        of the prompt), pass only the other tokens: `position_ids` then begin at the prefix's length, and the block table
        names the blocks of all tokens. Requests may share blocks, even within a pass, but a shared block may be written
        only as far as all their tokens are the same. In a prefill, one request may compute the prefix that another one
        reads; in a decode pass, no request may write what another one reads.

        The new tokens of a request always see each other, stored or not: with all slots −1, a prefill just runs the model.
        In decode, a request with slot −1 at position 0 is padding, as `npu_advance_step_flashattn` leaves it: its length
        and its blocks are ignored, its logits mean nothing, and it does not affect others.

        Keyword arguments:

        - `q_lens`, B ints: how many new tokens each request has (their sum is T). In decode this is parallel decoding: a
          sampled token, with drafts after it. None or []: one each in decode; in prefill it follows from `position_ids`.
        - `spec_mask` [T, max(input_lengths)], floating point, in decode: row t says what token t sees of its sequence,
          by index; 0 = see, a large negative number = hide. It is for drafts that form a tree: siblings hide each other
          and have equal `position_ids`. Without it, drafts are in a line, one after the other.
        - `atten_mask`: the same for any pass, floating point (added to the scores) or boolean (True = see, as in torch's
          scaled_dot_product_attention). Shapes: [T, max(input_lengths)], one row per new token; or as in ATB, one row per
          index, [M, M] for every request or [B, M, M], M ≥ max(input_lengths). One that could be either is refused.
        - `adapter_ids`: names of LoRA adapters, up to B. None or "base" is the base model, also used for further requests.
        - `max_out_len`, default 256: how many tokens the caller will generate at most. It is checked (an integer of at
          least 1), but a single pass does not need it, because the caller reserves the blocks.

        Masks only hide: whatever they say, a token never sees what comes after it in its sequence, or what is outside a
        layer's sliding window. With a mask, `position_ids` may be anything within the model's context. The position of a
        token before this pass is taken to be its index.

        Raises, before anything is written, ValueError naming the argument, its value and the limit: wrong types, dtypes,
        shapes and lengths; token ids outside the vocabulary, positions outside the model's context; slots outside
        −1..N−1, block numbers outside −1..num_blocks−1, no block where a token has or gets K/V; a slot that is not where
        the block table puts the token, or that is given to two different tokens of the pass; an ambiguous `atten_mask`; an
        unknown adapter. UnknownArgumentError for an unknown keyword. That shared blocks are the same up to where they are
        written, and that K, V and layers are not the same memory, is up to the caller.
        Source: seed 000 (MindIE's `forward_tensor`).
        """
        unknown = kwargs.keys() - OPTIONS.keys()
        if unknown:
            raise UnknownArgumentError(f"forward_tensor: no argument {sorted(unknown)[0]!r}; has {', '.join(OPTIONS)}")
        options = {**OPTIONS, **kwargs}
        adapter_ids, adapters = options.pop("adapter_ids"), []
        if isinstance(input_lengths, torch.Tensor) and input_lengths.ndim == 1:  # else refused below
            adapters = self._find_adapters(adapter_ids, len(input_lengths))
        inputs = read_inputs(
            self.model,
            input_ids,
            position_ids,
            is_prefill,
            kv_cache,
            block_tables,
            slots,
            input_lengths,
            max_seq_len,
            lm_head_indices,
            **cast(Any, options),
        )
        runner = self._runner(inputs, BlockKV(kv_cache, inputs.slots))
        metadata = make_metadata(inputs, runner, self._places(adapters))
        return runner.run(torch.from_numpy(inputs.input_ids), metadata).logits

    def _find_adapters(self, adapter_ids: Sequence[str | None] | None, batch_size: int) -> list[Adapter | None]:
        """One per request. ValueError unless `adapter_ids` is None, or a list of existing adapters that is no longer than
        the batch."""
        if adapter_ids is None:
            return [None] * batch_size
        if not isinstance(adapter_ids, Sequence) or isinstance(adapter_ids, str):
            raise ValueError(f"adapter_ids: must be a list of names, got {type(adapter_ids).__name__}")
        if len(adapter_ids) > batch_size:
            message = "The length of `adapter_ids` should not be larger than batch size."
            logger.error(message)
            raise ValueError(message)
        adapters = [self.adapters.find(name, f"adapter_ids[{i}]") for i, name in enumerate(adapter_ids)]
        return adapters + [None] * (batch_size - len(adapters))

    def _places(self, adapters: Sequence[Adapter | None]) -> np.ndarray | None:
        """Where these adapters are on the device, int32 [B], or None if there are none. They are fetched the first time."""
        used, pool = {adapter for adapter in adapters if adapter is not None}, self.adapters.pool
        with self._fetching:
            for adapter in used:
                while not pool.obtain(adapter, used) and pool.wait():
                    if (failure := pool.take_failure()) is not None:
                        raise failure[1]
        adapter_slots = [-1 if adapter is None else adapter.slot for adapter in adapters]
        return np.array(adapter_slots, dtype=np.int32) if used else None

    def _runner(self, inputs: PagedInputs, kv: BlockKV) -> ModelRunner:
        """A runner over the caller's memory: block tables become rows of a ReqToTokenPool, and slots are slots.

        `attention_backend` computes every pass that it supports, which usually includes all passes that an engine could
        make. So tokens equal the engine's to the last bit where the two can be compared. PagedAttention computes the rest.
        """
        batch_size, row_len = inputs.rows.shape
        req_to_token_pool = ReqToTokenPool(batch_size, row_len)
        req_to_token_pool.req_to_token[:] = torch.from_numpy(inputs.rows)
        unstored = (inputs.slots < 0) & ~np.repeat(inputs.padding, inputs.new_lens)
        wanted = ({MASK} if inputs.bias is not None else set()) | ({UNSTORED} if unstored.any() else set())
        backend = self.attention_backend
        if backend is None or not kv.is_contiguous or missing_features(backend, wanted):
            backend = PagedAttention(inputs, kv)
        runner = ModelRunner(self.model.model, req_to_token_pool, cast(TokenToKVPool, kv), backend)
        runner.adapters = self.adapters.pool
        return runner


def make_metadata(inputs: PagedInputs, runner: ModelRunner, adapter_slots: np.ndarray | None = None) -> InputMetadata:
    """The description of the pass, as in the engine, but with the caller's positions, mask and rows of logits.

    If a slot is −1, so are `out_cache_loc` and, except for padding, `kv_indices`.
    """
    mode = ForwardMode.DECODE if inputs.one_token_each else ForwardMode.EXTEND
    batch = ForwardBatch(
        forward_mode=mode,
        input_ids=torch.from_numpy(inputs.input_ids),
        req_pool_indices=_int32(np.arange(len(inputs.rows))),
        seq_lens=_int32(inputs.seq_lens),
        prefix_lens=_int32(inputs.prefix_lens) if mode is ForwardMode.EXTEND else None,
        out_cache_loc=_int32(inputs.slots),
        adapter_slots=adapter_slots,
    )
    metadata = InputMetadata.of(runner, batch)
    device, head = metadata.positions.device, inputs.lm_head_indices
    metadata.positions = torch.from_numpy(inputs.position_ids).to(device)
    metadata.logit_rows = None if head is None else torch.from_numpy(head).to(device)
    metadata.attention_mask = inputs.bias
    metadata.kv_indices[metadata.start_loc[torch.from_numpy(inputs.padding)]] = 0  # padding attends to any slot
    return metadata


def _int32(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int32, copy=False))
