"""What tiers below a pool are checked with: the bits of K/V before it left and after it came back, and a naive tier."""

from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import torch

from nanoinfer import Engine
from nanoinfer.cache.tiers.block_files import Run
from nanoinfer.cache.tiers.disk import DiskTier
from nanoinfer.cache.tiers.host import HostTier
from nanoinfer.cache.tiers.tier_blocks import TierBlocks
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.cache.tree_observer import TreeObserver, path_to
from tests.helpers.waiting import HANG_S

Prefix = tuple[Hashable, tuple[int, ...]]  # namespace, and all tokens up to the last one


def tier_of(engine: Engine) -> HostTier:
    """An engine's host memory."""
    tier: HostTier | None = engine.cache.next_tier
    assert tier is not None
    return tier


def disk_of(engine: Engine) -> DiskTier:
    """The files below an engine's host memory."""
    disk: DiskTier = tier_of(engine).next_tier
    return disk


def written(engine: Engine) -> None:
    """Wait until all that was offered to files, or is to be told of, is done."""
    disk_of(engine)._writer.submit(lambda: None).result(HANG_S)


class SameBits(TreeObserver):
    """Remembers the bits of what is evicted, and compares what comes back with them. `compared`: so many tokens so far."""

    def __init__(self, engine: Engine):
        self._tier = tier_of(engine)
        self._buffers = engine.cache.token_to_kv_pool.kv_storage.slot_buffers()
        self._known: dict[Prefix, bytes] = {}
        self._load, self.compared = self._tier._load, 0
        self._tier._load = self._checked_load  # type: ignore[method-assign]
        engine.radix_cache.observers.add(self)

    def evicting(self, leaf: TreeNode) -> None:
        path, key = path_to(leaf)[::-1], leaf.edge[0]
        tokens, slots = (np.concatenate([getattr(node, name) for node in path]) for name in ("key", "value"))
        for i, bits in enumerate(self._bits(slots)):
            self._known.setdefault((key, tuple(tokens[: i + 1].tolist())), bits)

    def _checked_load(self, tokens: np.ndarray, extra_key: Hashable, start: int, pool_slots: np.ndarray) -> int:
        count = self._load(tokens, extra_key, start, pool_slots)
        for i, bits in enumerate(self._bits(pool_slots[:count]), start=start):
            assert bits == self._known[extra_key, tuple(tokens[: i + 1].tolist())], i
        self.compared += count
        return count

    def _bits(self, slots: np.ndarray) -> list[bytes]:
        parts = [buffer[slots].flatten(1).view(torch.uint8).cpu().numpy() for buffer in self._buffers]
        return [row.tobytes() for row in np.concatenate(parts, axis=1)]


