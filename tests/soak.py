"""The engine under pressure, at random, for as long as one likes: `python -m tests.soak --minutes 20`.

Episode after episode: an engine with a random configuration (tiny pools, so that eviction and retraction are forced; page
and chunk sizes, policies, a queue that fills up) over a tiny model; random requests that share beginnings on purpose,
greedy and seeded, some of several completions, some with a logits processor; aborts, pauses, deadlines, flushes, and
exceptions in the model, the sampler and the allocators. After every step `check_integrity()` and a plain model of what a
caller knows (tests/helpers/pressure.py); at the end of an episode every request has ended exactly once, every finished one
with exactly the tokens that `transformers` gives for it alone, and every slot is free.

An episode follows from its seed alone: `--seed N --episodes 1` repeats one. `--state FILE` is written after every
episode, and `--resume` goes on from it; the sums run on. Fails, naming the seed, at the first thing that is wrong, or when
the resident size has grown by more than `--max-growth-mib` since the first tenth of the run.
"""

import argparse
import gc
import json
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.helpers.pressure import VOCAB, Oracle, World, make_model, never_twice_in_a_row

MAX_NEW_TOKENS = 20
MAX_PROMPT = 48
STEPS_PER_EPISODE = 400
PREFIX_LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 24, 32, 33, 45)


def random_config(rng: np.random.Generator) -> dict[str, Any]:
    """A configuration under which requests get in one another's way."""

    def pick(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    page_size = pick(1, 1, 2, 4, 8, 16)
    longest = -(-(MAX_PROMPT + MAX_NEW_TOKENS) // page_size) * page_size
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
        "disable_radix_cache": bool(rng.random() < 0.1),
        "max_queue": pick(None, None, 4, 12),
        "random_seed": int(rng.integers(2**31)),
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


def run_episode(world: World, rng: np.random.Generator, stems: np.ndarray, steps: int = STEPS_PER_EPISODE) -> None:
    """Random things for about `steps` steps, then to the end."""
    busy, faults = rng.uniform(0.2, 0.95), rng.random() < 0.3
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
                processor=never_twice_in_a_row if rng.random() < 0.1 else None,
            )
        if rng.random() < 0.03 and world.requests:
            world.abort(int(rng.choice(list(world.requests))))
        if rng.random() < pausing and world.requests:
            world.pause(int(rng.choice(list(world.requests))))
        if rng.random() < 3 * pausing and world.paused:
            world.resume(int(rng.choice(list(world.paused))))
        if rng.random() < 0.01:
            world.flush()
        if faults and rng.random() < 0.02:
            world.fault = ("model", "sampler", "rows", "slots")[int(rng.integers(4))]
        if gambling and rng.random() < 0.5:
            world.forget_retractions()
        if rng.random() < 0.9:
            world.step()
    world.drain()


def resident_mib() -> float:
    """Memory of this process that is really there."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(argv: list[str] | None = None) -> int:
    """Run episodes until the time or the number of steps is reached; 1 when something was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the first episode; the next one's is one more")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--episodes", type=int, help="stop after so many episodes")
    parser.add_argument("--state", type=Path, help="file to keep the seed and the sums in")
    parser.add_argument("--resume", action="store_true", help="go on from --state")
    parser.add_argument("--max-growth-mib", type=float, default=24.0, help="resident size may grow by so much")
    args = parser.parse_args(argv)
    if args.resume and (args.state is None or not args.state.is_file()):
        parser.error(f"--resume: --state {args.state} is no file")
    if args.minutes is None and args.steps is None and args.episodes is None:
        parser.error("how long? --minutes, --steps or --episodes")

    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    sums: Counter[str] = Counter()
    seed = args.seed
    if args.resume:
        kept = json.loads(args.state.read_text())
        seed, sums = kept["next_seed"], Counter(kept["sums"])
    stems = np.random.default_rng(12345).integers(0, VOCAB, size=(3, MAX_PROMPT))
    start, steps_before, episodes, first_seed = time.monotonic(), sums["steps"], 0, seed
    resident_start = resident_early = 0.0

    def share_done() -> float:
        """Of what was asked for; 1 when it is time to stop."""
        parts = [
            (time.monotonic() - start) / (60 * args.minutes) if args.minutes is not None else 0.0,
            (sums["steps"] - steps_before) / args.steps if args.steps is not None else 0.0,
            episodes / args.episodes if args.episodes is not None else 0.0,
        ]
        return max(parts)

    with tempfile.TemporaryDirectory() as directory:
        model = make_model(Path(directory))
        oracle = Oracle(Path(directory), MAX_NEW_TOKENS)
        resident_start = resident_mib()
        while share_done() < 1:
            rng = np.random.default_rng(seed)
            world = World(model, oracle, **random_config(rng))
            try:
                run_episode(world, rng, stems)
            except BaseException:
                print(f"\nFAILED in the episode of --seed {seed}: {world.config}", flush=True)
                raise
            stats = world.engine.stats()
            sums.update(world.counts)
            sums.update({name: getattr(stats, name) for name in ("retractions", "evicted_tokens", "cached_tokens")})
            seed, episodes = seed + 1, episodes + 1
            if share_done() < 0.1 or not resident_early:
                resident_early = resident_mib()
            if args.state is not None:
                args.state.write_text(json.dumps({"next_seed": seed, "sums": sums}))
            if episodes % 20 == 0:
                print(_line(seed, sums, start, resident_mib()), flush=True)
    resident_end = resident_mib()
    print(f"seeds {first_seed}..{seed - 1}: {episodes} episodes in {(time.monotonic() - start) / 60:.1f} minutes")
    print(", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in sums.items()))
    print(f"resident: {resident_start:.0f} MiB at the start, {resident_early:.0f} early, {resident_end:.0f} at the end")
    if resident_end - resident_early > args.max_growth_mib:
        print(f"FAILED: resident size has grown by more than {args.max_growth_mib} MiB")
        return 1
    return 0


def _line(seed: int, sums: Counter[str], start: float, resident: float) -> str:
    return (
        f"seed {seed}: {sums['steps']:,} steps, {sums['retractions']:,} retractions, {sums['evicted_tokens']:,} tokens "
        f"evicted, {sums['aborted']:,} aborts; {time.monotonic() - start:.0f} s, {resident:.0f} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())
