"""Recorder: watches an engine from the outside and records what changes, as one TraceEvent per pass.

A step of a trace is one pass. A step of the engine is, too, unless `num_scheduler_steps` lets it make several decode passes
(scheduler/multi_step.py); each of these is a step of the trace.

The engine has no code for this. While a recorder is attached, a few methods *of these very objects* (engine, scheduler)
are replaced by functions that call the originals and take notes. The last recorder to stop restores the originals. The
radix tree tells its observers, of which one takes notes. Nothing is copied as a whole: the cost of an event depends on what
happened in its step, not on the sizes of pool and tree.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from nanoinfer.engine.engine import Engine
from nanoinfer.outputs import FinishReason
from nanoinfer.requests.req import Req
from nanoinfer.requests.request_group import RequestGroup
from nanoinfer.requests.tokenizer import token_text
from nanoinfer.scheduler.batch import Batch
from nanoinfer.viz.trace import events as ev
from nanoinfer.viz.trace.trace import Trace
from nanoinfer.viz.trace.tree_notes import TreeNotes

Call = Callable[..., Any]


@dataclass
class Seen:
    """What the trace knows about an unfinished request."""

    index: int
    node: int = 0
    tree_len: int = 0
    allocated_len: int = 0


class Member(NamedTuple):
    """A request in the current pass, how many tokens it had before, and its entry, still without those that it gets."""

    req: Req
    num_tokens: int
    entry: ev.BatchEntry


class Watched:
    """Stands in place of a method of one object, and lets every recorder call it: `around(original, ...)`."""

    def __init__(self, owner: Any, name: str):
        self.own = vars(owner).get(name)  # what stood there, if it was the object's own and not its class's
        self.original: Call = getattr(owner, name)
        self.around: list[Call] = []
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.original
        for around in self.around:
            call = partial(around, call)
        return call(*args, **kwargs)


def watch(owner: Any, name: str, around: Call) -> Callable[[], None]:
    """Have `around(original, ...)` called in place of a method; returns what ends that."""
    method = vars(owner).get(name)
    watched = method if isinstance(method, Watched) else Watched(owner, name)
    watched.around.append(around)

    def unwatch() -> None:
        watched.around.remove(around)
        if watched.around or vars(owner).get(name) is not watched:
            return
        if watched.own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, watched.own)

    return unwatch


@contextmanager
def record(engine: Any) -> Iterator[Trace]:
    """Record what `engine` (or an LLM's engine) does inside the `with` block; the trace is complete when the block ends.

    The trace begins with a snapshot, so it may start in the middle of a run. Recording does not change any tokens. Read the
    trace between steps. An engine may be recorded several times at once. ValueError if `engine` is not an engine.
    """
    recorder = Recorder(engine)
    try:
        yield recorder.trace
    finally:
        recorder.stop()


ENGINE_FIELDS = (
    *("max_total_tokens", "max_running_requests", "max_context_len", "page_size", "schedule_policy", "eviction_policy"),
    *("chunked_prefill_size", "disable_radix_cache", "drafter", "num_draft_tokens"),
)


def engine_fields(engine: Engine) -> dict[str, Any]:
    """What a trace's `engine` says. `tiers` only if there are any below the pool: `["host"]` or `["host", "disk"]`."""
    config, host = engine.config, engine.cache.next_tier
    fields = {name: getattr(config, name) for name in ENGINE_FIELDS} | {"drafter": list(config.drafters)}
    return fields if host is None else fields | {"tiers": ["host"] if host.next_tier is None else ["host", "disk"]}


class Recorder:
    """Is attached to `engine` from its creation until `stop()`. Keeps Reqs and tree nodes only while the engine does.
    An engine may have several. `began`: when, by the engine's clock.
    """

    def __init__(self, engine: Any):
        given, engine = engine, getattr(engine, "engine", engine)
        if not isinstance(engine, Engine):
            raise ValueError(f"engine={given!r}: must be an Engine or an LLM")
        self._engine, self._clock = engine, engine._clock
        self.began: float = self._clock()
        self._unwatch: list[Callable[[], None]] = []
        self._seen: dict[Req, Seen] = {}
        self._tree = TreeNotes(engine.radix_cache)
        self._pass: list[Member] | None = None
        self._in_step = False
        # More may be allocated than a pass fills, and then less than the next one does.
        config = engine.config
        self._allocates_ahead = config.page_size > 1 or config.num_scheduler_steps > 1 or config.drafter is not None
        tokenizer = engine.builder.tokenizer
        decode = None if tokenizer is None else partial(token_text, tokenizer)
        self.trace = Trace(engine_fields(engine), decode=decode, writer=self)
        with engine.visit():
            self._event = ev.TraceEvent(0, ev.START, self._clock() - self.began)
            self._take_snapshot()
            self.settle()
            self._attach()

    def stop(self) -> None:
        """Detach, and leave the engine as it was before. May be called more than once."""
        if not self._unwatch:
            return
        with self._engine.visit():
            self.settle()
            for unwatch in self._unwatch:
                unwatch()
            self._unwatch.clear()
            self._engine.radix_cache.observers.remove(self._tree)
            self.trace.writer = None
            self._seen.clear()
            self._pass = None
            self._tree.clear()

    def settle(self) -> None:
        """Complete the event that collects what happens between steps, which brings the trace up to date."""
        if self._in_step:
            return
        self._close_event()
        self._open_event(ev.BETWEEN)

    # --- attaching -----------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        engine, scheduler = self._engine, self._engine.scheduler
        watched: list[tuple[Any, str, Call]] = [
            (engine, "around_step", self._around_step),
            (engine, "submit_all", self._on_submit),
            (engine, "_reset", self._on_reset),
            (scheduler, "schedule", self._on_schedule),
            (scheduler, "end", self._on_end),
            (scheduler, "pause", self._on_pause),
            (scheduler, "resume", self._on_resume),
        ]
        if engine.cache.next_tier is not None:
            watched.append((engine.cache.next_tier, "fetch", self._on_fetch))
        self._unwatch += [watch(*each) for each in watched]
        engine.radix_cache.observers.add(self._tree)

    def _take_snapshot(self) -> None:
        """Describe what is already there, in the form of events."""
        scheduler, rows = self._engine.scheduler, self._engine.cache.rows
        unfinished = (*scheduler.running, *scheduler.waiting, *scheduler.paused)
        for req in sorted(unfinished, key=lambda req: req.ticket):
            seen = self._see(req)
            if req in scheduler.paused:
                self._event.paused.append(seen.index)
            if req.req_pool_idx is None:
                self._event.retracted += [seen.index] if req.num_retractions else []
                continue
            seen.node, seen.tree_len = self._tree.number(req.last_node), req.tree_len
            seen.allocated_len = req.allocated_len
            slots = ev.to_runs(rows[req.req_pool_idx, req.tree_len : req.allocated_len])
            self._event.held.append(ev.Held(seen.index, req.req_pool_idx, seen.node, req.tree_len, req.kv_len, slots))

    # --- the step ------------------------------------------------------------------------------------------------

    @contextmanager
    def _around_step(self, around_step: Call) -> Iterator[None]:
        self._close_event()
        self._in_step, self._pass = True, None
        self._open_event(ev.FAILED)
        try:
            with around_step():
                yield
        except BaseException as error:
            self._event.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._finish_pass()
            self._in_step = False
            self._open_event(ev.BETWEEN)

    def _finish_pass(self) -> None:
        event, members, self._pass = self._event, self._pass, None
        for req, num_tokens, entry in members or ():
            event.batch.append(entry._replace(tokens=req.token_ids[num_tokens : req.num_tokens].tolist()))
            seen = self._seen.get(req)
            if seen is None:
                continue  # the step has failed, and the request's end is in the event already
            if req.finish_reason is not None:
                self._note_end(req, req.finish_reason.value)
                continue
            node = self._tree.number(req.last_node)
            if (node, req.tree_len) != (seen.node, seen.tree_len):
                seen.node, seen.tree_len = node, req.tree_len
                event.paths.append(ev.Path(seen.index, node, req.tree_len))
        event.seconds = self._clock() - self.began - event.time
        if event.mode == ev.FAILED and event.error is None:
            event.mode = ev.BETWEEN  # nothing to compute; at most, requests reached their deadlines
        else:
            event.step += 1
        self._close_event()

    def _on_schedule(self, schedule: Call) -> Batch | None:
        if self._pass:  # this step has made a pass already
            self._finish_pass()
            self._open_event(ev.FAILED)
        before = self._engine.scheduler.running.copy()
        batch: Batch | None = None
        try:
            batch = schedule()
        finally:
            self._note_moves(before, self._engine.scheduler.running)
            if batch is not None:
                self._event.mode = batch.forward_mode.name
                self._pass = self._members(batch)
        return batch

    def _note_moves(self, before: Sequence[Req], running: Sequence[Req]) -> None:
        if running == before:
            return
        was, now = set(before), set(running)
        self._event.retracted += [self._released(req) for req in before if req not in now]
        for req in running:
            if req not in was:
                seen = self._see(req)
                seen.node = self._tree.number(req.last_node)
                seen.tree_len = seen.allocated_len = req.prefix_len
                self._event.admitted.append(ev.Admission(seen.index, req.req_pool_idx, seen.node, req.prefix_len))

    def _members(self, batch: Batch) -> list[Member]:
        """The requests in the pass, with the slots that were just allocated for them."""
        members, at = list[Member](), 0
        slots, one_by_one = batch.out_cache_loc.numpy(), batch.out_cache_loc.tolist()
        verify = batch.forward_mode.name == ev.VERIFY
        seq_lens = batch.seq_lens.tolist()
        starts = [end - 1 for end in seq_lens] if batch.prefix_lens is None else batch.prefix_lens.tolist()
        for req, start, end in zip(batch.reqs, starts, seq_lens, strict=True):
            seen = self._see(req)
            one = end - start == 1  # as for every request in a DECODE
            new_slots = (one_by_one[at], 1) if one else ev.to_runs(slots[at : at + end - start])
            at += end - start
            allocated = self._newly_allocated(req, seen) if self._allocates_ahead else None
            drafts = req.token_ids[req.num_tokens : end].tolist() if verify else None
            entry = ev.BatchEntry(seen.index, start, end, new_slots, [], allocated, drafts)
            members.append(Member(req, req.num_tokens, entry))
        return members

    def _newly_allocated(self, req: Req, seen: Seen) -> ev.Runs:
        """The slots that `req` has got since the last pass."""
        start, seen.allocated_len = seen.allocated_len, req.allocated_len
        if start == req.allocated_len:
            return []
        assert req.req_pool_idx is not None
        return ev.to_runs(self._engine.cache.rows[req.req_pool_idx, start : req.allocated_len])

    # --- requests ------------------------------------------------------------------------------------------------

    def _on_submit(self, submit_all: Call, groups: Sequence[RequestGroup]) -> list[int]:
        request_ids = submit_all(groups)
        with self._engine.visit():
            for req in [req for group in groups for req in group.reqs]:
                if not req.finished:  # in a pass of another thread, which has noted it
                    self._see(req)
        return request_ids

    def _on_end(self, end: Call, reqs: Sequence[Req], reason: FinishReason, error: BaseException | None = None) -> None:
        ending = [req for req in reqs if not req.finished]
        try:
            end(reqs, reason, error)
        finally:
            for req in ending:
                if req.finished:
                    self._see(req)
                    self._note_end(req, reason.value if error is None else "error")

    def _on_reset(self, reset: Call) -> None:
        reset()
        for req in list(self._seen):
            self._note_end(req, "error")

    def _on_pause(self, pause: Call, req: Req) -> None:
        known = req in self._engine.scheduler.paused
        pause(req)
        if not known:
            self._event.paused.append(self._released(req))

    def _on_resume(self, resume: Call, req: Req) -> None:
        known = req in self._engine.scheduler.paused
        resume(req)
        if known:
            self._event.resumed.append(self._see(req).index)

    def _see(self, req: Req) -> Seen:
        """What the trace knows about `req`. A request that it has not seen before has just arrived."""
        seen = self._seen.get(req)
        if seen is None:
            seen = self._seen[req] = Seen(len(self.trace.requests))
            self._event.arrived.append(seen.index)
            self.trace.requests.append(self._request(req))
        return seen

    def _request(self, req: Req) -> ev.TraceRequest:
        requests = self.trace.requests
        completion = self._engine.open_requests.groups[req.request_id].reqs.index(req)
        if requests and requests[-1].request_id == req.request_id:
            prompt = requests[-1].prompt  # completions of one request share it
        else:
            prompt = req.token_ids[: req.prompt_len].tolist()
        return ev.TraceRequest(
            name=f"request {req.request_id}" + (f" ({completion + 1})" if completion else ""),
            request_id=req.request_id,
            completion=completion,
            prompt=prompt,
            max_new_tokens=req.params.max_new_tokens,
            time=req.arrival_time - self.began,
            extra_key=None if req.extra_key is None else repr(req.extra_key),
            outputs=req.output_ids,
            cached_tokens=req.cached_tokens,
            admitted=req.num_admissions > 0,
            drafted_tokens=req.drafted_tokens,
            accepted_tokens=req.accepted_tokens,
            fetched={tier: part for tier, part in req.fetched.items() if part[0] < part[1]},
        )

    def _on_fetch(self, fetch: Call, req: Req) -> dict[str, tuple[int, int]]:
        parts: dict[str, tuple[int, int]] = fetch(req)
        if parts:
            self._event.fetched.append(ev.Fetch(self._see(req).index, *parts["host"], parts["disk"][1]))
        return parts

    def _released(self, req: Req) -> int:
        """The index of `req`, which has given back its row and slots."""
        seen = self._see(req)
        seen.node = seen.tree_len = seen.allocated_len = 0
        return seen.index

    def _note_end(self, req: Req, reason: str) -> None:
        self._event.ended.append(ev.Ended(self._seen.pop(req).index, reason))

    # --- events --------------------------------------------------------------------------------------------------

    def _open_event(self, mode: str) -> None:
        """From now on, collect what happens in an event of this mode."""
        self._event = ev.TraceEvent(self.trace.num_steps, mode, self._clock() - self.began)

    def _close_event(self) -> None:
        """Add the event to the trace, unless nothing has happened in it."""
        event = self._event
        event.tree, event.nodes = self._tree.take()
        if event.is_step or event.mode == ev.START or any(type(each) is list and each for each in vars(event).values()):
            event.free = self._engine.cache.token_to_kv_pool.available_size()
            self.trace.add_event(event)
