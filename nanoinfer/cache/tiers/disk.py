"""DiskTier: below host memory, files. K/V that leaves host memory is written, and read for requests that need it again.

    host memory ──no room, or save──► writer's thread ──► files ──► reader's thread ──► host memory ──fetch──► pool

A request whose K/V is in files waits until it has been read, and passes of others go on meanwhile. Nothing here waits for a
disk, except whoever has nothing else to do, and then for a moment at a time.
"""

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from nanoinfer.cache.block_events import DISK, namespace_hash
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.tiers.block_files import BlockFiles, Run
from nanoinfer.cache.tiers.block_index import Block, block_digests
from nanoinfer.cache.tiers.host import HostTier
from nanoinfer.cache.tiers.tier_blocks import TierBlocks
from nanoinfer.cache.tree_observer import path_to
from nanoinfer.requests.req import Req
from nanoinfer.requests.request import AdapterKey

FILE_BYTES = 8 << 20  # of K/V in a file, at most: all of it is read even if only a part is wanted
QUEUED_BYTES = 256 << 20  # of K/V that may wait for the writer; what comes then is not kept
HEADER_BYTES = 480  # at most, of a file
LOOK_AGAIN_S = 1.0  # what other processes write and remove is noticed after so long
STALLED_S = 2.0  # a disk that takes so long for one file: nobody waits for it any more
MOMENT_S = 0.05  # so long an engine that has nothing else to do waits in one step, in which others wait for their turn

logger = logging.getLogger("nanoinfer.cache")
Visit = Callable[[], AbstractContextManager[object]]


@dataclass(eq=False)
class InFlightRead:
    """K/V of positions `start..end` of a request on its way, of which the pool or host memory has those up to `above`."""

    kv: "Future[np.ndarray]"
    start: int
    above: int
    end: int


class Chosen(NamedTuple):
    """A sequence whose blocks from number `first` on are to be saved. `names`: of all its blocks."""

    names: Sequence[str]
    tokens: np.ndarray
    extra_key: Hashable
    first: int


