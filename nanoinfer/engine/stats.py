"""EngineStats, the state of an engine in numbers, and the line that an engine logs for every step.

A step is one pass here. Where `num_scheduler_steps` lets `Engine.step` make several decode passes, each of them is counted,
timed and logged as a step, so that the numbers mean the same with any setting.

The logger `nanoinfer.engine.engine` writes one line per step at level INFO, always with these fields in this order:

    step=17 mode=EXTEND reqs=3 tokens=120 running=5 waiting=2 free=100 evictable=20 protected=40 retracted=0 ms=12.3

`mode`, `reqs` and `tokens` describe the pass: EXTEND, DECODE or VERIFY, and how many tokens it computes, drafts included.
`running` and `waiting` count requests after the pass; `free`, `evictable` and `protected` count slots after it.
`retracted` is how many requests were retracted to make room for it. Switch the log on with
`logging.basicConfig(level=logging.INFO)`. Before its first such line, an engine logs once what computes its passes, and
why nothing faster does:

    kernels=torch (not cpp: no C++ compiler: ...; not onednn: ...) attention_backend=torch_native (...) capture=no (...)
"""

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.kernels.select import Selection, selection_of
from nanoinfer.model.lora.manager import Adapters
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.request_group import OpenRequests
from nanoinfer.scheduler.batch import Batch
from nanoinfer.scheduler.scheduler import Scheduler

logger = logging.getLogger("nanoinfer.engine")

RECENT_STEPS = 256


@dataclass(frozen=True)
class EngineStats(Mapping[str, Any]):
    """An engine at one moment. `stats.free_slots` and `stats["free_slots"]` are the same; `dict(stats)` has all fields.

    - Requests now (each of `n` completions counts): `waiting`, including retracted ones; `running`, including one whose
      prompt is only partly computed; `paused`.
    - Slots now: `total_slots` = `free_slots` + `evictable_slots` (in the tree, unused) + `protected_slots` (in the tree,
      used by running requests) + `request_slots` (held by running requests, not in the tree).
    - Passes since the start: `extend_steps`, `decode_steps` (those with drafts, VERIFY, included).
    - Requests since the start, by how they ended: `finished`, `aborted`, `timed_out`, `failed` (in a step that raised).
    - Tokens since the start: `prompt_tokens` (of admitted requests); `cached_tokens` (those of them found in the tree);
      `hit_rate` (cached tokens divided by prompt tokens); `output_tokens`.
    - Drafts since the start: `drafted_tokens` (those that passes have checked), `accepted_tokens` (those that were right).
    - Shortage since the start: `retractions`; `evicted_tokens` (evicted from the tree to make room).
    - Host memory below the pool (0 without `host_cache_tokens`): `host_slots`; `host_held_tokens` now; since the start,
      `host_stored_tokens` (copied there when they were evicted) and `host_fetched_tokens` (copied back).
    - Files below it (0 without `cache_dir`): `disk_held_tokens` now, in all files of this model; since the start,
      `disk_fetched_tokens` (read into host memory), `disk_misses` (files that could not be used) and `disk_lost_runs`
      (pieces that the writer had no room for).
    - `new_token_ratio` now: for what share of future tokens admission reserves slots (see retraction.py).
    - What computes the passes: `kernels` and `attention_backend`; and why nothing faster does: `kernels_reason` and
      `attention_reason` ("" if they are the fastest). `capture`: whether the graph runner replays decode passes, and if not
      why. `quantization`: the kind of linear weights, "" for the checkpoint's own; and why plain torch multiplies by them,
      if it does: `quantization_reason`.
    - Adapters: `loaded_adapters` and, of these, `adapters_on_device` now; `adapter_fetches` since the start (each brings
      one from host memory to the device).
    - Over the last 256 steps (passes): `tokens_per_second` (output tokens per second spent in steps); the means
      `extend_step_seconds` and `decode_step_seconds`; `longest_step_seconds`. Each is 0 before the first step of its kind.
    """

    waiting: int
    running: int
    paused: int
    total_slots: int
    free_slots: int
    evictable_slots: int
    protected_slots: int
    request_slots: int
    hit_rate: float
    extend_steps: int
    decode_steps: int
    finished: int
    aborted: int
    timed_out: int
    failed: int
    retractions: int
    evicted_tokens: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    host_slots: int
    host_held_tokens: int
    host_stored_tokens: int
    host_fetched_tokens: int
    disk_held_tokens: int
    disk_fetched_tokens: int
    disk_misses: int
    disk_lost_runs: int
    new_token_ratio: float
    tokens_per_second: float
    extend_step_seconds: float
    decode_step_seconds: float
    longest_step_seconds: float
    kernels: str
    kernels_reason: str
    attention_backend: str
    attention_reason: str
    capture: str
    quantization: str
    quantization_reason: str
    loaded_adapters: int
    adapters_on_device: int
    adapter_fetches: int

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)


class RecentSteps(TypedDict):
    """The fields of EngineStats that are about time."""

    tokens_per_second: float
    extend_step_seconds: float
    decode_step_seconds: float
    longest_step_seconds: float


