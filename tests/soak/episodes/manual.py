"""Episodes of one engine that is stepped manually: everything that a caller can do to it, and faults inside its passes.

`run_episode` with `panics`: the engine has a tokenizer, and exceptions that are no `Exception` come from its `decode`, from
logits processors and from the sampler.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.pressure import FAULTS, PANICS, VOCAB, Oracle, World, never_twice_in_a_row

MAX_NEW_TOKENS = 20
MAX_PROMPT = 48
STEPS_PER_EPISODE = 400
NAMES = ("a", "b", "c")  # of adapters
PREFIX_LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 24, 32, 33, 45)


def random_config(rng: np.random.Generator) -> dict[str, Any]:
    """A configuration under which requests get in one another's way."""

    def pick(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    page_size = pick(1, 1, 2, 4, 8, 16)
    drafter = pick(None, None, None, "ngram", "tree", "model", ("tree", "ngram", "model"))
    longest = -(-(MAX_PROMPT + MAX_NEW_TOKENS) // page_size) * page_size
    disabled = bool(rng.random() < 0.1)
    return {
        "max_running_requests": pick(1, 2, 4, 8, 12, 16),
        "max_total_tokens": longest + page_size * int(rng.integers(0, 1 + pick(8, 32, 96) // page_size)),
        "max_context_len": MAX_PROMPT + MAX_NEW_TOKENS,
        "page_size": page_size,
        "chunked_prefill_size": pick(None, page_size, page_size + int(rng.integers(0, 8)), 16, 24, 64),
        "max_prefill_tokens": pick(8, 32, 4096),
        "schedule_policy": pick("lpm", "lpm", "fcfs", "random", "dfs-weight"),
        "policy_window": pick(2, 8, 128),
        "max_overtakes": pick(1, 3, 64),
        "schedule_conservativeness": pick(0.001, 0.001, 0.001, 0.1, 1.0),
        "eviction_policy": pick("lru", "lfu", "fifo"),
        "disable_radix_cache": disabled,
        "host_cache_tokens": None if disabled else pick(None, 16, 64, 2048),
        "max_queue": pick(None, None, 4, 12),
        "random_seed": int(rng.integers(2**31)),
        "num_scheduler_steps": 1 if drafter else pick(1, 1, 2, 3, 8),
        "drafter": drafter,
        "num_draft_tokens": pick(1, 2, 3, 7),
        "adaptive_drafts": bool(rng.random() < 0.3),
        "max_adapters_on_device": pick(1, 2, 16),
    }


def random_prompt(rng: np.random.Generator, stems: np.ndarray, world: World) -> list[int]:
    """A beginning that others have, too, with a few tokens of its own; or a conversation that goes on."""
    if world.requests and rng.random() < 0.15:
        request = world.requests[int(rng.choice(list(world.requests)))]
        said = request.wanted[0][0]
        prompt = request.prompt + said[: int(rng.integers(0, len(said) + 1))]
    else:
        prompt = stems[int(rng.integers(len(stems)))][: int(rng.choice(PREFIX_LENGTHS))].tolist()
    prompt = prompt + rng.integers(0, 3, size=int(rng.integers(0, 3))).tolist()
    return prompt[:MAX_PROMPT]


def run_episode(
    world: World,
    rng: np.random.Generator,
    stems: np.ndarray,
    steps: int = STEPS_PER_EPISODE,
    panics: bool = False,
    adapters: Sequence[tuple[Path, Oracle]] = (),
) -> None:
    """Random things for about `steps` steps, then to the end. With `panics` the engine must have a WordTokenizer.

    `adapters`: folders, and what knows their tokens. They are loaded and unloaded on the way, under the same few names.
    """
    busy, faults = rng.uniform(0.2, 0.95), rng.random() < 0.3
    kinds, share = (PANICS, 0.1) if panics else (FAULTS, 0.02 * faults)
    pausing = float(rng.choice([0.0, 0.02, 0.1]))
    gambling = rng.random() < 0.6 and world.config.schedule_conservativeness < 1  # many retractions
    while world.counts["steps"] < steps:
        chance = rng.random()
        if chance < busy:
            seeded = rng.random() < 0.4
            world.add(
                random_prompt(rng, stems, world),
                max_new_tokens=int(rng.integers(MAX_NEW_TOKENS // 2 if gambling else 1, MAX_NEW_TOKENS + 1)),
                seed=int(rng.integers(5)) if seeded else None,
                n=int(rng.integers(1, 4)) if seeded and rng.random() < 0.3 else 1,
                stop=[int(rng.integers(VOCAB))] if rng.random() < 0.3 and not gambling else [],
                extra_key=[None, None, None, "lora"][int(rng.integers(4))],
                prompt_logprobs=bool(rng.random() < 0.1),
                timeout_s=float(rng.integers(1, 40)) if rng.random() < 0.1 else None,
                processor=never_twice_in_a_row if rng.random() < (0.4 if panics else 0.1) else None,
                adapter=[None, *world.adapters][int(rng.integers(1 + len(world.adapters)))],
            )
        if not world.readers and rng.random() < 0.1:
            world.listen(int(rng.choice((1, 3, 4, 16))))
        if adapters and rng.random() < 0.05:
            name = NAMES[int(rng.integers(len(NAMES)))]
            if name in world.adapters:
                world.unload(name)
            else:
                world.load(name, *adapters[int(rng.integers(len(adapters)))])
        if rng.random() < 0.5:
            world.fetches.run_all()
        if rng.random() < 0.03 and world.requests:
            world.abort(int(rng.choice(list(world.requests))))
        if rng.random() < pausing and world.requests:
            world.pause(int(rng.choice(list(world.requests))))
        if rng.random() < 3 * pausing and world.paused:
            world.resume(int(rng.choice(list(world.paused))))
        if rng.random() < 0.01:
            world.flush()
        if share and rng.random() < share:
            world.fault = kinds[int(rng.integers(len(kinds)))]
        if gambling and rng.random() < 0.5:
            world.forget_retractions()
        if rng.random() < 0.9:
            world.step()
    world.drain()
