"""EngineControl: what one may ask of an engine between two steps, beside requests: pauses, adapters, numbers, its end."""

import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.engine.prefix_transfer import PrefixTransfer, Tokens
from nanoinfer.engine.stats import EngineStats, StepMeter, engine_stats
from nanoinfer.engine.tiers import slot_buffers
from nanoinfer.errors import AdapterError, EngineClosedError
from nanoinfer.model.lora.adapter import Adapter
from nanoinfer.model.lora.manager import Adapters
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.outputs import FinishReason, RequestOutput
from nanoinfer.requests.request import AdapterKey
from nanoinfer.requests.request_group import OpenRequests, RequestGroup, Update, materialize
from nanoinfer.scheduler.scheduler import Scheduler

T = TypeVar("T")
logger = logging.getLogger("nanoinfer.engine")

SAVE_AT_SHUTDOWN_S = 10.0


class Loop(Protocol):
    """The thread that owns an engine: an EngineLoop. Its methods are called with the engine's lock held."""

    def has_work(self) -> bool:
        """True while a request of a client has something to do."""

    def request_ids(self) -> set[int]:
        """The requests of clients that have not ended. May be called at any time."""

    def deliver(self, updates: Sequence[Update]) -> list[RequestOutput]:
        """Dispatch updates to the clients of their requests; returns the outputs of requests of manual steps."""

    def post_soon(self, command: Callable[[], object]) -> None:
        """Run `command` between two steps, if there is a thread. May be called at any time."""

    def wake(self) -> None:
        """Look whether there is work. May be called at any time."""


