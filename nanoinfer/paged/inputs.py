"""PagedInputs: the arguments of one forward_tensor call, checked against each other and against the model.

Everything is checked on the host before the pass writes anything, because wrong slots would not crash: they would overwrite
the K/V of another request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nanoinfer.cache.indices import as_int_array
from nanoinfer.model.loader import LoadedModel
from nanoinfer.paged.checks import KVCache, as_integer, check_kv_cache, check_range, int_array
from nanoinfer.paged.masks import read_masks


@dataclass
class PagedInputs:
    """One pass over `B` requests with `T` new tokens. Arrays are int64 on the host.

    The *index* of a token is its place in its sequence. It says where the token's K/V is: in block `index // P` of the
    request's row in the block tables. Its *position* is what rotary embeddings see. They differ for drafts in a tree.
    """

    is_prefill: bool
    one_token_each: bool  # a plain decode pass
    input_ids: np.ndarray  # [T]
    position_ids: np.ndarray  # [T]
    slots: np.ndarray  # [T]; −1: K/V is not written
    indices: np.ndarray  # [T]
    new_lens: np.ndarray  # [B]
    prefix_lens: np.ndarray  # [B]: tokens before this pass; 0 for padding
    padding: np.ndarray  # [B] bool: requests whose logits mean nothing
    rows: np.ndarray  # [B, W * P]: the block tables, expanded: index → slot, −1 where there is no block
    lm_head_indices: np.ndarray | None  # [k]
    bias: torch.Tensor | None  # [T, max(input_lengths)] on the device: the masks, added to attention scores

    @property
    def seq_lens(self) -> np.ndarray:
        """Tokens of each request after this pass, [B]; 1 for padding."""
        return self.prefix_lens + self.new_lens


def read_inputs(
    model: LoadedModel,
    input_ids: torch.Tensor,
    position_ids: torch.Tensor,
    is_prefill: bool,
    kv_cache: KVCache,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    input_lengths: torch.Tensor,
    max_seq_len: int,
    lm_head_indices: torch.Tensor | None,
    q_lens: Sequence[int] | None,
    spec_mask: torch.Tensor | None,
    atten_mask: torch.Tensor | None,
    max_out_len: int,
) -> PagedInputs:
    """Check and convert the arguments. Arguments and errors as in `GeneratorTorch.forward_tensor`. Changes nothing."""
    if not isinstance(is_prefill, bool):
        raise ValueError(f"is_prefill={is_prefill!r}: must be True or False")
    num_blocks, block_size = check_kv_cache(kv_cache, model)
    ids, positions = int_array("input_ids", input_ids), int_array("position_ids", position_ids)
    slot_ids, lengths = int_array("slots", slots), int_array("input_lengths", input_lengths)
    tables = int_array("block_tables", block_tables, ndim=2)
    if not len(lengths):
        raise ValueError("input_lengths: is empty; a pass needs at least one request")
    for name, array, wanted, what in (
        ("position_ids", positions, len(ids), "tokens of input_ids"),
        ("slots", slot_ids, len(ids), "tokens of input_ids"),
        ("block_tables", tables, len(lengths), "requests of input_lengths"),
    ):
        if len(array) != wanted:
            raise ValueError(f"{name}: {len(array)} for {wanted} {what}; the numbers must be equal")
    check_range("input_ids", ids, 0, model.config.vocab_size - 1)
    check_range("position_ids", positions, 0, model.max_context_len - 1)
    check_range("slots", slot_ids, -1, num_blocks * block_size - 1)
    check_range("block_tables", tables, -1, num_blocks - 1)
    check_range("input_lengths", lengths, 1 if is_prefill else 0)
    head = None if lm_head_indices is None else int_array("lm_head_indices", lm_head_indices)
    if head is not None:
        check_range("lm_head_indices", head, 0, len(ids) - 1)

    new_lens = _new_lens(q_lens, is_prefill, ids, positions, lengths)
    first = np.cumsum(new_lens) - new_lens
    # This is what advance_step leaves as padding. Its lengths and blocks mean nothing, and need not fit.
    padding = (new_lens == 1) & (slot_ids[first] == -1) & (positions[first] == 0) & (not is_prefill)
    prefix_lens = _prefix_lens(np.where(padding, 1, lengths), new_lens, as_integer("max_seq_len", max_seq_len))
    as_integer("max_out_len", max_out_len)
    request = np.repeat(np.arange(len(lengths)), new_lens)
    indices = np.arange(len(ids)) - first[request] + prefix_lens[request]
    if spec_mask is None and atten_mask is None:
        _check_positions(positions, indices, request)
    rows = np.where(tables[..., None] < 0, -1, tables[..., None] * block_size + np.arange(block_size))
    rows = rows.reshape(len(tables), -1)
    _check_blocks(rows, prefix_lens, request, indices, slot_ids, block_size)
    _check_written_once(slot_ids, ids, indices, rows, request)
    width = max(int(lengths.max()), 1)
    bias = read_masks(
        spec_mask,
        atten_mask,
        is_prefill,
        request,
        indices,
        len(lengths),
        width,
        model.dtype,
        model.device,
    )
    if bias is not None:
        bias[torch.from_numpy(first[padding]).to(bias.device)] = 0
    one_token_each = not is_prefill and len(ids) == len(lengths)
    return PagedInputs(
        is_prefill, one_token_each, ids, positions, slot_ids, indices, new_lens, prefix_lens, padding, rows, head, bias
    )


def _new_lens(
    q_lens: Sequence[int] | None, is_prefill: bool, ids: np.ndarray, positions: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """How many new tokens each request has, [B]: given by `q_lens`; otherwise one in decode, or given by the positions."""
    total, batch = len(ids), len(lengths)
    given = as_int_array([] if q_lens is None else q_lens, "q_lens")
    if given.size:
        if len(given) != batch:
            raise ValueError(f"q_lens: {len(given)} for {batch} requests of input_lengths; the numbers must be equal")
        check_range("q_lens", given, 1)
        if given.sum() != total:
            raise ValueError(f"q_lens: sum {given.sum()}, must be the {total} tokens of input_ids")
        return given
    if not is_prefill:
        if total != batch:
            raise ValueError(f"input_ids: {total} tokens for {batch} requests; decode needs one each, or q_lens")
        return np.ones(batch, dtype=np.int64)
    if total == lengths.sum():
        return lengths
    # Some tokens have K/V already: then a request's first new token comes right after its prefix.
    new_lens, start = [], 0
    for i, length in enumerate(lengths):
        if start >= total:
            raise ValueError(f"input_ids: {total} tokens, none left for request {i} of input_lengths (or give q_lens)")
        new_lens.append(int(length - positions[start]))
        if new_lens[-1] < 1:
            raise ValueError(
                f"position_ids[{start}]={positions[start]}: must be below input_lengths[{i}]={length} (or give q_lens)"
            )
        start += new_lens[-1]
    if start != total:
        raise ValueError(
            f"input_ids: {total} tokens, must be {start} by position_ids and input_lengths (or give q_lens)"
        )
    return np.array(new_lens)


def _prefix_lens(seq_lens: np.ndarray, new_lens: np.ndarray, max_seq_len: int) -> np.ndarray:
    """Tokens of each request before this pass, [B]."""
    for i in np.flatnonzero(seq_lens < new_lens)[:1]:
        raise ValueError(f"input_lengths[{i}]={seq_lens[i]}: must include its {new_lens[i]} new tokens")
    if (longest := int(seq_lens.max())) > max_seq_len:
        raise ValueError(f"max_seq_len={max_seq_len}: must be at least the longest of input_lengths, {longest}")
    return seq_lens - new_lens


def _check_positions(positions: np.ndarray, indices: np.ndarray, request: np.ndarray) -> None:
    for t in np.flatnonzero(positions != indices)[:1]:
        raise ValueError(
            f"position_ids[{t}]={positions[t]}: must be {indices[t]}, its index in request {request[t]} "
            "(other positions need a spec_mask or atten_mask)"
        )


def _check_blocks(
    rows: np.ndarray,
    prefix_lens: np.ndarray,
    request: np.ndarray,
    indices: np.ndarray,
    slots: np.ndarray,
    block_size: int,
) -> None:
    """Each request's prefix must have blocks, and new tokens must go where later passes will look for them."""
    width = rows.shape[1]
    needed = np.where(slots >= 0, indices + 1, 0)  # tokens that are not written need no block
    for t in np.flatnonzero(needed > width)[:1]:
        raise ValueError(
            f"block_tables: {width // block_size} blocks per row, too few for token {indices[t]} of a request"
        )
    for i in np.flatnonzero(prefix_lens > width)[:1]:
        raise ValueError(
            f"block_tables: {width // block_size} blocks per row, too few for the {prefix_lens[i]} tokens before this pass "
            f"of request {i}"
        )
    missing = (rows < 0) & (np.arange(width) < prefix_lens[:, None])
    for i, index in np.argwhere(missing)[:1]:
        raise ValueError(f"block_tables[{i}, {index // block_size}]=-1: token {index} of request {i} needs a block")
    written = np.flatnonzero(slots >= 0)
    expected = rows[request[written], indices[written]]
    for t, slot in zip(written[expected != slots[written]], expected[expected != slots[written]], strict=True):
        i, page = request[t], indices[t] // block_size
        if slot < 0:
            raise ValueError(f"block_tables[{i}, {page}]=-1: token {indices[t]} of request {i} needs a block")
        raise ValueError(f"slots[{t}]={slots[t]}: block_tables[{i}, {page}] puts token {indices[t]} into slot {slot}")


def _check_written_once(
    slots: np.ndarray, ids: np.ndarray, indices: np.ndarray, rows: np.ndarray, request: np.ndarray
) -> None:
    """ValueError if the pass would write two different tokens into one slot. They may be the same token of two requests,
    whose tokens before it are in the same slots, too."""
    written = np.flatnonzero(slots >= 0)
    _, first, group = np.unique(slots[written], return_index=True, return_inverse=True)
    same = written[first][group]
    for a, b in zip(same[same != written], written[same != written], strict=True):
        before = slice(indices[b])
        if ids[a] != ids[b] or indices[a] != indices[b] or (rows[request[a], before] != rows[request[b], before]).any():
            raise ValueError(f"slots: {slots[a]} is given to tokens {a} and {b}, which differ")
