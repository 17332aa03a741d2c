"""PagedAttention: attention over blocks that the caller owns, for forward_tensor."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from nanoinfer.ascend.checks import KVCache
from nanoinfer.ascend.inputs import PagedInputs
from nanoinfer.model.attention.base import MASK, SINKS, SOFTCAP, UNSTORED, AttentionLayer
from nanoinfer.model.attention.torch_native import attend
from nanoinfer.model.input_metadata import InputMetadata

Window = int | None


class BlockKV:
    """Makes the caller's blocks look like a TokenToKVPool to the layers: a slot is an offset in a block.

    It also keeps the K/V of the current pass, because new tokens are attended to even if they are not stored (slot −1).
    """

    def __init__(self, kv_cache: KVCache, slots: np.ndarray):
        keys = kv_cache[0][0]
        num_blocks, self.page_size = keys.shape[:2]
        self.size, self.dtype, self.device = num_blocks * self.page_size, keys.dtype, keys.device
        self.kv_cache = kv_cache
        self.tokens = torch.from_numpy(np.flatnonzero(slots >= 0)).to(self.device)  # the tokens that are stored
        self.places = self.place(slots[slots >= 0])
        self.new: tuple[torch.Tensor, torch.Tensor] | None = None  # K, V [T, Hk, D] of the current layer

    def place(self, slots: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Slots → blocks and offsets in them, as an index into K or V. Works for views with any strides."""
        blocks, offsets = np.divmod(slots, self.page_size)
        return torch.from_numpy(blocks).to(self.device), torch.from_numpy(offsets).to(self.device)

    def set_kv_buffer(
        self, layer_id: int, slots: torch.Tensor | slice, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store K and V [T, Hk, D] of the new tokens. `slots` is ignored: they are known since the pass began."""
        for cache, new in zip(self.kv_cache[layer_id], (keys, values), strict=True):
            cache[self.places] = new[self.tokens]
        self.new = (keys, values)

    @property
    def is_contiguous(self) -> bool:
        """True when `get_key_buffer` and `get_value_buffer` can show the blocks of every layer as slots."""
        return all(cache.is_contiguous() for layer in self.kv_cache for cache in layer)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        """Keys of one layer by slot, [N, Hk, D]: a view of the caller's blocks."""
        return self.kv_cache[layer_id][0].flatten(0, 1)

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        """Values of one layer by slot, [N, Hk, D]: a view of the caller's blocks."""
        return self.kv_cache[layer_id][1].flatten(0, 1)

    def read(self, layer_id: int, slots: torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of one layer in `slots`, `[*slots.shape, Hk, D]` each."""
        return self.get_key_buffer(layer_id)[slots], self.get_value_buffer(layer_id)[slots]


@dataclass
class Part:
    """One request of a pass in which requests may have several new tokens."""

    start: int  # its new tokens in the batch: start..end
    end: int
    prefix: tuple[torch.Tensor, torch.Tensor]  # blocks and offsets of the tokens before
    prefix_len: int


class PagedAttention:
    """Takes the K/V of a request's prefix from its blocks, and that of its new tokens as the pass has just computed it.

    A token sees the tokens of its request up to itself, by index. In a layer with a sliding window, it sees only those that
    are near enough, by position. Masks hide more tokens. The result for a token that sees nothing is zeros.
    """

    features = frozenset({SOFTCAP, SINKS, MASK, UNSTORED})

    def __init__(self, inputs: PagedInputs, kv: BlockKV):
        self.inputs, self.kv = inputs, kv
        self.positions = torch.from_numpy(inputs.position_ids).to(kv.device)
        self.masks: dict[Window, list[torch.Tensor | None]] = {}  # one per request; in a decode pass one for all

    def init_forward(self, metadata: InputMetadata) -> None:
        """Look up where the prefixes are, once for all layers."""
        inputs = self.inputs
        if inputs.one_token_each:
            before = np.arange(inputs.prefix_lens.max(), dtype=np.int64)
            is_prefix = before < inputs.prefix_lens[:, None]  # [B, W]
            # Shorter rows are filled up. The filling is masked, but must not be NaN (0 · NaN is NaN): use a slot with K/V.
            filled = inputs.rows[inputs.prefix_lens.argmax(), :1]
            slots = np.where(is_prefix, inputs.rows[:, : len(before)], filled)
            metadata.attention_plan = self.kv.place(slots)
            return
        edges = np.concatenate(([0], np.cumsum(inputs.new_lens))).tolist()
        metadata.attention_plan = [
            Part(start, end, self.kv.place(row[:length]), int(length))
            for (start, end), row, length in zip(pairwise(edges), inputs.rows, inputs.prefix_lens, strict=True)
        ]

    def forward_extend(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        """`q` [T, H, D] → [T, H, D], request by request."""
        parts: list[Part] = metadata.attention_plan
        window = layer.sliding_window
        if window not in self.masks:
            self.masks[window] = [self._mask(part, window, metadata.attention_mask) for part in parts]
        out = torch.empty_like(q)
        for part, mask in zip(parts, self.masks[window], strict=True):
            new = slice(part.start, part.end)
            keys, values = self._keys_and_values(layer, part.prefix, new)  # [S, Hk, D]
            attended = attend(
                q[new].transpose(0, 1)[None],  # [1, H, new, D]
                keys.transpose(0, 1)[None],
                values.transpose(0, 1)[None],
                mask,
                layer,
            )
            out[new] = attended[0].transpose(0, 1)
        return out

    def forward_decode(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        """`q` [B, H, D] → [B, H, D]: K/V is a rectangle as wide as the longest prefix, then each request's new token.

        The H / Hk query heads that share a key head are passed as query positions, so K and V are never repeated.
        """
        prefix = metadata.attention_plan
        window = layer.sliding_window
        if window not in self.masks:
            self.masks[window] = [self._decode_mask(prefix[0].shape[1], window, metadata.attention_mask)]
        keys, values = self._keys_and_values(layer, prefix, (slice(None), None))  # [B, W + 1, Hk, D]
        batch, heads, dim = q.shape
        grouped = q.view(batch, layer.num_kv_heads, heads // layer.num_kv_heads, dim)  # [B, Hk, H / Hk, D]
        (mask,) = self.masks[window]
        attended = attend(grouped, keys.transpose(1, 2), values.transpose(1, 2), mask, layer)
        return attended.reshape(batch, heads, dim)

    def _keys_and_values(
        self, layer: AttentionLayer, prefix: tuple[torch.Tensor, torch.Tensor], new: slice | tuple[slice, None]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.kv.new is not None
        cached = self.kv.kv_cache[layer.layer_id]
        dim = prefix[0].ndim - 1
        pairs = zip(cached, self.kv.new, strict=True)
        keys, values = (torch.cat((blocks[prefix], computed[new]), dim) for blocks, computed in pairs)
        return keys, values

    def _mask(self, part: Part, window: Window, given: torch.Tensor | None) -> torch.Tensor | None:
        """[new, S], boolean, or additive if a mask is `given`. None means causal, which torch computes faster."""
        total = part.prefix_len + part.end - part.start
        if given is None and part.prefix_len == 0 and (window is None or total <= window):
            return None
        key = torch.arange(total, device=self.kv.device)
        seen = key <= key[part.prefix_len :, None]
        if window is not None:
            new = self.positions[part.start : part.end]
            seen &= new[:, None] - torch.cat((key[: part.prefix_len], new)) < window
        if given is None:
            return seen
        return given[part.start : part.end, :total].masked_fill(~seen, -torch.inf)

    def _decode_mask(self, width: int, window: Window, given: torch.Tensor | None) -> torch.Tensor:
        """[B, 1, 1, width + 1]: prefix columns by index, then the request's new token."""
        prefix_lens = torch.from_numpy(self.inputs.prefix_lens).to(self.kv.device)[:, None]
        key = torch.arange(width, device=self.kv.device)
        seen = key < prefix_lens
        if window is not None:
            seen &= self.positions[:, None] - key < window
        seen = torch.cat((seen, torch.ones_like(prefix_lens, dtype=torch.bool)), dim=1)
        if given is not None:
            bias = torch.cat((given[:, :width], given.gather(1, prefix_lens)), dim=1)
            return bias.masked_fill(~seen, -torch.inf)[:, None, None]
        return seen[:, None, None]
