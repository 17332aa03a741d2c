"""EngineConfig: the settings with which a model is served, validated and frozen."""

import math
from dataclasses import dataclass, fields
from pathlib import Path

from nanoinfer.keywords import with_aliases
from nanoinfer.registry import ATTENTION_BACKENDS, DRAFTERS, EVICTION_POLICIES, KV_STORAGES, SCHEDULE_POLICIES

MOST_DRAFT_TOKENS = 64
LEAST = {"random_seed": 0}  # of the integers that may be below 1
MOST_ADAPTERS = 65_536  # each place takes memory in every layer


@with_aliases
@dataclass(frozen=True)
class EngineConfig:
    """How a model is served. Every limit is in tokens or requests; ValueError names a field that is out of range. The first
    sentence about a field is also the help of its option on the command line.

    - `max_running_requests`: how many requests can hold K/V at the same time. Each has a row of the ReqToTokenPool.
    - `max_total_tokens`: slots for K/V, those of the TokenToKVPool.
    - `max_context_len`: most tokens of one request, prompt and output together.
    - `page_size`: slots per page of K/V.
    - `chunked_prefill_size`: most prompt tokens between two decode passes, or none. Longer prompts are split into chunks,
      so they don't hold up the others (see `admission.py`). None: prompts are never split. The default is SGLang's for
      its smallest devices. A CPU is at full speed far below it: 256 costs little and keeps streams even.
    - `max_prefill_tokens`: most tokens of one EXTEND pass. A longer prompt or chunk gets a pass of its own.
    - `schedule_policy`: which waiting request goes first (see `policy.py`).
    - `policy_window`: how many waiting requests the policy orders, those that have waited longest.
    - `max_overtakes`: how many later requests may overtake one (see `waiting_queue.py`).
    - `schedule_conservativeness`: how much is set aside for tokens that requests may still produce (see `retraction.py`).
      With more, fewer requests run side by side and fewer are retracted; from 10.3 on, none is.
    - `max_queue`: how many requests may wait, counting each of `n` completions. One more is refused with QueueFullError.
      None: no limit.
    - `eviction_policy`: which cached tokens are evicted first (see `eviction.py`).
    - `disable_radix_cache`: compute every prompt from its first token.
    - `attention_backend`: what computes attention; auto takes the fastest that runs here.
    - `kv_cache_dtype`: how the pool stores K/V (see `kv_storage.py`). None, `auto` and `plain`: as the model computes it;
      `int8`: in eight bits with a scale for each token and head, for nearly twice the tokens of bfloat16.
    - `host_cache_tokens`: most tokens whose K/V is kept in host memory when it leaves the pool. It is fetched when a
      request needs it again (see `cache/tiers/host.py`), in blocks of at least 16 tokens. None: no such memory.
    - `cache_dir`: a folder for files with K/V, which later processes with the same model go on with. They get what leaves
      host memory, and all that `save_cache` and `shutdown` find cached (see `cache/tiers/disk.py`). None: no files.
      Without `host_cache_tokens`, host memory is as large as the pool then.
    - `cache_dir_max_bytes`: what all files in `cache_dir` may take up. None: no limit.
    - `capture`: whether decode passes are recorded, and replayed without Python between layers. They are recorded once per
      batch size (see `graph_runner.py`). `auto`: if kernels and attention are those in C++, on CUDA those of torch,
      which become CUDA graphs (`cuda_graph_runner.py`); True: an error if not; False: never.
    - `random_seed`: makes requests without a seed of their own repeatable. None takes random seeds from the system.
    - `num_scheduler_steps`: most decode passes between two visits to the scheduler (see `scheduler/multi_step.py`). The
      tokens are the same. With k > 1, streams get up to k tokens at once, and whatever comes between steps waits for up to
      k passes: a new request, an abort, a pause, a request's `timeout_s`.
    - `max_adapters_on_device`: how many adapters can be computed with at the same time. Other loaded ones wait in host
      memory (see `model/lora/pool.py`).
    - `drafter`: who proposes tokens that one pass then checks together, or several of them. The tokens are the same (see
      `speculative/`). Of several, they are asked in the given order, until one has an idea. None: nobody.
    - `num_draft_tokens`: most drafts of a request in one pass.
    - `adaptive_drafts`: draft where it is expected to save time, by what passes and drafts have cost and brought so far.
      False: always draft as much as possible.
    """

    max_running_requests: int
    max_total_tokens: int
    max_context_len: int
    page_size: int = 1
    chunked_prefill_size: int | None = 2048
    max_prefill_tokens: int = 4096
    schedule_policy: str = "lpm"
    policy_window: int = 128
    max_overtakes: int = 64
    schedule_conservativeness: float = 1.0
    max_queue: int | None = None
    eviction_policy: str = "lru"
    disable_radix_cache: bool = False
    attention_backend: str = "auto"
    kv_cache_dtype: str | None = None
    host_cache_tokens: int | None = None
    cache_dir: str | Path | None = None
    cache_dir_max_bytes: int | None = None
    capture: str | bool = "auto"
    random_seed: int | None = None
    num_scheduler_steps: int = 1
    max_adapters_on_device: int = 16
    drafter: str | tuple[str, ...] | None = None
    num_draft_tokens: int = 3
    adaptive_drafts: bool = True

    def __post_init__(self) -> None:
        in_order = sorted(fields(self), key=lambda field: field.name != "page_size")  # others are multiples of it
        for name, kind in ((field.name, field.type) for field in in_order):
            value, optional, least = getattr(self, name), kind == int | None, LEAST.get(name, 1)
            if kind is bool and not isinstance(value, bool):
                raise ValueError(f"{name}={value!r}: must be True or False")
            if kind not in (int, int | None) or (optional and value is None):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r}: must be {'None or ' * optional}an integer of at least {least}")
        for name, most in (("num_draft_tokens", MOST_DRAFT_TOKENS), ("max_adapters_on_device", MOST_ADAPTERS)):
            if getattr(self, name) > most:
                raise ValueError(f"{name}={getattr(self, name)}: must be in 1..{most}")
        if self.chunked_prefill_size is not None and self.chunked_prefill_size < self.page_size:
            raise ValueError(
                f"chunked_prefill_size={self.chunked_prefill_size}: must be None or at least page_size={self.page_size}"
            )
        factor = self.schedule_conservativeness
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise ValueError(f"schedule_conservativeness={factor!r}: must be a number above 0")
        self._check_drafters()
        self._check_tiers()
        if self.max_total_tokens % self.page_size:
            raise ValueError(
                f"max_total_tokens={self.max_total_tokens}: must be a multiple of page_size={self.page_size}"
            )
        if self.capture not in ("auto", True, False) or isinstance(self.capture, int) != isinstance(self.capture, bool):
            raise ValueError(f"capture={self.capture!r}: must be auto, True or False")
        SCHEDULE_POLICIES.check(self.schedule_policy)
        EVICTION_POLICIES.check(self.eviction_policy)
        ATTENTION_BACKENDS.check(self.attention_backend)
        if self.kv_cache_dtype is not None:
            KV_STORAGES.check(self.kv_cache_dtype)

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names in `drafter`, in order."""
        if self.drafter is None:
            return ()
        return (self.drafter,) if isinstance(self.drafter, str) else tuple(self.drafter)

    def _check_tiers(self) -> None:
        for name in ("host_cache_tokens", "cache_dir"):
            if getattr(self, name) is not None and self.disable_radix_cache:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be None with disable_radix_cache=True")
        if not isinstance(self.cache_dir, str | Path | None) or self.cache_dir == "":
            raise ValueError(f"cache_dir={self.cache_dir!r}: must be None or a folder")
        if self.cache_dir_max_bytes is not None and self.cache_dir is None:
            raise ValueError(f"cache_dir_max_bytes={self.cache_dir_max_bytes}: must be None without cache_dir")

    def _check_drafters(self) -> None:
        if not isinstance(self.drafter, str | list | tuple | None):
            raise ValueError(f"drafter={self.drafter!r}: must be None, a name or a tuple of names")
        for name in self.drafters:
            DRAFTERS.check(name)
        if len(set(self.drafters)) < len(self.drafters):
            raise ValueError(f"drafter={self.drafter!r}: must name each drafter once")
        if self.drafters and self.num_scheduler_steps > 1:
            raise ValueError(
                f"num_scheduler_steps={self.num_scheduler_steps}: must be 1 with a drafter, which is asked between passes"
            )
