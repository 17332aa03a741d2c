"""Everything that needs time, chance or luck, for as long as one likes: `python -m tests.soak --minutes 20`.

`pytest` gives the same verdict in every run. What cannot, because it depends on real time, on which thread runs first, on
the moment of a signal, on how a process dies, or on examples drawn anew, is here. No test that must pass before a change
is merged depends on it; when it fails, something is wrong all the same.

It runs episode after episode, each of one of these kinds. Most are over a tiny model whose every token is known
(tests/soak/episodes has them):

- `manual`: manual stepping of an engine with a random configuration (weights as they are or quantized; tiny pools, so that
  eviction and retraction are forced; page and chunk sizes, policies, a queue that fills up; drafters that are mostly right
  or mostly wrong); random requests that share beginnings on purpose, greedy and seeded, some of several completions, some
  with a logits processor; aborts, pauses, deadlines, flushes, and exceptions in the model, the sampler and the allocators.
  After every step `check_integrity()` and a plain model of what a caller knows (tests/helpers/pressure.py). Adapters are
  loaded and unloaded all the time, and fetched late or not at all. From some moment on, the tree's events are followed,
  with and without gaps: after every step they must come to the blocks of the tree's paths.
- `panics`: the same, and exceptions that are no Exception from the tokenizer, the model, the sampler and logits processors.
- `clients`: an LLM used by threads, and by AsyncEngines that are opened and closed in event loops; their readers stop, are
  slow, or are cancelled; others abort and pause requests, look, and try to step the engine manually; passes fail; perhaps
  the LLM is shut down in the middle.
- `alarms`: a handler of SIGALRM raises at random moments in the calls of the main thread, beside other threads, or in its
  manual steps.
- `grammars`: the bundled model and random grammars of every kind, with and without drafts and adapters; outputs are
  checked by `re`, `jsonschema` and own code, and their tokens by the same requests one at a time, without drafts.
- `exits`: processes that end with requests in flight, at random moments and in all ways that there are.
- `files`: two processes that share a folder of K/V and are killed while they write; bits flip, disks are full, clocks jump.

The others run in a process of their own, and each takes minutes, so that they are rare:

- `tests`: all tests marked `soak`.
- `examples`: the property tests of the quick tests, with examples that follow from the seed.
- `ranks`: split models, of each of which a random process is killed at a random moment.
- `server`, only if asked for: half a minute of mixed traffic against a server, and a SIGTERM. `python -m
  tests.soak.traffic` does it for longer, and has options.
- `ray`, only if asked for: the tests of replicas on Ray (needs `pip install -e '.[cluster]'`).

At the end of an episode every request has ended exactly once, every finished one with exactly the tokens that
`transformers` gives for it alone (for quantized weights and grammars, the same network alone), and every slot is free;
every process has ended with the return code that Python gives; every test has passed.

What an episode does follows from its seed alone: `--seed N --episodes 1` repeats one (`manual`, `panics`, `grammars` and
`examples` to the last token; what threads, timers and exits meet, the operating system decides, so that these may need
several attempts).
`--kinds` selects. Fails, naming the seed, at the first thing that is wrong, or when the resident size has grown by more
than `--max-growth-mib` since the first tenth of the run.
"""

import argparse
import ctypes
import gc
import importlib.util
import logging
import os
import re
import subprocess
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
from tests.soak import traffic
from tests.soak.episodes import clients, exits, files, grammars, killed_ranks, manual, threads

ROOT = Path(__file__).parents[2]
RAY = "Ray is not installed: pip install -e '.[cluster]'"
# Of so many episodes each kind has its share. Of those that take seconds, `manual` takes the longest.
KINDS = {"manual": 8, "panics": 2, "clients": 24, "alarms": 12, "grammars": 8, "exits": 1, "files": 1}
KINDS |= {"ranks": 0.5, "tests": 0.1, "examples": 0.1, "server": 0.5, "ray": 0.1}
ONLY_IF_ASKED_FOR = ("server", "ray")


# --- episodes that run tests in a process of their own ---------------------------------------------------------------


def has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None