class NaiveTier:
    """What BlockIndex holds, as a dict of prefixes, the least recently used first, that knows nothing of trees."""

    def __init__(self, size: int, block_size: int):
        self.room, self.block_size = size // block_size, block_size
        self.held: dict[Prefix, None] = {}
        self.left: set[Prefix] = set()  # which had to leave

    def prefixes(self, tokens: Sequence[int], extra_key: Hashable) -> list[Prefix]:
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        return [(extra_key, tuple(tokens[:end])) for end in ends]

    def use(self, tokens: Sequence[int], extra_key: Hashable) -> None:
        for prefix in reversed(self.prefixes(tokens, extra_key)):
            if prefix in self.held:
                self.held[prefix] = self.held.pop(prefix)

    def evict(self, tokens: Sequence[int], extra_key: Hashable, start: int) -> None:
        """The tree evicts `tokens[start:]`."""
        self.use(tokens, extra_key)
        prefixes = self.prefixes(tokens, extra_key)
        for prefix in prefixes[start // self.block_size :]:
            if prefix in self.held:
                continue
            if len(self.held) == self.room:
                oldest = next(iter(self.held))
                if oldest in prefixes:
                    break
                del self.held[oldest]
                self.left.add(oldest)
            self.held[prefix] = None
        self.use(tokens, extra_key)

    def reach(self, tokens: Sequence[int], extra_key: Hashable, start: int) -> int:
        end = start // self.block_size * self.block_size
        while end + self.block_size <= len(tokens) and (extra_key, tuple(tokens[: end + self.block_size])) in self.held:
            end += self.block_size
        return max(end, start)

    def forget(self, extra_key: Hashable) -> None:
        self.held = {prefix: None for prefix in self.held if prefix[0] != extra_key}


class AtOnce(Executor):
    """Stands for a thread: whatever is submitted is done at once."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future = Future[Any]()
        future.set_result(function(*args, **kwargs))
        return future


class DictOfFiles:
    """Stands for BlockFiles, each block a file: K/V by namespace and all tokens to its end. `new`: written lately."""

    max_bytes, misses, lost = None, 0, 0

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.kv: dict[tuple[bytes, tuple[int, ...]], np.ndarray] = {}
        self.new: list[tuple[bytes, tuple[int, ...]]] = []
        self._blocks: dict[str, Run] = {}
        self._sink: TierBlocks | None = None

    @property
    def file_of(self) -> dict[str, str]:
        return {name: name for name in self._blocks}

    def look(self) -> None:
        """Nobody else writes to it."""

    def attach(self, sink: TierBlocks) -> None:
        self._sink = sink
        for block in self._blocks.values():
            self._found(block)

    def _found(self, block: Run) -> None:
        if self._sink is not None and (namespace := block.fields["router_namespace"]):
            self._sink.store(block.tokens, int(namespace), (None, None), [(block.names[-1], block.first)])

    def lose(self, key: tuple[bytes, tuple[int, ...]]) -> None:
        del self.kv[key]
        (name,) = [name for name, block in self._blocks.items() if self._key(block.fields, block.tokens) == key]
        del self._blocks[name]
        if self._sink is not None:
            self._sink.remove([name])

    def write(self, run: Run) -> None:
        assert len(run.kv) == (len(run.names) - run.first) * self.block_size
        for number in range(run.first, len(run.names)):
            at, end = (number - run.first) * self.block_size, (number + 1) * self.block_size
            kv, tokens = run.kv[at : at + self.block_size], run.tokens[:end]
            key = self._key(run.fields, tokens)
            assert (key in self.kv) == (run.names[number] in self._blocks)
            if key not in self.kv:
                self.kv[key] = kv
                self.new.append(key)
                block = Run(run.names[: number + 1], number, run.fields, tokens, kv)
                self._blocks[run.names[number]] = block
                self._found(block)

    def read(self, names: Sequence[str], number: int, fields: Mapping[str, str], tokens: np.ndarray) -> np.ndarray:
        block = self._blocks[names[number]]
        assert np.array_equal(block.tokens, tokens[: len(block.tokens)])
        return self.kv[self._key(fields, block.tokens)]

    def touch(self, names: Sequence[str]) -> None:
        """It has room for all."""

    def _key(self, fields: Mapping[str, str], tokens: np.ndarray) -> tuple[bytes, tuple[int, ...]]:
        return bytes.fromhex(fields["namespace"]), tuple(tokens.tolist())


def with_files(engine: Engine) -> DictOfFiles:
    """Put a DictOfFiles below an engine's host memory, from which whatever is there is read at once."""
    host = tier_of(engine)
    files: Any = DictOfFiles(host.block_size)
    disk = DiskTier(engine.cache, host, files, lambda key: repr(key).encode())
    disk._reader = disk._writer = AtOnce()  # type: ignore[assignment]
    engine.scheduler.prefetch_gate.disk = disk
    return files


def all_held(tier: HostTier) -> list[tuple[Prefix, Any]]:
    """Every block that it holds, the least recently used first: all tokens to its end, and its slots' bytes."""
    found = []
    for block in tier.index._held:
        tokens, key = tier.index.tokens_of(block)
        assert block.start is not None
        data = tier.memory.read(np.arange(block.start, block.start + tier.block_size))
        found.append(((key, tuple(tokens.tolist())), data))
    return found
