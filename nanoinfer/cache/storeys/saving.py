"""Saving: writes what the pool's tree and host memory hold to files, as if all of it had to leave at once."""

import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

import numpy as np

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.storeys.files import FileStore
from nanoinfer.cache.storeys.files.keys import as_tokens, first_key, next_keys
from nanoinfer.cache.storeys.host import HostStorey
from nanoinfer.cache.tree_observer import path_to

RUN_BYTES = 8 << 20  # of K/V that is offered at once: about a file
TRIES = 8

Visit = Callable[[], AbstractContextManager[object]]
TokenPath = tuple[Hashable, list[np.ndarray]]  # an `extra_key`, and tokens from a sequence's start on, part by part


@dataclass
class TokenSequence:
    """A path through the tree or host memory, from the start to its end in whole blocks: `tokens` int64 `[n]`, the keys of
    its blocks (see files/keys.py), and the `first` one that does not belong to a sequence that was used later."""

    extra_key: Hashable
    namespace: bytes
    tokens: np.ndarray
    keys: list[bytes]
    first: int


class Saving:
    """Writes K/V of the pool of `cache` and of its `host` memory to the files of `store`.

    `namespace_of`: what files call an `extra_key`; None for one whose K/V may not go there.
    """

    def __init__(
        self,
        cache: CacheManager,
        host: HostStorey,
        store: FileStore,
        namespace_of: Callable[[Hashable], bytes | None],
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._cache, self._host, self._store, self._namespace_of, self._clock = cache, host, store, namespace_of, clock

    def save(self, visit: Visit, timeout: float | None = None) -> int:
        """Have written what files do not have; wait for it, at most `timeout` seconds.

        `visit`: entered to look at the tree and host memory. What was used last is chosen first, until the folder's bound
        is reached, and written first. Files keep this order: what was used last would be the last to go. Returns how many
        of the chosen tokens are not in files by then.
        """
        ends = None if timeout is None else self._clock() + timeout
        with suppress(TimeoutError, CancelledError):  # what other processes have removed is written again
            self._store.refresh().result(self._left(ends))
        missing = self._save_once(visit, ends)
        if missing and self._store.max_bytes is not None and self._left(ends) != 0:
            return self._save_once(visit, ends)  # others wrote meanwhile, so that less had room than was chosen
        return missing

    def _save_once(self, visit: Visit, ends: float | None) -> int:
        with visit():
            paths = [*self._of_tree(), *self._of_host()]
        chosen = self._chosen(paths)
        oldest_first = [(each.keys, each.first) for each in reversed(chosen)]
        self._store.note_use(oldest_first)  # or else what is written now would push out what is there already
        for each in chosen:
            if not self._write(each, visit, ends):
                break
        self._store.note_use(oldest_first)
        self._store.flush(self._left(ends))
        keys = [key for each in chosen for key in each.keys[each.first :]]
        return self._host.block_size * self._store.has(keys).count(False)

    def _of_tree(self) -> Iterator[TokenPath]:
        """Those that end in a leaf of the pool's tree, what was used last first."""
        leaves = [node for _, node in self._cache.radix_cache.nodes() if not node.children]
        for leaf in sorted(leaves, key=lambda node: node.last_access_time, reverse=True):
            yield leaf.edge[0], [node.key for node in path_to(leaf)[::-1]]

    def _of_host(self) -> Iterator[TokenPath]:
        """Those that end in a block of host memory behind which there is none, what was used last first."""
        for block in reversed(list(self._host.index)):
            if all(child.start is None for child in block.children.values()):
                tokens, extra_key = self._host.index.tokens_of(block)
                yield extra_key, [tokens]

    def _chosen(self, paths: Iterable[TokenPath]) -> list[TokenSequence]:
        """The first ones that have room in the folder together; of the last of them, as many blocks as have."""
        chosen, seen, counted = list[TokenSequence](), set[bytes](), set[str]()
        room, before = self._store.max_bytes, None
        for extra_key, parts in paths:
            if (namespace := self._namespace_of(extra_key)) is None:
                continue
            each = before = self._sequence(extra_key, namespace, np.concatenate(parts), before)
            while each.first < len(each.keys) and each.keys[each.first] in seen:
                each.first += 1
            end = len(each.keys)
            if room is not None:
                fits = bisect_right(
                    range(each.first + 1, end + 1), room, key=lambda end: self._bytes(each, end, counted)[0]
                )
                end = each.first + fits
            if end > each.first:
                if room is not None:
                    size, names = self._bytes(each, end, counted)
                    room, counted = room - size, counted | names
                kept = replace(each, tokens=each.tokens[: end * self._host.block_size], keys=each.keys[:end])
                chosen.append(kept)
                seen.update(kept.keys[kept.first :])
            if end < len(each.keys):
                break
        return chosen

    def _sequence(
        self, extra_key: Hashable, namespace: bytes, tokens: np.ndarray, before: TokenSequence | None
    ) -> TokenSequence:
        """With its keys, of which those that it shares with the one `before` are known."""
        size = self._host.block_size
        tokens, keys = tokens[: len(tokens) - len(tokens) % size], list[bytes]()
        if before is not None and before.namespace == namespace:
            shorter = min(len(tokens), len(before.tokens))
            differ = np.flatnonzero(tokens[:shorter] != before.tokens[:shorter])
            keys = before.keys[: (int(differ[0]) if differ.size else shorter) // size]
        rest = as_tokens(tokens[len(keys) * size :])
        keys = [*keys, *next_keys(keys[-1] if keys else first_key(namespace), rest, size)]
        return TokenSequence(extra_key, namespace, tokens, keys, 0)

    def _bytes(self, each: TokenSequence, end: int, counted: Set[str]) -> tuple[int, set[str]]:
        """How much files take up that have its blocks before `end`, beside those that are counted; and their names."""
        return self._store.size_of(each.namespace, each.keys[:end], each.first, counted)

    def _write(self, each: TokenSequence, visit: Visit, ends: float | None) -> bool:
        """Have the writer write the blocks that files lack and that are still held. False if that would take too long."""
        size, most = self._host.block_size, max(1, RUN_BYTES // (self._store.token_bytes * self._host.block_size))
        kept, at = self._store.keeps(each.keys), each.first
        while at < len(kept):
            if self._left(ends) == 0:
                return False
            end = at
            while end < min(len(kept), at + most) and not kept[end]:
                end += 1
            if end == at:
                at = kept.index(False, at) if False in kept[at:] else len(kept)
                continue
            with visit():
                start, kv = self._kv(each, at * size, end * size)
            if len(kv) and not self._offer(each, start, kv, ends):
                return False
            at = (start + len(kv)) // size
        return True

    def _offer(self, each: TokenSequence, start: int, kv: np.ndarray, ends: float | None) -> bool:
        """Offer K/V of positions from `start` on. If too much is waiting to be written, that is written first."""
        size, end = self._host.block_size, start + len(kv)
        for _ in range(TRIES):  # others offer, too
            if self._store.has_room(kv.nbytes) and self._store.offer(
                each.namespace, each.tokens[:end], start, kv, each.keys[start // size : end // size]
            ):
                return True
            if self._store.flush(self._left(ends)) or not self._store.is_open:
                return False
        return False

    def _kv(self, each: TokenSequence, start: int, end: int) -> tuple[int, np.ndarray]:
        """The first K/V that is held of positions `start..end`, uint8 `[k, token_bytes]`, and where it begins; if none is,
        where to go on."""
        size, memory, index = self._host.block_size, self._host.memory, self._host.index
        length, node = self._cache.radix_cache.peek_prefix(each.tokens, each.extra_key)
        in_pool = min(end, length - length % size)
        if start < in_pool:
            slots = np.concatenate([node.value for node in path_to(node)[::-1]])
            kv = memory.read_pool(slots[start:in_pool])
            behind = index.look_up(each.tokens, each.extra_key, in_pool)[: end - in_pool]
            return start, np.concatenate((kv, memory.read(behind))) if behind.size else kv
        held = index.next_held(each.tokens, each.extra_key, start)
        if held is None or held >= end:
            return len(each.tokens) if held is None else held, memory.read(np.empty(0, np.int64))
        return held, memory.read(index.look_up(each.tokens, each.extra_key, held)[: end - held])

    def _left(self, ends: float | None) -> float | None:
        """Seconds until `ends`; None: any number."""
        return None if ends is None else max(ends - self._clock(), 0.0)
