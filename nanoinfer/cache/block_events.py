"""What a radix tree, and the tiers below it, hold, in blocks: the events, their numbers, and the blocks' hashes.

A block is `block_size` tokens that follow each other, and what comes before them. Its hash covers its tokens and the hash
of the block before it; the first block's covers the namespace instead (adapter and `extra_key`). So equal hashes mean equal
beginnings, on every machine. The fields are those of SGLang's and vLLM's events. Nothing here needs torch.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from nanoinfer.requests.request import check_extra_key

HASH_BYTES = 8  # of a hash, which is an integer in 0..2**64 - 1
BASE = "base"  # what callers may say in place of None, as an adapter's name
GPU, CPU, DISK = "GPU", "CPU", "DISK"  # media: the device's pool, whatever the device is; host memory; files


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that a medium holds from now on, each the parent of the next one. Other media may hold them, too.

    `parent_block_hash`: of the block before the first one; None if that begins a sequence. `token_ids`: of all the blocks,
    in order. `lora_id`, `lora_name`: the adapter whose K/V it is, if any; its id means nothing to other processes. The tree
    (`GPU`) holds the parent of each of its blocks; below it, the parent may be somewhere else, or gone.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    lora_name: str | None
    medium: str = GPU


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks that a medium no longer holds. Other media keep theirs."""

    block_hashes: list[int]
    medium: str = GPU


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The tree holds no blocks any more. Other media keep theirs."""


BlockEvent = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one engine step, or one visit between two steps, has changed.

    `seq`: its number among the batches of its `source`, from 0 without gaps. `ts`: when, in seconds since 1970. `source`:
    the feed that numbered it; a replica that has started again has another one.
    """

    seq: int
    ts: float
    events: list[BlockEvent]
    source: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All blocks that a tree holds, parents before children, and then those of other media. The batches from number `seq`
    on continue it."""

    seq: int
    blocks: list[BlockStored]
    source: str = ""


def block_hashes(
    token_ids: Sequence[int] | np.ndarray, block_size: int, extra_key: Hashable = None, adapter: str | None = None
) -> list[int]:
    """The hashes of all complete blocks of a sequence, in order; `len(token_ids) // block_size` integers of 64 bits.

    `extra_key` and `adapter` (a name; None or "base": the base model) as in a request. ValueError for anything else, for
    token ids that are no integers, and for a `block_size` below 1.
    """
    check_block_size(block_size)
    return chained_hashes(as_tokens(token_ids), block_size, namespace_hash(extra_key, adapter))


def chained_hashes(tokens: np.ndarray, block_size: int, parent: int) -> list[int]:
    """The hashes of the complete blocks of `tokens` (int64 `[k]`), which come after the block or namespace `parent`."""
    data, size = tokens.astype("<i8", copy=False).tobytes(), 8 * block_size
    digest, hashes = parent.to_bytes(HASH_BYTES, "little"), []
    for start in range(0, len(data) - size + 1, size):
        digest = blake2b(digest + data[start : start + size], digest_size=HASH_BYTES).digest()
        hashes.append(int.from_bytes(digest, "little"))
    return hashes


def namespace_hash(extra_key: Hashable, adapter: str | None) -> int:
    """What the first block of a sequence has for a parent. ValueError for keys that machines could write differently."""
    if adapter is not None and not isinstance(adapter, str):
        raise ValueError(f"adapter={adapter!r}: must be None or an adapter's name")
    check_extra_key(extra_key)
    text = key_bytes(extra_key) + key_bytes(None if adapter == BASE else adapter)
    return int.from_bytes(blake2b(text, digest_size=HASH_BYTES).digest(), "little")


def check_block_size(block_size: object, name: str = "block_size") -> None:
    """ValueError unless it is an integer of at least 1."""
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise ValueError(f"{name}={block_size!r}: must be an integer of at least 1")


def as_tokens(token_ids: Any) -> np.ndarray:
    """Token ids as int64 `[k]`. ValueError for anything else than a line of integers."""
    tokens = np.asarray(token_ids)
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise ValueError(f"token_ids: must be a sequence of integers, got {tokens.dtype} {list(tokens.shape)}")
    return tokens.astype(np.int64, copy=False)


def key_bytes(key: Hashable) -> bytes:
    """A key in bytes: keys that are equal give the same ones, all others give other ones."""
    if key is None:
        return b"n"
    if isinstance(key, int):
        return b"i%d;" % key
    if isinstance(key, str):
        text = key.encode("utf-8", "surrogatepass")
        return b"s%d:" % len(text) + text
    if isinstance(key, bytes):
        return b"b%d:" % len(key) + key
    assert isinstance(key, tuple)
    return b"t%d:" % len(key) + b"".join(map(key_bytes, key))
