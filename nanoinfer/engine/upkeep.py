"""EngineUpkeep: what one may ask of an engine between two steps, beside requests: pauses, adapters, numbers, its end."""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from nanoinfer.adapters.adapter import Adapter
from nanoinfer.adapters.manager import Adapters
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.engine.prefix_transfer import PrefixTransfer, Tokens
from nanoinfer.engine.stats import EngineStats, engine_stats
from nanoinfer.engine.step_guard import StepGuard
from nanoinfer.engine.tiers import slot_buffers
from nanoinfer.errors import AdapterError, EngineClosedError
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.adapter_key import AdapterKey
from nanoinfer.requests.open_requests import OpenRequests
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.req import FinishReason
from nanoinfer.requests.request_group import RequestGroup
from nanoinfer.scheduling.scheduler import Scheduler
from nanoinfer.threads.turns import Turns

SAVE_AT_SHUTDOWN_S = 10.0


class EngineUpkeep:
    """A part of Engine, which has these attributes. All of it may be called from any thread, and waits for the current
    step to end."""

    model_runner: ModelRunner
    radix_cache: RadixCache
    cache: CacheManager
    adapters: Adapters
    scheduler: Scheduler
    open_requests: OpenRequests
    _guard: StepGuard
    _closed: bool

    def __init__(self) -> None:
        self.paused_by: dict[int, threading.Thread] = {}  # by request id
        self._block_feed: BlockFeed | None = None  # made when somebody asks for it
        self.describe_model: Callable[[], Mapping[str, str]] | None = (
            None  # all that K/V depends on of models and kernels
        )
        self._prefix_transfer: PrefixTransfer | None = None

    @property
    def turns(self) -> Turns:
        """Lets one thread at a time into the engine."""
        return self._guard.turns

    def pause(self, request_id: int) -> None:
        """Leave a request out of all passes until `resume`. Its deadline stays.

        It gives back its row and slots. Its computed tokens stay in the tree as long as there is room, so that it can
        continue where it was. A step does nothing if every request is paused. ValueError when no such request is open.
        """
        with self.turns.visit():
            self.turns.check_between_passes()
            for req in self._open_group(request_id).reqs:
                if not req.finished:
                    self.scheduler.pause(req)
            self.paused_by = {i: thread for i, thread in self.paused_by.items() if i in self.open_requests.groups}
            self.paused_by[request_id] = threading.current_thread()

    def resume(self, request_id: int) -> None:
        """Queue a paused request again: ahead of requests that were never admitted if it was admitted before, else behind.

        Does nothing to a request that is not paused; `max_queue` does not apply. ValueError when no such request is open.
        """
        with self.turns.visit():
            for req in self._open_group(request_id).reqs:
                self.scheduler.resume(req)
            self.paused_by.pop(request_id, None)
        self._guard.loop.wake()

    def load_adapter(self, name: str, path: str | Path) -> Adapter:
        """Read the adapter in the folder `path`, in PEFT's format. Requests can use it from now on, by its `name`.

        AdapterError naming what is wrong, EngineClosedError after `shutdown`; nothing has changed then.
        """
        if self._closed:
            raise EngineClosedError("this engine has been shut down; it loads no adapters")
        return self.adapters.load(name, path)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter, and free its cached tokens, which no request would ever find.

        AdapterError if there is no such adapter, or while requests use it: they would have to end first.
        """
        with self.turns.visit():
            self.turns.check_between_passes()
            adapter = self.adapters.find(name)
            reqs = [req for group in self.open_requests.groups.values() for req in group.reqs if not req.finished]
            if users := {req.request_id for req in reqs if adapter is not None and req.adapter is adapter}:
                raise AdapterError(
                    f"adapter={name!r}: requests use it: {len(users)} (the first: request_id={min(users)}); abort them, or "
                    "wait until they have ended"
                )
            if adapter is not None:

                def is_its(key: Hashable) -> bool:
                    return isinstance(key, AdapterKey) and key.id == adapter.id

                self.radix_cache.evict_keys(is_its)
                if self.cache.storey is not None:
                    self.cache.storey.evict_keys(is_its)
            self.adapters.unload(name)

    def stats(self) -> EngineStats:
        """Where requests and slots are now, totals since the start, recent speed, and which kernels compute."""
        with self.turns.visit():
            meter = self._guard.meter
            return engine_stats(self.scheduler, self.open_requests, meter, self.model_runner, self.adapters)

    def check_integrity(self) -> None:
        """RuntimeError unless every slot and row has exactly one owner: `free + tree + requests == N`."""
        with self.turns.visit():
            self.cache.check_integrity(self.scheduler.running)
            if self.cache.storey is not None:
                self.cache.storey.check_integrity()

    def flush_cache(self) -> int:
        """Free every cached token that no running request relies on, and return how many there were in the pool. Host
        memory is emptied, too, and what is on its way from files does not arrive; the files stay."""
        with self.turns.visit(), nullcontext() if self.cache.storey is None else self.cache.storey.emptied():
            self.scheduler._blocked.forget()  # whoever waited for files may fit now
            return self.radix_cache.evict(self.radix_cache.evictable_size())

    def save_cache(self, timeout_s: float | None = None) -> int:
        """Write all cached K/V to the files of `cache_dir`, or what was used last of it if `cache_dir_max_bytes` leaves no
        room for the rest, and wait for that, at most `timeout_s` seconds. Returns how many of these tokens are not in
        files by then. Passes go on meanwhile. ValueError without `cache_dir`."""
        if (disk := getattr(self.cache.storey, "below", None)) is None:
            raise ValueError("save_cache: needs cache_dir")
        return disk.save(self.turns.visit, timeout_s)

    def export_prefix(self, tokens: Tokens, *, adapter: str | None = None, extra_key: Hashable = None) -> bytes:
        """The K/V of the longest prefix of `tokens` (token ids) that is cached in the pool, and in host memory behind it,
        in whole pages: bytes for `import_prefix` of another engine. b"" if not even a page is cached.

        `adapter`, `extra_key`: those of the request that computed it. The first call reads all weights once. ValueError
        naming what is wrong with an argument, or why this engine cannot export; EngineClosedError after `shutdown`.
        """
        transfer, found = self._transfer("export_prefix"), self.adapters.find(adapter)
        return transfer.dump(tokens, found, extra_key, lambda: self._visit_with(adapter, found))

    def import_prefix(
        self, data: bytes | bytearray | memoryview, *, adapter: str | None = None, extra_key: Hashable = None
    ) -> int:
        """Put K/V that another engine has exported into the pool. Requests with this `adapter` and `extra_key` find it, as
        if this engine had computed it, with the same tokens. Returns how many of its tokens are in the pool now: fewer than
        were exported only if running requests leave no room for the others.

        ValueError, with nothing changed, if the engines differ in anything that K/V depends on (weights, kernels, number
        formats, page size, a draft model), if adapter or `extra_key` do, or if `data` is damaged. Its checksum finds
        accidents: take `data` only from engines that you trust. AdapterError and EngineClosedError as for a request.
        """
        transfer, found = self._transfer("import_prefix"), self.adapters.find(adapter)
        return transfer.load(data, found, extra_key, lambda: self._visit_with(adapter, found))

    @contextmanager
    def _visit_with(self, name: str | None, adapter: Adapter | None) -> Iterator[None]:
        """A visit in which `name` still is `adapter`."""
        with self.turns.visit():
            self.turns.check_between_passes()
            if self._closed:
                raise EngineClosedError("this engine has been shut down; it has no K/V and takes none")
            if self.adapters.find(name) is not adapter:
                raise AdapterError(f"adapter={name!r}: was unloaded, and another one loaded, meanwhile")
            yield

    def _transfer(self, method: str) -> PrefixTransfer:
        if self._prefix_transfer is None:
            if self.radix_cache.disable:
                raise ValueError(f"{method}: needs disable_radix_cache=False, because K/V is found by the tree")
            if (size := getattr(self.model_runner, "tp_size", 1)) > 1:
                raise ValueError(
                    f"{method}: needs tensor_parallel_size=1, got {size}: each process has only a part of K/V"
                )
            if self.describe_model is None:
                raise ValueError(
                    f"{method}: needs an engine that make_engine or an LLM has made, which knows its model"
                )
            try:
                buffers = slot_buffers(self.cache, self.scheduler)
            except ValueError as error:
                raise ValueError(f"{method}: {error}") from error
            self._prefix_transfer = PrefixTransfer(self.cache, buffers, self.describe_model())
        return self._prefix_transfer

    def block_feed(self, event_block_size: int = 16) -> BlockFeed:
        """What the tree and the storeys below it hold, in numbered batches: one for each step, and each visit between
        steps, that changes it. A router learns from it what is cached where (`nanoinfer.cluster`).

        The first call starts the feed; until then, it costs nothing. Later ones return the same feed; ValueError if they
        want other blocks. With `host_cache_tokens` or `cache_dir`, whole blocks must fill those of host memory.
        """
        with self.turns.visit():
            if self._block_feed is None:
                turns, storey = self.turns, self.cache.storey
                below = {} if storey is None else {"below": storey.tell}
                self._block_feed = BlockFeed(self.radix_cache, event_block_size, turns.soon, turns.visit, **below)
            elif self._block_feed.event_block_size != event_block_size:
                size = self._block_feed.event_block_size
                raise ValueError(f"event_block_size={event_block_size}: must be {size}, as when the feed was started")
            return self._block_feed

    def abort_all(self, error: BaseException | None = None) -> list[RequestOutput]:
        """End every request now; returns their last outputs, and outputs that `step` has not delivered yet.

        `error`: the reason, which the outputs then carry.
        """
        counted_as = "aborted" if error is None else "failed"

        def end() -> list[RequestOutput]:
            self._guard.end(list(self.open_requests.groups), FinishReason.ABORT, counted_as, error)
            return self.open_requests.deliver()

        return self._guard.hand_out(end)

    def shutdown(self) -> list[RequestOutput]:
        """Shut down for good: abort all requests, save the cache if there is a `cache_dir`, free every slot, and refuse
        later requests with EngineClosedError.

        May be called again, and then does nothing.
        """

        def close() -> list[RequestOutput]:
            was_closed, self._closed = self._closed, True
            outputs = self.abort_all()
            disk = None if was_closed else getattr(self.cache.storey, "below", None)
            try:
                if disk is not None:
                    disk.save(nullcontext, SAVE_AT_SHUTDOWN_S)
            finally:
                if disk is not None:
                    disk.close()
                self.flush_cache()
                self.model_runner.close()
            return outputs

        return self._guard.hand_out(close)

    @property
    def is_closed(self) -> bool:
        """True when it takes no more requests: it was shut down, or its runner is broken."""
        return self._closed or self.model_runner.broken is not None

    def _open_group(self, request_id: int) -> RequestGroup:
        group = self.open_requests.groups.get(request_id)
        if group is None:
            raise ValueError(f"request_id={request_id}: must be the id of a request that has not ended")
        return group
