"""DiskStorey: below host memory, files. K/V that leaves host memory is written, and read for requests that need it again.

    host memory ──no room, or save──► writer's thread ──► files ──► reader's thread ──► host memory ──fetch──► pool

Nothing here waits for a disk, except whoever has nothing else to do, and then for a moment at a time.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

import numpy as np

from nanoinfer.cache.block_events import DISK
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.storeys.block_index import Block
from nanoinfer.cache.storeys.files import Fetch, FileStats, FileStore, plain_namespace
from nanoinfer.cache.storeys.files.keys import first_key, next_keys
from nanoinfer.cache.storeys.host import FetchCosts, HostStorey
from nanoinfer.cache.storeys.saving import RUN_BYTES, Saving, Visit
from nanoinfer.cache.storeys.storey_blocks import FileBlocks
from nanoinfer.requests.adapter_key import problem_of
from nanoinfer.requests.req import Req

LEAST_PATIENCE_S = 1.0
MOMENT_S = 0.05  # so long an engine that has nothing else to do waits in one step, in which others wait for their turn


class Coming:
    """K/V of one request on its way: `tokens` positions from `start` on, of which the first are above, up to `above`."""

    def __init__(self, fetch: Fetch, start: int, above: int, tokens: int, began: float):
        self.fetch, self.start, self.above, self.tokens, self.began = fetch, start, above, tokens, began


class DiskStorey:
    """The files of `store`, below the `host` memory of `cache`.

    `namespace_of`: what files call an `extra_key`; None for one whose K/V may not go there. `costs`: of reading.
    """

    tier = "disk"  # its name in outputs

    def __init__(
        self,
        cache: CacheManager,
        host: HostStorey,
        store: FileStore,
        namespace_of: Callable[[Hashable], bytes | None],
        costs: FetchCosts,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._cache, self._host, self._store, self._namespace_of = cache, host, store, namespace_of
        self.costs, self._clock = costs, clock
        self.fetched_tokens, self.least_patience_s = 0, LEAST_PATIENCE_S
        self._coming: dict[Req, Coming] = {}
        self._saving = Saving(cache, host, store, namespace_of, clock)
        self.landed: WeakKeyDictionary[Req, int] = WeakKeyDictionary()  # from where on K/V has come for a request
        self._asked: WeakKeyDictionary[Req, int] = WeakKeyDictionary()  # for which of their admissions
        # Likewise, and since when: too much was on its way for others.
        self._put_off: WeakKeyDictionary[Req, tuple[int, float]] = WeakKeyDictionary()
        host.below = self

    @property
    def fetching(self) -> bool:
        """True while K/V is on its way."""
        return bool(self._coming)

    def stats(self) -> FileStats:
        """What the files hold, and what has been read and written."""
        return self._store.stats()

    def first_key(self, extra_key: Hashable) -> bytes | None:
        """The key before that of a sequence's first block (see files/keys.py); None if its K/V may not go into files."""
        namespace = self._namespace_of(extra_key)
        return None if namespace is None else first_key(namespace)

    def has(self, keys: Sequence[bytes]) -> list[bool]:
        """Which of the blocks with these keys are in files."""
        return self._store.has(keys)

    def reach(self, tokens: np.ndarray, extra_key: Hashable, start: int) -> int:
        """Up to which position files hold `tokens` from position `start` on, which is a multiple of the block size."""
        namespace = self._namespace_of(extra_key)
        return start if namespace is None else self._store.match(namespace, tokens, start)

    def tokens_coming(self, req: Req) -> int:
        """How many tokens' K/V is on its way for `req`, which waits for it; 0 if none is."""
        coming = self._coming.get(req)
        return 0 if coming is None else coming.start + coming.tokens - coming.above

    # --- down --------------------------------------------------------------------------------------------------------

    def offer(self, block: Block) -> None:
        """`block` is about to leave host memory: have it written, with those before it that are there, in one file."""
        index, memory, run = self._host.index, self._host.memory, self._not_kept(block)
        if not run:
            return
        if not self._store.has_room(len(run) * index.block_size * memory.token_bytes):
            self._store.count_lost()
            return
        tokens, extra_key = index.tokens_of(block)
        namespace = self._namespace_of(extra_key)
        assert namespace is not None, "or it would have no key"
        kv = memory.read(index.slots_of([each.start for each in run if each.start is not None]))
        keys = [each.file_key for each in run if each.file_key is not None]
        self._store.offer(namespace, tokens, len(tokens) - len(kv), kv, keys)

    def save(self, visit: Visit, timeout: float | None = None) -> int:
        """See Saving."""
        return self._saving.save(visit, timeout)

    # --- up ----------------------------------------------------------------------------------------------------------

    def land(self) -> None:
        """Put what has come into host memory. What comes later than this does so at the next call."""
        self._give_up_late()
        for req in [req for req, coming in self._coming.items() if coming.fetch.is_done]:
            coming = self._coming.pop(req)
            if (kv := coming.fetch.result(0)) is None:
                continue
            end = coming.start + len(kv)
            self.costs.note(len(kv), self._clock() - coming.began)
            if end > coming.above:
                self._host.put(req.token_ids[:end], req.extra_key, coming.start, kv)
                self.fetched_tokens += end - coming.above
                self.landed[req] = coming.above

    def is_ready(self, req: Req) -> bool:
        """False while K/V for `req` is on its way from files; it is, if there is some and reading it pays. False, too,
        while so much is on its way for others that host memory has no room for more."""
        if req in self._coming:
            return False
        if self._asked.get(req) == req.num_admissions:
            return True
        is_full = sum(each.tokens for each in self._coming.values()) >= self._host.index.size
        admission, since = self._put_off.get(req, (None, self._clock()))
        if is_full and admission == req.num_admissions:  # it was put off: until its patience ends
            wanted = None
            if self._clock() - since < self._patience(req):
                return False
        else:
            wanted = self._wanted(req)
        if wanted is not None and is_full:
            self._put_off[req] = req.num_admissions, self._clock()
            return False
        self._asked[req] = req.num_admissions
        if wanted is None:
            return True
        self._start(req, *wanted)
        return False

    def wait(self) -> bool:
        """Wait a moment for what is on its way. True if something has come, or is not waited for any more."""
        self._give_up_late()
        for coming in list(self._coming.values())[:1]:
            with suppress(TimeoutError):
                coming.fetch.result(MOMENT_S)
        before = len(self._coming)
        self.land()  # or else it would come again and again when nobody is considered
        return len(self._coming) < before

    def tell(self, event_block_size: int, changed: Callable[[], object]) -> FileBlocks:
        """Who tells, from now on, which blocks are in files. What is there already is read first, in the reader's thread.

        Files with K/V of adapters are not told of: they name an adapter by its content, and routers by its name.
        """
        told = FileBlocks(DISK, self._host.block_size, event_block_size, changed, _extra_keys)
        self._store.tell(told)
        return told

    def give_up(self) -> None:
        """Use nothing of what is on its way. The requests that wait for it compute it again."""
        for coming in self._coming.values():
            coming.fetch.give_up()
        self._coming.clear()

    def close(self, timeout: float | None = 10.0) -> None:
        """Read and write nothing more. What was offered is written first, if that takes at most `timeout` seconds."""
        self.give_up()
        self._store.close(timeout)

    # --- how it works ------------------------------------------------------------------------------------------------

    def _patience(self, req: Req) -> float:
        """For how many seconds a request waits: a moment, or twice as long as it would take to compute its tokens again."""
        return max(self.least_patience_s, 2 * self.costs.computing * req.num_tokens)

    def _wanted(self, req: Req) -> tuple[bytes, int, int, int] | None:
        """What files have for `req` that is not above: namespace, from which position, up to which one it is above, and up
        to which one they have it. None if there is none, or if reading it does not pay."""
        namespace, tokens = self._namespace_of(req.extra_key), req.reusable_tokens
        if namespace is None:
            return None
        in_pool, _ = self._cache.radix_cache.peek_prefix(tokens, req.extra_key)
        above = self._host.index.reach(tokens, req.extra_key, in_pool)
        start = above - above % self._host.block_size
        end = self.reach(tokens, req.extra_key, start)
        return (namespace, start, above, end) if end > above and self.costs.pays() else None

    def _start(self, req: Req, namespace: bytes, start: int, above: int, end: int) -> None:
        """Have positions `start..end` read, which are above up to `above`."""
        fetch = self._store.fetch(namespace, req.reusable_tokens, start, end)
        self._coming[req] = Coming(fetch, start, above, end - start, self._clock())

    def _give_up_late(self) -> None:
        """Nobody waits for what takes too long, or is for a request that has ended. What has come all the same is used."""
        for req, coming in list(self._coming.items()):
            is_late = self._clock() - coming.began >= self._patience(req)
            if (is_late or req.finished) and not coming.fetch.is_done:
                self._coming.pop(req).fetch.give_up()

    def _not_kept(self, block: Block) -> list[Block]:
        """A block of host memory behind those directly before it that are there, as far as files lack them: a file's K/V at
        most. Empty if files have the block, or may not have it."""
        most = max(1, RUN_BYTES // (self._host.memory.token_bytes * self._host.block_size))
        run, each = list[Block](), block
        while len(run) < most and each.start is not None and (key := self._key(each)) is not None:
            if self._store.keeps([key])[0]:
                break
            run.append(each)
            assert each.parent is not None, "a root is not held"
            each = each.parent
        return run[::-1]

    def _key(self, block: Block) -> bytes | None:
        """What files call a block, and from now on those before it know it, too. None for what may not go into files."""
        below = []
        while block.file_key is None and block.parent is not None:
            below.append(block)
            block = block.parent
        key = self.first_key(block.key) if block.parent is None else block.file_key
        for each in reversed(below) if key is not None else ():
            assert key is not None
            assert isinstance(each.key, bytes)
            tokens = np.frombuffer(each.key, dtype=np.int64).astype(np.int32)
            (key,) = next_keys(key, tokens, self._host.block_size)
            each.file_key = key
        return key


def _extra_keys(namespace: bytes) -> list[Hashable]:
    """The `extra_key` of the base model's requests in a namespace; none if it is an adapter's."""
    found = plain_namespace(namespace)
    if not isinstance(found, tuple) or len(found) != 2 or found[0] is not None or problem_of(found[1]) is not None:
        return []
    return [found[1]]