class DiskTier:
    """The blocks in `files`, below the `host` memory of `cache`.

    `first_digest`: the digest before that of a sequence's first block, 32 bytes that keep its `extra_key` apart in files;
    None for one whose K/V may not go there.
    """

    tier = "disk"  # its name in outputs

    def __init__(
        self,
        cache: CacheManager,
        host: HostTier,
        files: BlockFiles,
        first_digest: Callable[[Hashable], bytes | None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._cache, self._host, self.files, self._clock = cache, host, files, clock
        self._size, self._block_bytes = host.block_size, host.block_size * host.memory.token_bytes
        self._per_file = max(1, FILE_BYTES // self._block_bytes)
        self.fetched_tokens = 0
        self._reader, self._writer = (ThreadPoolExecutor(1, f"nanoinfer {what} K/V") for what in ("reads", "writes"))
        self._offered: dict[str, Run] = {}  # what waits for the writer, by the names of its blocks
        self._reads: dict[Req, InFlightRead] = {}
        self._reading_since: float | None = None  # the file that the reader is at
        self.fetched_from: WeakKeyDictionary[Req, int] = WeakKeyDictionary()  # from where on K/V has come for a request
        self._asked: WeakKeyDictionary[Req, int] = WeakKeyDictionary()  # for which of their admissions
        self._is_closed, self._looked_at = False, clock()
        host.next_tier, host.index.first_digest, self.first_digest = self, first_digest, first_digest

    # --- what is there -----------------------------------------------------------------------------------------------

    def has(self, digests: Iterable[bytes]) -> list[bool]:
        """Which of the blocks with these digests are in files."""
        return [digest.hex() in self.files.file_of for digest in digests]

    def reach(self, tokens: np.ndarray, extra_key: Hashable, start: int) -> int:
        """Up to which position files hold `tokens` (int64 `[k]`) from `start` on, which is a multiple of the block size, or
        will in a moment. It looks into memory only, and nothing is there while the disk is stalled."""
        if self._is_stalled():
            return start
        if self._clock() - self._looked_at > LOOK_AGAIN_S:
            self.look()
        names, end = self._names(tokens, extra_key), start // self._size
        while end < len(names) and self._is_kept(names[end]):
            end += 1
        return max(start, end * self._size)

    def look(self) -> "Future[None]":
        """Look, in the writer's thread, for files that other processes have written or removed."""
        self._looked_at = self._clock()
        return self._submit(self._writer, self.files.look)

    def event_sink(self, event_block_size: int, changed: Callable[[], object]) -> TierBlocks:
        """A sink that reports, from now on, which blocks are in files. What is there already is read first, in the writer's
        thread.

        Files with K/V of adapters are left out: they name an adapter by its content, and routers by its name.
        """
        sink = TierBlocks(DISK, self._size, event_block_size, changed)
        self._submit(self._writer, self.files.attach, sink)
        return sink

    # --- up: the prefetch gate ---------------------------------------------------------------------------------------

    @property
    def fetching(self) -> bool:
        """True while K/V is on its way."""
        return bool(self._reads)

    def is_ready(self, req: Req) -> bool:
        """False while K/V for `req` is on its way from files; it is, if there is some. False, too, while so much is on its
        way for others that host memory has no room for more."""
        if req in self._reads:
            return False
        if self._asked.get(req) == req.num_admissions:
            return True
        tokens, key = req.reusable_tokens, req.extra_key
        in_pool, _ = self._cache.radix_cache.peek_prefix(tokens, key)
        above = self._host.index.reach(tokens, key, in_pool)
        start = above - above % self._size
        end = self.reach(tokens, key, start)
        if end > above and sum(read.end - read.start for read in self._reads.values()) >= self._host.index.size:
            return False
        self._asked[req] = req.num_admissions
        if end <= above:
            return True
        kv = self._submit(self._reader, self._read, tokens[:end].copy(), key, start)
        self._reads[req] = InFlightRead(kv, start, above, end)
        return False

    def complete_reads(self) -> None:
        """Put what has come into host memory. What comes later than this does so at the next call."""
        for req, read in list(self._reads.items()):
            if read.kv.done():
                del self._reads[req]
                self._complete(req, read)
            elif req.finished:
                self._reads.pop(req).kv.cancel()
        if self._is_stalled():
            self.give_up()

    def wait(self) -> bool:
        """Wait a moment for what is on its way. True if something has come, or is not waited for any more."""
        before = len(self._reads)
        wait([read.kv for read in list(self._reads.values())[:1]], MOMENT_S)
        self.complete_reads()  # or else it would come again and again when nobody is considered
        return len(self._reads) < before

    def give_up(self) -> None:
        """Use nothing of what is on its way. The requests that wait for it compute it again."""
        for read in self._reads.values():
            read.kv.cancel()
        self._reads.clear()

    def _complete(self, req: Req, read: InFlightRead) -> None:
        kv = np.empty(0) if read.kv.cancelled() or read.kv.exception() else read.kv.result()
        end = read.start + len(kv)
        if end > read.above:
            self._host.put(req.token_ids[:end], req.extra_key, read.start, kv)
            self.fetched_tokens += end - read.above
            self.fetched_from[req] = read.above

    def _read(self, tokens: np.ndarray, extra_key: Hashable, start: int) -> np.ndarray:
        """In the reader's thread: K/V of `tokens` from `start` on, up to the first block that cannot be used."""
        size, names, fields = self._size, self._names(tokens, extra_key), self._fields(extra_key)
        rows = [np.empty((0, self._host.memory.token_bytes), np.uint8)]
        number, kv = start // size, None
        while number < len(names):
            if (run := self._offered.get(names[number])) is not None:
                kv = run.kv[(number - run.first) * size :][:size]
            else:
                self._reading_since = self._clock()
                kv = self.files.read(names, number, fields, tokens)
                self._reading_since = None
            if kv is None:
                break
            rows.append(kv)
            number += len(kv) // size
        self.files.touch(reversed(names[:number]))
        return np.concatenate(rows)

    def _is_stalled(self) -> bool:
        since = self._reading_since
        return since is not None and self._clock() - since > STALLED_S

    # --- down --------------------------------------------------------------------------------------------------------

    def offer(self, block: Block) -> None:
        """`block` is about to leave host memory: have it written, and with it those directly before it, which will leave
        next, unless files have it, or too much waits for that."""
        if block.digest is None or self._is_kept(block.digest.hex()):
            return
        if len(self._offered) * self._block_bytes >= QUEUED_BYTES or self._is_closed:
            self.files.lost += 1
            return
        tokens, extra_key = self._host.index.tokens_of(block)
        names, starts, each = self._names(tokens, extra_key), list[int](), block
        for name in reversed(names[-self._per_file :]):
            if each.start is None or self._is_kept(name):
                break
            starts.append(each.start)
            assert each.parent is not None, "a root is not held"
            each = each.parent
        kv = self._host.memory.read(self._host.index.slots_of(starts[::-1]))
        run = Run(names, len(names) - len(starts), self._fields(extra_key), tokens, kv)
        self._offered.update(dict.fromkeys(names[run.first :], run))
        self._submit(self._writer, self._write_offered, run)

    def _write_offered(self, run: Run) -> None:
        try:
            self.files.write(run)
        finally:
            for name in run.names[run.first :]:
                del self._offered[name]

    def _is_kept(self, name: str) -> bool:
        return name in self._offered or name in self.files.file_of  # what is written meanwhile is in files by then

    def save(self, visit: Visit, timeout: float | None = None) -> int:
        """Write what the pool's tree and host memory hold and files do not have; wait for it, at most `timeout` seconds.

        `visit`: entered to look at the tree and host memory. What was used last is chosen first, until the folder's bound
        is reached, and written first. Files keep this order: what was used last would be the last to go. Returns how many
        of the chosen tokens are not in files by then.
        """
        ends = None if timeout is None else self._clock() + timeout
        with visit():
            chosen = self._chosen()
        used_last = [name for each in reversed(chosen) for name in reversed(each.names[each.first :])]
        with suppress(TimeoutError, CancelledError):
            self.look().result(self._left(ends))  # what other processes have removed is written again
            # First, or else what is written now would push out what is there already.
            self._submit(self._writer, self.files.touch, used_last).result(self._left(ends))
            for each in chosen:
                for at in range(each.first, len(each.names), self._per_file):
                    numbers = range(at, min(at + self._per_file, len(each.names)))
                    if missing := [i for i in numbers if each.names[i] not in self.files.file_of]:
                        with visit():
                            run = self._run(each, missing[0], missing[-1] + 1)
                        if len(run.kv):
                            self._submit(self._writer, self.files.write, run).result(self._left(ends))
            self._submit(self._writer, self.files.touch, used_last).result(self._left(ends))
        return self._size * sum(name not in self.files.file_of for name in used_last)

    def _chosen(self) -> list[Chosen]:
        """The blocks that have room in the folder together, those that were used last first."""
        room, seen, counted, chosen = self.files.max_bytes, set[str](), set[str](), list[Chosen]()
        for tokens, extra_key in [*self._of_tree(), *self._of_host()]:
            names = self._names(tokens, extra_key)
            first = end = sum(name in seen for name in names)
            file: str | None = ""
            for name in names[first:]:
                if room is not None:
                    before, file = file, self.files.file_of.get(name)
                    if file is None:  # it will be written, with those before it that will, too
                        room -= self._block_bytes + (0 if before is None else 4 * len(tokens) + HEADER_BYTES)
                    elif file not in counted:
                        room -= self.files.sizes.get(file, 0)
                        counted.add(file)
                    if room < 0:
                        break
                end += 1
            seen.update(names[first:end])
            chosen.append(Chosen(names[:end], tokens[: end * self._size], extra_key, first))
            if end < len(names):
                break
        return chosen

    def _of_tree(self) -> Iterator[tuple[np.ndarray, Hashable]]:
        """Sequences that end in a leaf of the pool's tree, what was used last first."""
        leaves = [node for _, node in self._cache.radix_cache.nodes() if not node.children]
        for leaf in sorted(leaves, key=lambda node: node.last_access_time, reverse=True):
            yield np.concatenate([node.key for node in path_to(leaf)[::-1]]), leaf.edge[0]

    def _of_host(self) -> Iterator[tuple[np.ndarray, Hashable]]:
        """Those that end in a block of host memory behind which there is none, what was used last first."""
        for block in reversed(list(self._host.index)):
            if all(child.start is None for child in block.children.values()):
                yield self._host.index.tokens_of(block)

    def _run(self, each: Chosen, begin: int, end: int) -> Run:
        """The blocks `begin..end` of a sequence, as far as the pool or host memory still have them."""
        tokens, start, memory = each.tokens[: end * self._size], begin * self._size, self._host.memory
        length, node = self._cache.radix_cache.peek_prefix(tokens, each.extra_key)
        in_pool = max(start, length // self._size * self._size)
        kv = memory.read(self._host.index.look_up(tokens, each.extra_key, in_pool))
        if in_pool > start:
            slots = np.concatenate([above.value for above in path_to(node)[::-1]])
            kv = np.concatenate((memory.read_pool(slots[start:in_pool]), kv))
        end = begin + len(kv) // self._size
        return Run(each.names[:end], begin, self._fields(each.extra_key), tokens[: end * self._size], kv)

    def close(self, timeout: float | None = 10.0) -> None:
        """Read and write nothing more. What was offered is written first, if that takes at most `timeout` seconds."""
        self.give_up()
        with suppress(TimeoutError, CancelledError):
            self._submit(self._writer, lambda: None).result(timeout)
        self._is_closed = True
        for thread in (self._reader, self._writer):
            thread.shutdown(wait=False, cancel_futures=True)

    # --- how it works ------------------------------------------------------------------------------------------------

    def _names(self, tokens: np.ndarray, extra_key: Hashable) -> list[str]:
        """What files call the whole blocks of `tokens`; none if they may not go there."""
        first = self.first_digest(extra_key)
        return [] if first is None else [digest.hex() for digest in block_digests(first, tokens, self._size)]

    def _fields(self, extra_key: Hashable) -> dict[str, str]:
        """What files say of an `extra_key`, and how routers call it, unless it has an adapter."""
        first = self.first_digest(extra_key)
        assert first is not None, "it would have no names either"
        router = "" if isinstance(extra_key, AdapterKey) else str(namespace_hash(extra_key, None))
        return {"namespace": first.hex(), "router_namespace": router}

    def _submit(self, thread: Executor, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Have one of the threads call it; when Python is exiting and starts no thread any more, do so at once."""
        future = Future[Any]()
        if self._is_closed:
            future.cancel()
            return future
        try:
            future = thread.submit(function, *args)
        except RuntimeError:
            future.set_result(function(*args))
        future.add_done_callback(_log_error)
        return future

    def _left(self, ends: float | None) -> float | None:
        """Seconds until `ends`; None: any number."""
        return None if ends is None else max(ends - self._clock(), 0.0)


def _log_error(future: "Future[Any]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.error("files of K/V: an error", exc_info=error)
