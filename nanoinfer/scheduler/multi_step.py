"""Multi-step decoding: up to `num_scheduler_steps` decode passes between two visits to the scheduler.

Between two decode passes of the same requests there is nothing to decide: the sampled token is the next input, and the row
says which slot it gets. So the scheduler can plan several passes at once. They are a *group*:

    visit ── reserve ──► pass 1 ──► advance ──► pass 2 ──► advance ──► pass 3 ──► visit

- **Reserve.** Each request gets the slots for its tokens of all passes, in whole pages, fewer if it needs fewer. To make
  room, cached tokens that no request uses are evicted. The group has as many passes as there are slots for. One is always
  possible: the visit has made room for it, as without groups. And there is one only while a prompt is partly computed,
  because its next chunk follows every DECODE.
- **Advance.** The inputs of a pass become those of the next, in place, as `npu_advance_step_flashattn` does it.
- **A request that ends** leaves the group. Its reserved slots go back with its others (`CacheManager.release`). The tree
  gets computed tokens only, so it gets the same as without groups.

Sampling and everything after it happens in every pass, so the tokens are those that single passes give. What changes is
time: no request is admitted within a group, none is retracted, paused or aborted, and outputs are delivered after it.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.config import EngineConfig
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.lora.pool import AdapterPool
from nanoinfer.outputs import FinishReason
from nanoinfer.requests.req import Req
from nanoinfer.scheduler.batch import Batch
from nanoinfer.scheduler.scheduler import Scheduler


def make_scheduler(
    config: EngineConfig,
    cache: CacheManager,
    clock: Callable[[], float] = time.perf_counter,
    adapters: AdapterPool | None = None,
) -> Scheduler:
    """The Scheduler that `config.num_scheduler_steps` asks for."""
    return (Scheduler if config.num_scheduler_steps == 1 else MultiStepScheduler)(config, cache, clock, adapters)


class MultiStepScheduler(Scheduler):
    """A Scheduler whose visits plan groups of decode passes. `passes_left`: how many the current group still has.

    While passes are left, `schedule` decides nothing: it moves the last batch on. Ending or pausing a request from outside
    closes the group, so that the next `schedule` is a visit. Slots that are reserved by then stay with their requests,
    which use them in later passes.
    """

    def clear(self) -> None:
        """As `Scheduler.clear`."""
        super().clear()
        self._group: DecodeGroup | None = None

    def schedule(self) -> Batch | None:
        """The next pass of the group; when none is left, what `Scheduler.schedule` plans, which may begin a new group."""
        if self._group is not None:
            self.new_token_ratio.decay()  # as before every DECODE pass without a retraction
            return self._group.advance()
        batch = super().schedule()
        if batch is not None and batch.forward_mode is ForwardMode.DECODE and self.prefilling is None:
            passes = self._reserve(batch.reqs)
            if passes > 1:
                self._group = DecodeGroup(batch, self.cache)
                self.passes_left = passes
        return batch

    def process_batch_result(
        self, batch: Batch, token_ids: Sequence[int], logprobs: Sequence[dict[int, float] | None]
    ) -> None:
        """As `Scheduler.process_batch_result`; also counts the pass. The group ends early when all its requests have."""
        super().process_batch_result(batch, token_ids, logprobs)
        if self._group is not None:
            self.passes_left -= 1
            if not self.passes_left or all(req.finished for req in batch.reqs):
                self._close_group()

    def end(self, reqs: Sequence[Req], reason: FinishReason, error: BaseException | None = None) -> None:
        """As `Scheduler.end`; closes the group."""
        self._close_group()
        super().end(reqs, reason, error)

    def pause(self, req: Req) -> None:
        """As `Scheduler.pause`; closes the group."""
        self._close_group()
        super().pause(req)

    def _close_group(self) -> None:
        self._group, self.passes_left = None, 0

    def _reserve(self, reqs: Sequence[Req]) -> int:
        """Allocate slots for further tokens of `reqs`, which have a slot for their newest. Returns how many passes there
        are slots for, including the one that is planned.

        The pages are given out pass by pass, in the order in which single passes would allocate them.
        """
        size, rows = self.cache.page_size, self.cache.rows
        room = self.cache.obtainable_size() // size
        longest = max(req.params.max_new_tokens - req.num_output_tokens for req in reqs)
        pages: list[tuple[Req, int]] = []  # the request, and the position at which its new page begins
        passes = 1
        while passes < min(self.config.num_scheduler_steps, longest):
            positions = [(req, req.num_tokens + passes - 1) for req in reqs]  # whose K/V one more pass would compute
            new = [(r, at) for r, at in positions if at % size == 0 and r.allocated_len <= at < r.max_kv_len]
            if len(pages) + len(new) > room:
                break
            pages += new
            passes += 1
        slots = self.cache.alloc_slots(len(pages) * size).reshape(-1, size)
        for (req, start), page in zip(pages, slots, strict=True):
            rows[req.req_pool_idx, start : start + size] = page
            req.allocated_len = start + size
        return passes


class DecodeGroup:
    """The inputs of a group's current pass, which `advance` moves on in place.

    They have `R` entries, one per request at the start of the group, and keep their shapes and addresses as requests end:
    `input_tokens`, `input_positions`, `seq_lens`, `slot_mapping`, int64 [R] on the host. The first `len(reqs)` entries
    are those of `reqs`, the requests that go on. The others are padding: slot -1; token, position and length 0.
    """

    def __init__(self, batch: Batch, cache: CacheManager):
        """`batch`: the first pass, a DECODE. Its requests have slots for their tokens of all passes."""
        self.reqs = list(batch.reqs)
        self._rows, self._req_to_token = batch.req_pool_indices.numpy(), cache.rows
        self.input_tokens = batch.input_ids.numpy().copy()
        self.seq_lens = batch.seq_lens.numpy().astype(np.int64)
        self.input_positions = self.seq_lens - 1
        self.slot_mapping = batch.out_cache_loc.numpy().astype(np.int64)

    def advance(self) -> Batch:
        """Make the newest token of each request its next input. Returns the next pass.

        It computes what `npu_advance_step_flashattn` computes, and reads slots from `req_to_token` itself. It does not call
        the operator, which checks its arguments: that takes longer than a visit to the scheduler.

        Requests that have ended leave, and those behind them move up: padding is at the end, where `advance_step` and
        passes of a fixed size expect it. The Batch has no padding, because a backend that runs it as it comes would store
        K/V of padding in slot -1, which is the pool's last.
        """
        if any(req.finished for req in self.reqs):
            self._drop_finished()
        count = len(self.reqs)
        positions = self.seq_lens[:count]
        self.input_tokens[:count] = [req.token_ids[req.num_tokens - 1] for req in self.reqs]
        self.input_positions[:count] = positions
        self.slot_mapping[:count] = self._req_to_token[self._rows, positions]
        positions += 1
        tokens, seq_lens, slots = self.input_tokens[:count], self.seq_lens[:count], self.slot_mapping[:count]
        return Batch.of(self.reqs, ForwardMode.DECODE, tokens.copy(), seq_lens.astype(np.int32), slots.astype(np.int32))

    def _drop_finished(self) -> None:
        left = [i for i, req in enumerate(self.reqs) if not req.finished]
        self.reqs, self._rows = [self.reqs[i] for i in left], self._rows[left]
        self.seq_lens[: len(left)] = self.seq_lens[left]
        for array, padding in (
            (self.input_tokens, 0),
            (self.input_positions, 0),
            (self.seq_lens, 0),
            (self.slot_mapping, -1),
        ):
            array[len(left) :] = padding
