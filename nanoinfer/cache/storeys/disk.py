"""DiskStorey: below host memory, files. K/V that leaves host memory is written, and read for requests that need it again.

    host memory ──no room, or save──► writer's thread ──► files ──► reader's thread ──► host memory ──fetch──► pool

Nothing here waits for a disk, except whoever has nothing else to do, and then for a moment at a time.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np

from nanoinfer.cache.block_events import DISK
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.storeys.block_index import Block
from nanoinfer.cache.storeys.fetch_costs import FetchCosts
from nanoinfer.cache.storeys.files import Fetch, FileStats, FileStore, plain_namespace
from nanoinfer.cache.storeys.files.chain import first_key
from nanoinfer.cache.storeys.host import HostStorey
from nanoinfer.cache.storeys.storey_blocks import FileBlocks
from nanoinfer.cache.tree_node import TreeNode
from nanoinfer.cache.tree_observer import path_to
from nanoinfer.requests.adapter_key import problem_of
from nanoinfer.requests.req import Req

RUN_BYTES = 8 << 20  # of K/V that is offered at once: about a file
LEAST_PATIENCE_S = 1.0
MOMENT_S = 0.05  # so long an engine that has nothing else to do waits in one step, in which others wait for their turn

Run = tuple[bytes, np.ndarray, int, np.ndarray]  # namespace, all tokens to the end, where K/V begins, K/V
Made = tuple[Run, Block | None]  # a run, and the last block of host memory that it is from


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
        self._failed_bytes = 0  # that the disk had not taken when `save` looked last
        self.landed: WeakKeyDictionary[Req, int] = WeakKeyDictionary()  # from where on K/V has come for a request
        self._asked: WeakKeyDictionary[Req, int] = WeakKeyDictionary()  # for which of their admissions
        self._put_off: WeakKeyDictionary[Req, int] = WeakKeyDictionary()  # likewise: too much was on its way for others
        host.below = self

    @property
    def fetching(self) -> bool:
        """True while K/V is on its way."""
        return bool(self._coming)

    def stats(self) -> FileStats:
        """What the files hold, and what has been read and written."""
        return self._store.stats()

    def first_key(self, extra_key: Hashable) -> bytes | None:
        """The key before that of a sequence's first block (see files/chain.py); None if its K/V may not go into files."""
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
        if not block.saved and (run := self._run_to(block)) is not None and self._store.offer(*run):
            self._mark(block, len(run[3]))

    def save(self, visit: Callable[[], AbstractContextManager[object]], timeout: float | None = None) -> int:
        """Write what the pool's tree and host memory hold and files do not; wait for it, at most `timeout` seconds.

        `visit`: entered to look at the tree and host memory. What was used least recently is written first, so that within
        the folder's bound the rest stays. Returns how many tokens are not written by then.
        """
        ends = None if timeout is None else self._clock() + timeout
        refused, failed = list[tuple[Block | None, int]](), self._store.stats().failed_bytes
        with visit():
            if failed != self._failed_bytes:  # nobody knows of which blocks: offer all of them again
                self._failed_bytes = failed
                for block in self._host.index:
                    block.saved = False
            makers = [*self._of_tree(), *self._of_host()]
        try:
            for make in makers:
                with visit():
                    runs = make()
                for run, last in runs:
                    refused.append((last, len(run[3])))
                    is_full = not self._store.offer(*run)  # then once more, when all that waits has been written
                    if not is_full or (not self._flush(ends) and self._store.offer(*run)):
                        refused.pop()
            waiting = self._flush(ends) + self._store.stats().failed_bytes - failed
        finally:
            for last, tokens in refused:
                if last is not None:
                    self._mark(last, tokens, saved=False)
        return sum(tokens for _, tokens in refused) + waiting // self._store.token_bytes

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
        if is_full and self._put_off.get(req) == req.num_admissions:
            return False
        wanted = self._wanted(req)
        if wanted is not None and is_full:
            self._put_off[req] = req.num_admissions
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

    def _flush(self, ends: float | None) -> int:
        """Have everything written until the time `ends`. Returns how many bytes are not."""
        return self._store.flush(None if ends is None else max(ends - self._clock(), 0.0))

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

    def _run_to(self, block: Block) -> Run | None:
        """A block of host memory, and those directly before it that are there and not saved."""
        index, memory, blocks = self._host.index, self._host.memory, [block]
        most = max(1, RUN_BYTES // (memory.token_bytes * index.block_size))
        while len(blocks) < most and (above := blocks[-1].parent) is not None:
            if above.start is None or above.saved:
                break
            blocks.append(above)
        tokens, extra_key = index.tokens_of(block)
        if (namespace := self._namespace_of(extra_key)) is None:
            return None
        kv = memory.read(index.slots_of([each.start for each in reversed(blocks) if each.start is not None]))
        return namespace, tokens, len(tokens) - len(kv), kv

    def _mark(self, block: Block | None, tokens: int, saved: bool = True) -> None:
        for _ in range(tokens // self._host.block_size):
            assert block is not None
            block.saved, block = saved, block.parent

    def _of_host(self) -> Iterator[Callable[[], list[Made]]]:
        """Makes the runs of each block of host memory that is not saved, the least recently used first."""

        def make(block: Block) -> list[Made]:
            if block.start is None or block.saved or (run := self._run_to(block)) is None:
                return []
            self._mark(block, len(run[3]))
            return [(run, block)]

        for block in self._host.index:
            yield lambda block=block: make(block)  # type: ignore[misc]

    def _of_tree(self) -> Iterator[Callable[[], list[Made]]]:
        """Makes the runs of each leaf of the pool's tree, the least recently used first."""

        def make(leaf: TreeNode) -> list[Made]:
            if leaf.parent is None:
                return []  # it has left the tree meanwhile
            path, extra_key = path_to(leaf)[::-1], leaf.edge[0]
            tokens, namespace = np.concatenate([node.key for node in path]), self._namespace_of(extra_key)
            slots = self._cache.radix_cache.match_prefix(tokens, extra_key, count_hit=False).indices.numpy()
            if namespace is None:
                return []
            size = self._host.block_size
            start, end = self._store.match(namespace, tokens, 0), len(slots) - len(slots) % size
            step = max(1, RUN_BYTES // (self._host.memory.token_bytes * size)) * size
            cuts = [*range(start, end, step), max(start, end)]
            return [
                ((namespace, tokens[:stop], begin, self._host.memory.read_pool(slots[begin:stop])), None)
                for begin, stop in pairwise(cuts)
            ]

        leaves = [node for _, node in self._cache.radix_cache.nodes() if not node.children]
        for leaf in sorted(leaves, key=lambda node: node.last_access_time):
            yield lambda leaf=leaf: make(leaf)  # type: ignore[misc]


def _extra_keys(namespace: bytes) -> list[Hashable]:
    """The `extra_key` of the base model's requests in a namespace; none if it is an adapter's."""
    found = plain_namespace(namespace)
    if not isinstance(found, tuple) or len(found) != 2 or found[0] is not None or problem_of(found[1]) is not None:
        return []
    return [found[1]]
