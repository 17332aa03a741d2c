"""Everything that needs time, chance or luck, for as long as one likes: `python -m tests.soak --minutes 20`.

`pytest` gives the same verdict in every run. What cannot, because it depends on real time, on which thread runs first, on
the moment of a signal, on how a process dies, or on examples drawn anew, is here. No test that must pass before a change
is merged depends on it; when it fails, something is wrong all the same.

It runs episode after episode, each of one of these kinds. Most are over a tiny model whose every token is known
(tests/soak/episodes has them):

- `by hand`: an engine with a random configuration (weights as they are or quantized; tiny pools, so that eviction and
  retraction are forced; page and chunk sizes, policies, a queue that fills up; drafters that are mostly right or mostly
  wrong); random requests that share beginnings on purpose, greedy and seeded, some of several completions, some with a
  logits processor; aborts, pauses, deadlines, flushes, and exceptions in the model, the sampler and the allocators. After
  every step `check_integrity()` and a plain model of what a caller knows (tests/helpers/pressure.py). Adapters are loaded
  and unloaded all the time, and fetched late or not at all. From some moment on, the tree's events are followed, with and
  without gaps: after every step they must come to the blocks of the tree's paths.
- `panics`: the same, and exceptions that are no Exception from the tokenizer, the model, the sampler and logits processors.
- `threads`: an LLM used by several threads, while others abort, look, and try to step the engine by hand.
- `doors`: an LLM used by threads, and by AsyncEngines that are opened and closed in event loops; their readers stop, are
  slow, or are cancelled; others abort and pause requests; passes fail; perhaps the LLM is shut down in the middle.
- `alarms`: a handler of SIGALRM raises at random moments in the calls of the main thread, beside other threads or alone.
- `grammars`: the bundled model and random grammars of every kind, with and without drafts and adapters; outputs are told
  right from wrong by `re`, `jsonschema` and by hand, and their tokens by the same requests one at a time, without drafts.
- `files`: two processes that share a folder of K/V and are killed while they write; bits flip, disks are full, clocks jump.

At the end of an episode every request has ended exactly once, every finished one with exactly the tokens that
`transformers` gives for it alone (for quantized weights and grammars, the same network alone), and every slot is free.

What an episode does follows from its seed alone: `--seed N --episodes 1` repeats one (`by hand`, `panics` and `grammars` to
the last token; what threads and timers meet, the operating system decides, so that these may need several attempts).
`--kinds` selects. Fails, naming the seed, at the first thing that is wrong, or when the resident size has grown by more
than `--max-growth-mib` since the first tenth of the run.

Tests marked `soak` are run by `pytest -m soak`, property tests with new examples by `pytest --hypothesis-profile=soak
-m "hypothesis and not slow"`.
"""

import argparse
import ctypes
import gc
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from nanoinfer.model.loader import load_model
from tests.helpers.adapters import merged, save_adapter
from tests.helpers.pressure import VOCAB, NetworkOracle, Oracle, WordTokenizer, World, make_draft_model
from tests.helpers.tiny_llm import make_llm_model, tiny_llm
from tests.soak.episodes import alarms, by_hand, doors, files, grammars, threads

# Of so many episodes each kind has its share. Of those that take seconds, one by hand takes the longest.
KINDS = {"by hand": 8, "panics": 2, "threads": 12, "doors": 12, "alarms": 12, "grammars": 8, "files": 1}
OF_AN_LLM = {"threads": threads.run_episode, "doors": doors.run_episode, "alarms": alarms.run_episode}
SUMS = (  # of EngineStats
    *("retractions", "evicted_tokens", "cached_tokens", "drafted_tokens", "accepted_tokens"),
    *("host_fetched_tokens", "disk_fetched_tokens"),
)


