"""What storeys below a pool are checked with: the bits of K/V before it left and after it came back, and a naive storey."""

from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from nanoinfer import Engine
from nanoinfer.cache.storeys.disk import DiskStorey
from nanoinfer.cache.storeys.files import Fetch, FileStats
from nanoinfer.cache.storeys.files.keys import block_keys
from nanoinfer.cache.storeys.host import FetchCosts, HostStorey
from nanoinfer.cache.storeys.storey_blocks import FileBlocks
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.cache.tree_observer import TreeObserver, path_to
from nanoinfer.scheduling.adapter_turns import FetchTurns

Prefix = tuple[Hashable, tuple[int, ...]]  # namespace, and all tokens up to the last one


class AlwaysPays(FetchCosts):
    """Fetching is declined never, however long anything takes."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)


def storey_of(engine: Engine) -> HostStorey:
    """An engine's storey, which from now on fetches whatever it can."""
    storey: HostStorey | None = engine.cache.storey
    assert storey is not None
    storey.costs = AlwaysPays()
    return storey


def disk_of(engine: Engine) -> DiskStorey:
    """The files below an engine's host memory, from which it now reads whatever it can, however long that takes."""
    disk: DiskStorey = storey_of(engine).below
    disk.costs, disk.least_patience_s = AlwaysPays(), 120.0
    return disk


class SameBits(TreeObserver):
    """Remembers the bits of what is evicted, and compares what comes back with them. `compared`: so many tokens so far."""

    def __init__(self, engine: Engine):
        self._storey = storey_of(engine)
        self._buffers = engine.cache.token_to_kv_pool.kv_storage.slot_buffers()
        self._known: dict[Prefix, bytes] = {}
        self._load, self.compared = self._storey._load, 0
        self._storey._load = self._checked_load  # type: ignore[method-assign]
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


class NaiveStorey:
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


class DictOfFiles:
    """Stands for a FileStore: K/V of blocks by namespace and all tokens to their end. `new`: what was offered lately."""

    max_bytes, is_open = None, True

    def __init__(self, block_size: int, token_bytes: int):
        self.block_size, self.token_bytes = block_size, token_bytes
        self.kv: dict[tuple[bytes, tuple[int, ...]], np.ndarray] = {}
        self.new: list[tuple[bytes, tuple[int, ...]]] = []
        self.listener: FileBlocks | None = None

    def tell(self, listener: FileBlocks) -> None:
        for key in self.kv:
            self._found(listener, key)
        self.listener = listener

    def _found(self, listener: FileBlocks, key: tuple[bytes, tuple[int, ...]]) -> None:
        tokens = np.array(key[1], dtype=np.int32)
        listener.found(key[0], tokens, len(tokens) // self.block_size - 1, [repr(key).encode()])
        listener.tell()

    def lose(self, key: tuple[bytes, tuple[int, ...]]) -> None:
        del self.kv[key]
        if self.listener is not None:
            self.listener.lost([repr(key).encode()])

    def offer(self, namespace: bytes, tokens: np.ndarray, start: int, kv: np.ndarray, keys: Sequence[bytes]) -> bool:
        assert (len(tokens) - start, self.token_bytes) == kv.shape
        assert keys == block_keys(namespace, tokens.astype(np.int32), self.block_size)[start // self.block_size :]
        for end in range(start + self.block_size, len(tokens) + 1, self.block_size):
            key = (namespace, tuple(tokens[:end].tolist()))
            self.kv[key] = kv[end - self.block_size - start : end - start]
            self.new.append(key)
            if self.listener is not None:
                self._found(self.listener, key)
        return True

    def match(self, namespace: bytes, tokens: np.ndarray, start: int) -> int:
        while (namespace, tuple(tokens[: start + self.block_size].tolist())) in self.kv:
            if start + self.block_size > len(tokens):
                break
            start += self.block_size
        return start

    def fetch(self, namespace: bytes, tokens: np.ndarray, start: int, end: int) -> Fetch:
        found = Future[np.ndarray | None]()
        ends = range(start + self.block_size, end + 1, self.block_size)
        found.set_result(np.concatenate([self.kv[namespace, tuple(tokens[:stop].tolist())] for stop in ends]))
        return Fetch(found)

    def has(self, keys: Sequence[bytes]) -> list[bool]:
        known = {block_keys(name, np.array(tokens, np.int32), self.block_size)[-1] for name, tokens in self.kv}
        return [key in known for key in keys]

    keeps = has

    def has_room(self, num_bytes: int) -> bool:
        return True

    def note_use(self, parts: Sequence[tuple[Sequence[bytes], int]]) -> None:
        """It has room for all."""

    def refresh(self) -> Future[None]:
        looked = Future[None]()
        looked.set_result(None)
        return looked

    def flush(self, timeout: float | None = None) -> int:
        return 0

    def stats(self) -> FileStats:
        return FileStats(blocks=len(self.kv), bytes=sum(kv.nbytes for kv in self.kv.values()))


def with_files(engine: Engine) -> DictOfFiles:
    """Put a DictOfFiles below an engine's host memory, from which whatever is there is read at once."""
    host = storey_of(engine)
    store: Any = DictOfFiles(host.block_size, host.memory.token_bytes)
    disk = DiskStorey(engine.cache, host, store, lambda key: repr(key).encode(), AlwaysPays())
    engine.scheduler.adapter_turns = FetchTurns(engine.adapters.pool, disk)
    return store


class SlowStore:
    """Stands for the store of an engine's files: what is read comes when the test says so."""

    def __init__(self, engine: Engine):
        self.disk = disk_of(engine)
        self._store: Any = self.disk._store
        self.disk._store = self  # type: ignore[assignment]
        self.on_its_way: list[tuple[Future[Any], tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def fetch(self, *args: Any) -> Fetch:
        self.on_its_way.append((Future(), args))
        return Fetch(self.on_its_way[-1][0])

    def read_all(self) -> None:
        for future, args in self.on_its_way:
            if future.set_running_or_notify_cancel():
                future.set_result(self._store.read(*args))
        self.on_its_way.clear()


def all_held(storey: HostStorey) -> list[tuple[Prefix, Any]]:
    """Every block that it holds, the least recently used first: all tokens to its end, and its slots' bytes."""
    found = []
    for block in storey.index._held:
        tokens, key = storey.index.tokens_of(block)
        assert block.start is not None
        data = storey.memory.read(np.arange(block.start, block.start + storey.block_size))
        found.append(((key, tuple(tokens.tolist())), data))
    return found
