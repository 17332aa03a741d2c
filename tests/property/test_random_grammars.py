"""Requests with random grammars under pressure, with and without drafts; soak.py does it for longer."""

from collections import Counter

import numpy as np
import pytest

from tests.helpers.fetches import Fetches
from tests.soak.episodes import grammars

pytestmark = pytest.mark.slow


def test_random_grammars_hold_under_pressure_and_drafts_change_no_token() -> None:
    models, counts = grammars.Models(), Counter[str]()
    for seed in range(6):
        rng = np.random.default_rng(seed)
        config = grammars.random_config(rng) | {"drafter": grammars.DRAFTERS[seed]}
        config |= {"max_total_tokens": 72, "page_size": (1, 8)[seed % 2], "max_running_requests": 4 + seed}
        config |= {"schedule_conservativeness": 0.001, "disable_radix_cache": False, "num_scheduler_steps": 1}
        engine, of_one = grammars.run_episode(models, rng, config)
        stats = engine.stats()
        of_one |= {name: getattr(stats, name) for name in ("retractions", "evicted_tokens", "accepted_tokens")}
        counts += of_one
    wanted = ["retractions", "evicted_tokens", "accepted_tokens", "stop", "length", "abort", "stuck", "paused"]
    kinds = ["regex", "json_schema", "choice", "grammar"]
    assert all(counts[name] for name in [*wanted, *kinds, *(f"beginnings of {kind}" for kind in kinds)]), counts


def test_an_episode_follows_from_its_seed() -> None:
    models, found = grammars.Models(Fetches()), []
    for _ in range(2):
        rng = np.random.default_rng(7)
        config = grammars.random_config(rng) | {"drafter": ("grammar", "model"), "adaptive_drafts": True}
        engine, counts = grammars.run_episode(models, rng, config | {"num_scheduler_steps": 1})
        stats = engine.stats()
        found.append((counts, stats.drafted_tokens, stats.accepted_tokens, stats.retractions))
    assert found[0] == found[1]
