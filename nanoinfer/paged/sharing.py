"""Checks slots that a pass of forward_tensor writes and several tokens use: this is allowed only if their K/V is the same.

A token's K/V depends on every token before it. So two requests may share a token's slot only if all tokens before it are
the same as well: in the same slots, as the block tables say, and with the same ids if they are in this pass.
"""

import numpy as np
import torch

from nanoinfer.paged.inputs import PagedInputs


def check_shared_slots(inputs: PagedInputs, block_size: int) -> None:
    """ValueError naming a slot that the pass writes and that another token uses, too, unless both are the same token.

    They are the same if both have the same index, and all tokens up to there are the same and have the same masks. In a
    prefill, one request may compute what another one reads as its prefix. In a decode pass it may not: prefixes were
    computed earlier, and would be overwritten.
    """
    slots = inputs.slots
    written = np.flatnonzero(slots >= 0)
    if not written.size:
        return
    blocks = inputs.rows[:, ::block_size]  # each block's first slot, −1 where there is no block
    reach = -(-inputs.seq_lens // block_size)  # how many blocks of each request the pass may look at
    used = blocks[(np.arange(blocks.shape[1]) < reach[:, None]) & (blocks >= 0)] // block_size
    suspects = written[np.bincount(used)[slots[written] // block_size] > 1]
    if suspects.size:  # usually there are none: a block that is written is in the tables only once
        _check_suspects(inputs, suspects, block_size)


def _check_suspects(inputs: PagedInputs, suspects: np.ndarray, block_size: int) -> None:
    """The same check for the new tokens `suspects` [n], whose blocks are in the tables more than once."""
    slots, indices = inputs.slots, inputs.indices
    request = np.repeat(np.arange(len(inputs.rows)), inputs.new_lens)
    # For every token of every request, [B, S]: the slot its K/V is read from, −1 if it is not stored; and its number in the
    # pass, −1 if it was computed before.
    shape = (len(inputs.rows), int(inputs.seq_lens.max()))
    width = min(shape[1], inputs.rows.shape[1])
    source, new = np.full(shape, -1), np.full(shape, -1)
    source[:, :width] = np.where(np.arange(width) < inputs.prefix_lens[:, None], inputs.rows[:, :width], -1)
    source[request, indices], new[request, indices] = slots, np.arange(len(slots))

    shared, first = np.unique(slots[suspects], return_index=True)
    pairs: dict[tuple[int, int], int] = {}  # pair of requests → the last token that they share
    for other, index in np.argwhere(np.isin(source, shared)).tolist():
        t = suspects[first[np.searchsorted(shared, source[other, index])]]
        writer = int(request[t])
        if (other, index) == (writer, indices[t]):
            continue
        if index != indices[t]:
            raise ValueError(
                f"slots[{t}]={slots[t]}: token {indices[t]} of request {writer} is written where "
                f"block_tables[{other}, {index // block_size}] puts token {index} of request {other}"
            )
        if new[other, index] < 0 and not inputs.is_prefill:
            raise ValueError(
                f"slots[{t}]={slots[t]}: token {index} of request {writer} is written where request {other} reads a token "
                "of its prefix; in a decode pass no request may write what another one reads"
            )
        pairs[writer, other] = max(pairs.get((writer, other), 0), index)
    for (writer, other), last in pairs.items():
        upto = slice(last + 1)
        apart = np.flatnonzero(source[writer, upto] != source[other, upto])
        if apart.size:
            a, b = (f"in slot {at}" if at >= 0 else "not stored" for at in source[[writer, other], apart[0]])
            raise ValueError(
                f"slots: {source[writer, last]} is given to token {last} of requests {writer} and {other}, but token "
                f"{apart[0]} before it is {a} for one of them and {b} for the other"
            )
        both = (new[writer, upto] >= 0) & (new[other, upto] >= 0)
        _check_equal_tokens(inputs, new[writer, upto][both], new[other, upto][both], source[writer, last])


def _check_equal_tokens(inputs: PagedInputs, a: np.ndarray, b: np.ndarray, shared: int) -> None:
    """ValueError unless the new tokens `a` and `b`, [n] each, are pairwise the same and see the same. They come before the
    token in the slot `shared`, or are in it."""
    ids, positions, slots = inputs.input_ids, inputs.position_ids, inputs.slots
    for k in np.flatnonzero((ids[a] != ids[b]) | (positions[a] != positions[b]))[:1]:
        first, second = sorted((int(a[k]), int(b[k])))
        where = f"{slots[first]} is given to" if slots[first] >= 0 else f"{shared} is shared, but comes after"
        raise ValueError(f"slots: {where} tokens {first} and {second}, which differ")
    if inputs.bias is None:
        return
    device = inputs.bias.device
    later = torch.arange(inputs.bias.shape[1], device=device) > torch.from_numpy(inputs.indices[a]).to(device)[:, None]
    seen = [inputs.bias[torch.from_numpy(tokens).to(device)].masked_fill(later, 0) for tokens in (a, b)]
    for k in (seen[0] != seen[1]).any(dim=1).nonzero().flatten().tolist()[:1]:
        raise ValueError(f"slots: {shared} is shared, but the masks of tokens {a[k]} and {b[k]} differ")