class EngineControl:
    """A part of Engine, which has these attributes. All of it may be called from any thread, and waits for the current
    step to end."""

    model_runner: ModelRunner
    radix_cache: RadixCache
    cache: CacheManager
    adapters: Adapters
    scheduler: Scheduler
    open_requests: OpenRequests
    _clock: Callable[[], float]

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()  # held by the thread that is in the engine
        self._line: Any = threading.RLock()
        self._process = os.getpid()
        self.loop: Loop | None = None  # the EngineLoop that owns this engine, if `loop_of` has made one
        self.meter = StepMeter()
        self.around_step: Callable[[], AbstractContextManager[object]] = nullcontext  # what a trace sees of a step
        self.after_change: list[Callable[[], object]] = []  # called after each step and change; they must not raise
        self._is_changing = False
        self._unsettled: BaseException | None = (
            None  # what has cut a change short, until the reset after it is complete
        )
        self._contained: BaseException | None = None  # what a pass has raised, if its requests have ended with it
        self._closed = False
        self._block_feed: BlockFeed | None = None  # made when somebody asks for it
        self.describe_model: Callable[[], Mapping[str, str]] | None = (
            None  # all that K/V depends on of models and kernels
        )
        self._prefix_transfer: PrefixTransfer | None = None

    # --- who is in the engine ----------------------------------------------------------------------------------------

    def _in_line(self) -> AbstractContextManager[object]:
        """Held by visitors while they wait for `lock`, and until they leave."""
        return nullcontext() if self.is_mine else self._line

    def let_others_in(self) -> None:
        """Wait until those who wait have been in the engine: a thread that makes step after step would let nobody in."""
        with self._in_line():
            pass

    @property
    def is_mine(self) -> bool:
        """True in the thread that is in the engine."""
        return bool(self.lock._is_owned())

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Between two steps: no other thread is in the engine during this block. May be nested."""
        self.check_process()
        with self._in_line(), self.lock:
            yield

    def check_process(self) -> None:
        """EngineClosedError in a process that was forked: the engine's thread and what it was doing are not in it."""
        if os.getpid() != self._process:
            raise EngineClosedError(f"this engine belongs to process {self._process}: load the model in this one, too")

    def change(self, function: Callable[[], T]) -> T:
        """Call what changes who owns which slot, row or request, and return its result. If it raises, the engine resets.

        RuntimeError inside another change, as in code that a pass calls: nothing has happened then.
        """
        with self._in_line(), self.lock:
            if self._is_changing:
                raise RuntimeError("this engine is in the middle of a step: wait until it ends")
            if self._unsettled is not None:
                self._reset()
            self._is_changing = True
            try:
                result = function()
            except BaseException as error:
                if error is not self._contained:
                    self._unsettled = error
                    self._reset()
                raise
            finally:
                self._is_changing, self._contained = False, None
                for look in self.after_change:
                    look()
            return result

    def _reset(self) -> None:
        """Start anew after the `_unsettled` error: end all requests with it, and empty tree and pools."""
        error = self._unsettled
        groups = list(self.open_requests.groups.values())
        logger.error("the engine resets and ends its %d requests: %s: %s", len(groups), type(error).__name__, error)
        self.scheduler.clear()
        self.cache.clear()
        for req in [req for group in groups for req in group.reqs if not req.finished]:
            req.finish_time = self._clock()
            req.end(FinishReason.ABORT, error)
        self.open_requests.hold([group.output() for group in groups])
        self.open_requests.remove(groups, "failed")
        self._unsettled = None

    def end(
        self, request_ids: Iterable[int], reason: FinishReason, counted_as: str, error: BaseException | None = None
    ) -> None:
        """End those of the requests that are open, and keep their last outputs for the next delivery. For `change`."""
        groups = [self.open_requests.groups[i] for i in request_ids if i in self.open_requests.groups]
        self.scheduler.end([req for group in groups for req in group.reqs], reason, error)
        self.open_requests.remove(groups, counted_as)
        self.open_requests.hold([group.output() for group in groups])

    def end_by(self, change: Callable[[], Sequence[Update]]) -> list[RequestOutput]:
        """Make a change that ends requests, and return their outputs; clients get theirs, too."""
        with self.visit():
            updates = self.change(change)
            self.deliver(updates)
        return [materialize(update) for update in updates]

    def deliver(self, updates: Sequence[Update]) -> list[RequestOutput]:
        """Give clients of the loop what is new of their requests, and return the outputs of the others."""
        return [materialize(update) for update in updates] if self.loop is None else self.loop.deliver(updates)

    # --- requests ----------------------------------------------------------------------------------------------------

    def pause(self, request_id: int) -> None:
        """Leave a request out of all passes until `resume`. Its deadline stays.

        It gives back its row and slots. Its computed tokens stay in the tree as long as there is room, so that it can
        continue where it was. A step does nothing if every request is paused. ValueError when no such request is open.
        """
        with self.visit():
            reqs = [req for req in self._open_group(request_id).reqs if not req.finished]

            def pause() -> None:
                for req in reqs:
                    self.scheduler.pause(req)

            self.change(pause)

    def resume(self, request_id: int) -> None:
        """Queue a paused request again: ahead of requests that were never admitted if it was admitted before, else behind.

        Does nothing to a request that is not paused; `max_queue` does not apply. ValueError when no such request is open.
        """
        with self.visit():
            reqs = self._open_group(request_id).reqs

            def resume() -> None:
                for req in reqs:
                    self.scheduler.resume(req)

            self.change(resume)
        if self.loop is not None:
            self.loop.wake()

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
        with self.visit():
            adapter = self.adapters.find(name)
            reqs = [req for group in self.open_requests.groups.values() for req in group.reqs if not req.finished]
            if users := {req.request_id for req in reqs if adapter is not None and req.adapter is adapter}:
                raise AdapterError(
                    f"adapter={name!r}: requests use it: {len(users)} (the first: request_id={min(users)}); abort them, or "
                    "wait until they have ended"
                )
            if adapter is None:
                raise AdapterError(f"adapter={name!r}: is the base model, which stays")
            self.change(lambda: self._unload(adapter))

    def _unload(self, adapter: Adapter) -> None:
        def is_its(key: Hashable) -> bool:
            return isinstance(key, AdapterKey) and key.id == adapter.id

        self.radix_cache.evict_keys(is_its)
        if self.cache.next_tier is not None:
            self.cache.next_tier.evict_keys(is_its)
        self.adapters.unload(adapter.name)

    def stats(self) -> EngineStats:
        """Where requests and slots are now, totals since the start, recent speed, and which kernels compute."""
        with self.visit():
            return engine_stats(self.scheduler, self.open_requests, self.meter, self.model_runner, self.adapters)

    def check_integrity(self) -> None:
        """RuntimeError unless every slot and row has exactly one owner: `free + tree + requests == N`."""
        with self.visit():
            self.cache.check_integrity(self.scheduler.running)
            if self.cache.next_tier is not None:
                self.cache.next_tier.check_integrity()

    def flush_cache(self) -> int:
        """Free every cached token that no running request relies on, and return how many there were in the pool. Host
        memory is emptied, too, and what is on its way from files does not arrive; the files stay."""

        def flush() -> int:
            with nullcontext() if self.cache.next_tier is None else self.cache.next_tier.emptied():
                return self.radix_cache.evict(self.radix_cache.evictable_size())

        return self.change(flush)

    def save_cache(self, timeout_s: float | None = None) -> int:
        """Write all cached K/V to the files of `cache_dir`, or what was used last of it if `cache_dir_max_bytes` leaves no
        room for the rest, and wait for that, at most `timeout_s` seconds. Returns how many of these tokens are not in
        files by then. Passes go on meanwhile. ValueError without `cache_dir`."""
        if (disk := getattr(self.cache.next_tier, "next_tier", None)) is None:
            raise ValueError("save_cache: needs cache_dir")
        return disk.save(self.visit, timeout_s)

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
        return transfer.load(data, found, extra_key, lambda: self._visit_with(adapter, found), self.change)

    @contextmanager
    def _visit_with(self, name: str | None, adapter: Adapter | None) -> Iterator[None]:
        """A visit in which `name` still is `adapter`."""
        with self.visit():
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
        """What the tree and the tiers below it hold, in numbered batches: one for each step, and each visit between
        steps, that changes it. A router learns from it what is cached where (`nanoinfer.cluster`).

        The first call starts the feed; until then, it costs nothing. Later ones return the same feed; ValueError if they
        want other blocks. With `host_cache_tokens` or `cache_dir`, whole blocks must fill those of host memory.
        """
        with self.visit():
            if self._block_feed is None:
                tier = self.cache.next_tier
                below = {} if tier is None else {"below": tier.event_sinks}
                self._block_feed = BlockFeed(self.radix_cache, event_block_size, self._soon, self.visit, **below)
                self.after_change.append(self._block_feed.cut)
            elif self._block_feed.event_block_size != event_block_size:
                size = self._block_feed.event_block_size
                raise ValueError(f"event_block_size={event_block_size}: must be {size}, as when the feed was started")
            return self._block_feed

    def _soon(self, function: Callable[[], object]) -> None:
        """For what threads of files change while no step is made; never waits. Other changes call `after_change`."""
        if self.loop is not None and not self.is_mine:
            self.loop.post_soon(function)

    def abort_all(self, error: BaseException | None = None) -> list[RequestOutput]:
        """End every request now; returns their last outputs, and outputs that `step` has not delivered yet.

        `error`: the reason, which the outputs then carry.
        """
        counted_as = "aborted" if error is None else "failed"

        def end() -> list[RequestOutput]:
            self.end(list(self.open_requests.groups), FinishReason.ABORT, counted_as, error)
            return [materialize(update) for update in self.open_requests.deliver_updates()]

        return self.end_by(end)

    def shutdown(self) -> list[RequestOutput]:
        """Shut down for good: abort all requests, save the cache if there is a `cache_dir`, free every slot, and refuse
        later requests with EngineClosedError.

        May be called again, and then does nothing.
        """

        with self.visit():
            was_closed, self._closed = self._closed, True
            outputs = self.abort_all()
            disk = None if was_closed else getattr(self.cache.next_tier, "next_tier", None)
            try:
                if disk is not None:
                    disk.save(nullcontext, SAVE_AT_SHUTDOWN_S)
            finally:
                if disk is not None:
                    disk.close()
                self.flush_cache()
                self.model_runner.close()
            return outputs

    @property
    def is_closed(self) -> bool:
        """True when it takes no more requests: it was shut down, or its runner is broken."""
        return self._closed or self.model_runner.broken is not None

    def _open_group(self, request_id: int) -> RequestGroup:
        group = self.open_requests.groups.get(request_id)
        if group is None:
            raise ValueError(f"request_id={request_id}: must be the id of a request that has not ended")
        return group
