"""PagedInputs: the arguments of one forward_tensor call, checked against each other and against the model.

Everything is checked on the host before the pass writes anything, because wrong slots would not crash: they would overwrite
the K/V of another request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nanoinfer.ascend.checks import KVCache, as_integer, check_kv_cache, check_range, int_array
from nanoinfer.cache.indices import as_int_array
from nanoinfer.model.loader import LoadedModel


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
    seq_lens = np.where(padding, 1, lengths)
    for i in np.flatnonzero(seq_lens < new_lens)[:1]:
        raise ValueError(f"input_lengths[{i}]={seq_lens[i]}: must include its {new_lens[i]} new tokens")
    if (longest := int(seq_lens.max())) > as_integer("max_seq_len", max_seq_len):
        raise ValueError(f"max_seq_len={max_seq_len}: must be at least the longest of input_lengths, {longest}")
    as_integer("max_out_len", max_out_len)
    prefix_lens = seq_lens - new_lens
    request = np.repeat(np.arange(len(lengths)), new_lens)
    indices = np.arange(len(ids)) - first[request] + prefix_lens[request]
    if spec_mask is None and atten_mask is None:
        _check_positions(positions, indices, request)
    rows = np.where(tables[..., None] < 0, -1, tables[..., None] * block_size + np.arange(block_size))
    rows = rows.reshape(len(tables), -1)
    rows = np.pad(rows, ((0, 0), (0, max(0, longest - rows.shape[1]))), constant_values=-1)
    _check_blocks(rows, prefix_lens, request, indices, slot_ids, block_size)
    _check_written_once(slot_ids, ids, indices, rows, request)
    width = max(int(lengths.max()), 1)
    masks = []
    if spec_mask is not None:
        if is_prefill:
            raise ValueError("spec_mask: is for decode (is_prefill=False); a prefill takes an atten_mask")
        if list(spec_mask.shape) != [len(ids), width]:
            raise ValueError(f"spec_mask: shape {list(spec_mask.shape)}, must be [{len(ids)}, {width}]")
        masks.append(_additive("spec_mask", spec_mask, model))
    if atten_mask is not None:
        rows_of_mask = _row_per_token(atten_mask, request, indices, len(lengths), width)
        masks.append(_additive("atten_mask", rows_of_mask, model))
    bias = torch.stack(masks).sum(0) if masks else None
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
    missing = (rows < 0) & (np.arange(rows.shape[1]) < prefix_lens[:, None])
    for i, index in np.argwhere(missing)[:1]:
        raise ValueError(f"block_tables[{i}, {index // block_size}]: token {index} of request {i} has no block")
    expected = rows[request, indices]
    for t in np.flatnonzero((slots >= 0) & (slots != expected))[:1]:
        place = f"has slot {expected[t]}" if expected[t] >= 0 else "has no block"
        raise ValueError(f"slots[{t}]={slots[t]}: by block_tables, token {indices[t]} of request {request[t]} {place}")


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


def _row_per_token(
    mask: torch.Tensor, request: np.ndarray, indices: np.ndarray, batch_size: int, width: int
) -> torch.Tensor:
    """Convert `atten_mask` from any of its shapes to [T, width]: what each new token may see of its sequence."""
    shape = list(mask.shape)
    index = torch.from_numpy(indices).to(mask.device)
    by_token = by_index = None
    if shape == [len(indices), width]:
        by_token = mask
    if len(shape) in (2, 3) and shape[-1] == shape[-2] and shape[-1] >= width:
        if len(shape) == 2:
            by_index = mask[index, :width]
        elif shape[0] == batch_size:
            by_index = mask[torch.from_numpy(request).to(mask.device), index, :width]
    if by_token is not None and by_index is not None and not torch.equal(by_token, by_index):
        raise ValueError(
            f"atten_mask: shape {shape}, could be rows of new tokens or of indices; give [B, M, M] instead"
        )
    wanted = by_index if by_token is None else by_token
    if wanted is None:
        raise ValueError(
            f"atten_mask: shape {shape}, must be [{len(indices)}, {width}] (new tokens, max(input_lengths)), [M, M] or "
            f"[{batch_size}, M, M] with M of at least {width}"
        )
    return wanted


def _additive(name: str, mask: torch.Tensor, model: LoadedModel) -> torch.Tensor:
    """`mask` as numbers that are added to scores, in the model's dtype: 0 = see, −inf or a large negative number = hide."""
    if mask.dtype == torch.bool and name == "atten_mask":
        return torch.zeros(mask.shape, dtype=model.dtype, device=model.device).masked_fill(
            ~mask.to(model.device), -torch.inf
        )
    if not mask.is_floating_point():
        raise ValueError(f"{name}: dtype {mask.dtype}, must be floating point (0 = see)")
    if bool((mask.isnan() | mask.isposinf()).any()):
        raise ValueError(f"{name}: holds NaN or +inf; 0 = see, a large negative number = hide")
    return mask.detach().to(model.device, model.dtype)