class Soak:
    """What all episodes share: the model, in each kind of weights, what it says alone, and the beginnings of prompts."""

    def __init__(self, directory: Path):
        self.directory = directory
        model = make_llm_model(directory)
        self.models = {None: (model, Oracle(directory, by_hand.MAX_NEW_TOKENS))}
        for kind in ("int8", "int4"):
            quantized = replace(load_model(directory, torch.float32, quantization=kind), tokenizer=model.tokenizer)
            self.models[kind] = quantized, NetworkOracle(quantized, by_hand.MAX_NEW_TOKENS)
        # One draft model is hardly ever right, the other always.
        self.draft_models = [make_draft_model(directory / "draft"), model]
        self.adapters = [
            (folder, Oracle(merged(directory, folder), by_hand.MAX_NEW_TOKENS))
            for folder in (
                save_adapter(directory / "small", model.model, seed=1, rank=1),
                save_adapter(directory / "large", model.model, seed=2, rank=9),
                save_adapter(directory / "some", model.model, seed=3, ends=["v_proj", "up_proj"]),
            )
        ]
        self.stories = grammars.Models()
        self.stems = np.random.default_rng(12345).integers(0, VOCAB, size=(3, by_hand.MAX_PROMPT))
        self.prompts = [
            [*stem[:length].tolist(), *tail]
            for stem in self.stems
            for length in (1, 5, 16, 17, 33, 45)
            for tail in ((), (1,))
        ]

    def run(self, kind: str, seed: int) -> Counter[str]:
        """One episode; what happened in it."""
        rng = np.random.default_rng(seed)
        config = by_hand.random_config(rng)
        quantization = [None, None, "int8", "int4"][int(rng.integers(4))]
        model, oracle = self.models[quantization]
        draft_model = self.draft_models[seed % 2] if "model" in str(config["drafter"]) else None
        try:
            if kind == "files":
                return files.run_episode(seed)
            if kind == "grammars":
                quantization, config = None, grammars.random_config(rng)
                engine, counts = grammars.run_episode(self.stories, rng, config)
            elif kind in OF_AN_LLM:
                llm = tiny_llm(model, draft_model=draft_model, **config)
                counts = OF_AN_LLM[kind](llm, rng, oracle, self.prompts, by_hand.MAX_NEW_TOKENS)
                engine = llm.engine
            else:
                if config["host_cache_tokens"] is not None and rng.random() < 0.5:  # one folder for all models
                    config |= {
                        "cache_dir": self.directory / "kv",
                        "cache_dir_max_bytes": int(rng.integers(1, 4_000_000)),
                    }
                tokenizer = WordTokenizer() if kind == "panics" else None
                world = World(replace(model, tokenizer=tokenizer), oracle, draft_model, **config)
                adapters = (
                    [] if quantization else self.adapters
                )  # the oracle of an adapter has it merged into the weights
                by_hand.run_episode(world, rng, self.stems, panics=kind == "panics", adapters=adapters)
                counts, engine = Counter(world.counts), world.engine
        except BaseException:
            print(f"\nFAILED: --seed {seed} --kinds {kind!r} --episodes 1: {quantization=} {config}", flush=True)
            raise
        stats = engine.stats()
        counts.update({name: getattr(stats, name) for name in SUMS})
        return counts


def kind_of(seed: int, kinds: Sequence[str]) -> str:
    """Which of `kinds` the episode of a seed is."""
    shares = np.array([KINDS[kind] for kind in kinds], dtype=float)
    return str(np.random.default_rng([seed, 1]).choice(list(kinds), p=shares / shares.sum()))


def resident_mib() -> float:
    """Memory of this process that is really there, after Python and the C library have given back what nothing uses."""
    gc.collect()
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(argv: list[str] | None = None) -> int:
    """Run episodes until the time or the number of steps is reached; 1 when something was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of episodes")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode; the next one's is one more")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--episodes", type=int, default=sys.maxsize, help="stop after so many episodes")
    parser.add_argument("--max-growth-mib", type=float, default=24.0, help="resident size may grow by so much")
    args = parser.parse_args(argv)

    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    sums, seconds = Counter[str](), Counter[str]()
    start, episodes, resident_early = time.monotonic(), 0, 0.0

    def share_done() -> float:
        """Of what was asked for; 1 when it is time to stop."""
        return max((time.monotonic() - start) / (60 * args.minutes), episodes / args.episodes)

    with tempfile.TemporaryDirectory() as directory:
        soak = Soak(Path(directory))
        while share_done() < 1:
            kind, began = kind_of(args.seed + episodes, args.kinds), time.monotonic()
            sums.update(soak.run(kind, args.seed + episodes))
            seconds[kind] += time.monotonic() - began
            episodes += 1
            early = 0.1 if set(args.kinds) <= seconds.keys() else 0.3  # each kind loads something
            if share_done() < early or not resident_early:
                resident_early = resident_mib()
            if episodes % 20 == 0:
                print(f"{episodes} episodes, {sums['steps']:,} steps, {resident_mib():.0f} MiB", flush=True)
    resident_end = resident_mib()
    doors.check_that_threads_end()  # nothing refers to their engines any more
    print(f"{episodes} episodes in {(time.monotonic() - start) / 60:.1f} minutes")
    print(", ".join(f"{kind} {value:.0f} s" for kind, value in seconds.items()))
    print(", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in sums.items()))
    print(f"resident: {resident_early:.0f} MiB early, {resident_end:.0f} at the end")
    if resident_end - resident_early > args.max_growth_mib:
        print(f"FAILED: resident size has grown by more than {args.max_growth_mib} MiB")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
