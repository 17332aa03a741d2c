"""Scheduler, CacheManager and Batch under random requests: how a request is scheduled never changes its tokens."""

import pytest

from nanoinfer.scheduling import reasons_to_wait
from tests.helpers.traffic import serve_at_random

CONFIGURATIONS = [
    {"page_size": 1, "schedule_policy": "lpm", "max_total_tokens": 40},
    {"page_size": 1, "schedule_policy": "fcfs", "max_total_tokens": 40, "eviction_policy": "lfu"},
    {"page_size": 1, "schedule_policy": "dfs-weight", "max_total_tokens": 70, "eviction_policy": "fifo"},
    {"page_size": 1, "schedule_policy": "random", "max_total_tokens": 40, "disable_radix_cache": True},
    {"page_size": 1, "schedule_policy": "lpm", "max_total_tokens": 60, "max_prefill_tokens": 10},
    {"page_size": 4, "schedule_policy": "lpm", "max_total_tokens": 64},
    {"page_size": 4, "schedule_policy": "dfs-weight", "max_total_tokens": 48, "policy_window": 2},
    {"page_size": 4, "schedule_policy": "random", "max_total_tokens": 64, "disable_radix_cache": True},
    {"page_size": 16, "schedule_policy": "lpm", "max_total_tokens": 128, "max_context_len": 128},
    {"page_size": 16, "schedule_policy": "fcfs", "max_total_tokens": 96, "max_context_len": 128},
]


CONFIGURATIONS += [  # the same in pieces, and with running requests that must give way
    {**configuration, "chunked_prefill_size": max(chunk, int(str(configuration["page_size"]))), **pressure}
    for configuration, chunk in zip(CONFIGURATIONS, (1, 2, 3, 5, 7, 4, 6, 9, 16, 31), strict=True)
    for pressure in ({}, {"schedule_conservativeness": 0.001})
]


CONFIGURATIONS += [  # some of them in groups of decode passes
    {**configuration, "num_scheduler_steps": (2, 3, 8)[i % 3]} for i, configuration in enumerate(CONFIGURATIONS[::3])
]


@pytest.mark.parametrize("seed", range(len(CONFIGURATIONS)))
def test_scheduling_never_changes_tokens_nor_loses_a_slot(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each configuration, with requests of its own; in half of them, two tokens are worth waiting for."""
    monkeypatch.setattr(reasons_to_wait, "WORTH_WAITING_FOR", (reasons_to_wait.WORTH_WAITING_FOR, 2)[seed // 2 % 2])
    serve_at_random(CONFIGURATIONS[seed], seed, num_requests=50)