def files_with_examples() -> list[str]:
    """The test files that use hypothesis."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    used = re.compile(r"^\s*(from|import) hypothesis\b", re.MULTILINE)
    return [str(path.relative_to(ROOT)) for path in files if used.search(path.read_text())]


def run_tests(seed: int) -> Counter[str]:
    """All tests marked `soak`."""
    return _pytest(seed, "-m", "soak")


def run_examples(seed: int) -> Counter[str]:
    """The quick tests that use hypothesis (it marks them so), with other examples than in the quick tests."""
    return _pytest(seed, "-m", "hypothesis and not slow and not soak", *files_with_examples())


def run_ray(seed: int) -> Counter[str]:
    """All tests of replicas on Ray, whatever their marks."""
    assert has_ray(), RAY
    return _pytest(seed, "-m", "", "tests/cluster/on_ray")


def _pytest(seed: int, *options: str) -> Counter[str]:
    """How many tests passed. AssertionError with all that was said when one did not."""
    drawn = ["--hypothesis-profile=soak", f"--hypothesis-seed={seed}"]
    command = [sys.executable, "-m", "pytest", *drawn, *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\nexit code {done.returncode}, seed {seed}"
    passed = re.search(r"(\d+) passed", done.stdout)
    return Counter({"tests_passed": int(passed[1]) if passed else 0})


# What needs nothing that is made beforehand.
APART = {
    "files": files.run_episode,
    "ranks": killed_ranks.run_episode,
    "tests": run_tests,
    "examples": run_examples,
    "server": traffic.run_episode,
    "ray": run_ray,
}
OF_AN_LLM = {"clients": clients.run_episode, "alarms": threads.run_alarms}
EXITS = 4  # processes per episode
SUMS = (  # of EngineStats
    *("retractions", "evicted_tokens", "cached_tokens", "drafted_tokens", "accepted_tokens"),
    *("host_fetched_tokens", "disk_fetched_tokens"),
)


class Soak:
    """What all episodes share: the model, in each kind of weights, what it says alone, and the beginnings of prompts."""

    def __init__(self, directory: Path):
        self.directory = directory
        model = make_llm_model(directory)
        self.models = {None: (model, Oracle(directory, manual.MAX_NEW_TOKENS))}
        for kind in ("int8", "int4"):
            quantized = replace(load_model(directory, torch.float32, quantization=kind), tokenizer=model.tokenizer)
            self.models[kind] = quantized, NetworkOracle(quantized, manual.MAX_NEW_TOKENS)
        # One draft model is hardly ever right, the other always.
        self.draft_models = [make_draft_model(directory / "draft"), model]
        self.adapters = [
            (folder, Oracle(merged(directory, folder), manual.MAX_NEW_TOKENS))
            for folder in (
                save_adapter(directory / "small", model.model, seed=1, rank=1),
                save_adapter(directory / "large", model.model, seed=2, rank=9),
                save_adapter(directory / "some", model.model, seed=3, ends=["v_proj", "up_proj"]),
            )
        ]
        self.stories = grammars.Models()
        self.stems = np.random.default_rng(12345).integers(0, VOCAB, size=(3, manual.MAX_PROMPT))
        self.prompts = [
            [*stem[:length].tolist(), *tail]
            for stem in self.stems
            for length in (1, 5, 16, 17, 33, 45)
            for tail in ((), (1,))
        ]

    def run(self, kind: str, seed: int) -> Counter[str]:
        """One episode; what happened in it."""
        rng = np.random.default_rng(seed)
        config = manual.random_config(rng)
        quantization = [None, None, "int8", "int4"][int(rng.integers(4))]
        model, oracle = self.models[quantization]
        draft_model = self.draft_models[seed % 2] if "model" in str(config["drafter"]) else None
        if kind == "exits":
            return exits.run_episode(self.directory, seed * EXITS, EXITS)
        if kind == "grammars":
            engine, counts = grammars.run_episode(self.stories, rng, grammars.random_config(rng))
        elif kind in OF_AN_LLM:
            llm = tiny_llm(model, draft_model=draft_model, **config)
            counts = OF_AN_LLM[kind](llm, rng, oracle, self.prompts, manual.MAX_NEW_TOKENS)
            engine = llm.engine
        else:
            if config["host_cache_tokens"] is not None and rng.random() < 0.5:  # one folder for all models
                folder, most = self.directory / "kv", int(rng.integers(1, 4_000_000))
                config |= {"cache_dir": folder, "cache_dir_max_bytes": most}
            tokenizer = WordTokenizer() if kind == "panics" else None
            world = World(replace(model, tokenizer=tokenizer), oracle, draft_model, **config)
            adapters = [] if quantization else self.adapters  # an adapter's oracle has it merged into the weights
            manual.run_episode(world, rng, self.stems, panics=kind == "panics", adapters=adapters)
            counts, engine = Counter(world.counts), world.engine
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
    return traffic.resident_mib(os.getpid())


def main(argv: list[str] | None = None) -> int:
    """Run episodes until the time or the number of steps is reached; 1 when something was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="of episodes; all but server and ray")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode; the next one's is one more")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--episodes", type=int, help="stop after so many episodes")
    parser.add_argument("--max-growth-mib", type=float, default=24.0, help="resident size may grow by so much")
    args = parser.parse_args(argv)
    kinds = args.kinds or [kind for kind in KINDS if kind not in ONLY_IF_ASKED_FOR]
    if "ray" in kinds and not has_ray():
        parser.error(f"--kinds ray: {RAY}")
    if args.minutes is None and args.episodes is None:
        parser.error("how long? --minutes or --episodes")

    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    sums, seconds, seed = Counter[str](), Counter[str](), args.seed
    start, episodes, resident_early = time.monotonic(), 0, 0.0

    def share_done() -> float:
        """Of what was asked for; 1 when it is time to stop."""
        of_time = (time.monotonic() - start) / (60 * args.minutes) if args.minutes is not None else 0.0
        return max(of_time, episodes / args.episodes if args.episodes is not None else 0.0)

    with tempfile.TemporaryDirectory() as directory:
        soak = Soak(Path(directory)) if set(kinds) - APART.keys() else None
        resident_start = resident_mib()
        while share_done() < 1:
            kind, began = kind_of(seed, kinds), time.monotonic()
            try:
                sums.update(APART[kind](seed) if soak is None or kind in APART else soak.run(kind, seed))
            except BaseException:
                print(f"\nFAILED: --seed {seed} --kinds {kind} --episodes 1", flush=True)
                raise
            seconds[kind] += time.monotonic() - began
            seed, episodes = seed + 1, episodes + 1
            early = 0.1 if set(kinds) <= seconds.keys() else 0.3  # each loads something
            if share_done() < early or not resident_early:
                resident_early = resident_mib()
            if episodes % 20 == 0:
                print(_line(seed, sums, start, resident_mib()), flush=True)
    resident_end = resident_mib()
    clients.check_that_threads_end()  # nothing refers to their engines any more
    print(f"seeds {args.seed}..{seed - 1}: {episodes} episodes in {(time.monotonic() - start) / 60:.1f} minutes")
    print(", ".join(f"{kind} {value:.0f} s" for kind, value in seconds.items()))
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