class StepMeter:
    """Counts steps and their tokens, and times the recent ones."""

    def __init__(self) -> None:
        self.extend_steps = self.decode_steps = 0
        self.has_logged = False
        self._recent: deque[tuple[bool, int, float]] = deque(maxlen=RECENT_STEPS)

    def add(self, batch: Batch, output_tokens: int, seconds: float) -> None:
        """Count one step, the pass of `batch`, that took `seconds` and gave so many output tokens."""
        extend = batch.forward_mode is ForwardMode.EXTEND
        self.extend_steps += extend
        self.decode_steps += not extend
        self._recent.append((extend, output_tokens, seconds))

    def recent(self) -> RecentSteps:
        """Speed over the last `RECENT_STEPS` steps."""
        extend = [seconds for is_extend, _, seconds in self._recent if is_extend]
        decode = [seconds for is_extend, _, seconds in self._recent if not is_extend]
        total = sum(extend) + sum(decode)
        return {
            "tokens_per_second": sum(tokens for _, tokens, _ in self._recent) / total if total else 0.0,
            "extend_step_seconds": sum(extend) / len(extend) if extend else 0.0,
            "decode_step_seconds": sum(decode) / len(decode) if decode else 0.0,
            "longest_step_seconds": max(extend + decode, default=0.0),
        }


def selections(runner: ModelRunner) -> tuple[Selection, Selection]:
    """What computes the passes of `runner`: the kernels (or the model's class if it has none) and the attention backend."""
    return selection_of(getattr(runner.model, "kernels", runner.model)), selection_of(runner.attention_backend)


def captured(runner: ModelRunner) -> str:
    """Whether the graph runner replays decode passes: "yes", perhaps with a note, or "no" and why."""
    if runner.captured is None:
        return "no (capture=False)"
    answer, said = ("no", runner.captured.reason) if runner.captured.reason else ("yes", runner.captured.note)
    return f"{answer} ({said})" if said else answer


def engine_stats(
    scheduler: Scheduler, open_requests: OpenRequests, meter: StepMeter, runner: ModelRunner, adapters: Adapters
) -> EngineStats:
    """Collect the numbers of the engine that has these parts."""
    kernels, attention = selections(runner)
    quantization = getattr(runner.model, "quantization", Selection(""))
    cache = scheduler.cache
    pool, tree = cache.token_to_kv_pool, cache.radix_cache
    return EngineStats(
        waiting=len(scheduler.waiting),
        running=len(scheduler.running),
        paused=len(scheduler.paused),
        total_slots=pool.size,
        free_slots=pool.available_size(),
        evictable_slots=tree.evictable_size(),
        protected_slots=tree.protected_size(),
        request_slots=sum(req.allocated_len - req.tree_len for req in scheduler.running),
        hit_rate=scheduler.cached_tokens / scheduler.prompt_tokens if scheduler.prompt_tokens else 0.0,
        extend_steps=meter.extend_steps,
        decode_steps=meter.decode_steps,
        **open_requests.ends,
        retractions=scheduler.retractions,
        evicted_tokens=cache.evicted_tokens,
        prompt_tokens=scheduler.prompt_tokens,
        cached_tokens=scheduler.cached_tokens,
        output_tokens=scheduler.output_tokens,
        drafted_tokens=scheduler.drafted_tokens,
        accepted_tokens=scheduler.accepted_tokens,
        **tier_stats(cache),
        new_token_ratio=scheduler.new_token_ratio.value,
        **meter.recent(),
        kernels=kernels.name,
        kernels_reason=kernels.reason,
        attention_backend=attention.name,
        attention_reason=attention.reason,
        capture=captured(runner),
        quantization=quantization.name,
        quantization_reason=quantization.reason,
        loaded_adapters=len(adapters),
        adapters_on_device=len(adapters.pool.on_device),
        adapter_fetches=adapters.pool.fetches,
    )


def tier_stats(cache: CacheManager) -> dict[str, int]:
    """The fields of EngineStats that are about the tiers below the pool."""
    host = cache.next_tier
    disk = None if host is None else host.next_tier
    files = None if disk is None else disk.files
    return {
        "host_slots": host.index.size if host else 0,
        "host_held_tokens": len(host.index) if host else 0,
        "host_stored_tokens": host.stored_tokens if host else 0,
        "host_fetched_tokens": host.fetched_tokens if host else 0,
        "disk_held_tokens": len(files.file_of) * host.block_size if files else 0,
        "disk_fetched_tokens": disk.fetched_tokens if disk else 0,
        "disk_misses": files.misses if files else 0,
        "disk_lost_runs": files.lost if files else 0,
    }


def log_step(
    batch: Batch, scheduler: Scheduler, meter: StepMeter, runner: ModelRunner, retracted: int, seconds: float
) -> None:
    """Log the line that is described at the top of this file; the first time, also the line that comes before it."""
    if logger.isEnabledFor(logging.INFO):
        if not meter.has_logged:
            meter.has_logged = True
            logger.info("kernels=%s attention_backend=%s capture=%s", *selections(runner), captured(runner))
        pool, tree = scheduler.cache.token_to_kv_pool, scheduler.cache.radix_cache
        logger.info(
            "step=%d mode=%s reqs=%d tokens=%d running=%d waiting=%d free=%d evictable=%d protected=%d retracted=%d"
            " ms=%.1f",
            meter.extend_steps + meter.decode_steps,
            batch.forward_mode.name,
            len(batch.reqs),
            len(batch.input_ids),
            len(scheduler.running),
            len(scheduler.waiting),
            pool.available_size(),
            tree.evictable_size(),
            tree.protected_size(),
            retracted,
            1e3 * seconds,
        )
