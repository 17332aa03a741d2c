"""A process of a split model is killed at any moment: while it starts and loads, in a pass, between passes, in the end.

Whoever waits for the engine must be told which process it was within SECONDS, nothing must be left running, and every slot
must be free. The rank, the engine's settings and what it is doing follow from the seed; what the moment meets does not.
"""

import multiprocessing
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.errors import EngineClosedError, RankError, StepFailedError
from tests.helpers.rank_processes import lives, ranks_below, until_ended

KILLS = 8  # per episode
SECONDS = 30.0  # from the kill until everybody knows
LONGEST_START = 6.0  # a kill comes within so many seconds, if it is to come while ranks start
LONGEST_WORK = 1.0
WHEN = ("start", "work", "work", "work", "idle", "end")
TELLS = (RankError, StepFailedError, EngineClosedError)
LONG = SamplingParams(max_new_tokens=200, temperature=0, ignore_eos=True)
SHORT = SamplingParams(max_new_tokens=4, temperature=0, ignore_eos=True)


def random_options(rng: random.Random) -> dict[str, Any]:
    """Of an LLM over two to four processes."""
    options: dict[str, Any] = {
        "tensor_parallel_size": rng.choice([2, 2, 2, 4]),
        "max_total_tokens": rng.choice([256, 1024]),
        "max_running_requests": rng.choice([2, 8]),
        "quantization": rng.choice([None, None, "int8", "int4"]),
        "kv_cache_dtype": rng.choice([None, "int8"]),
    }
    options |= rng.choice([{}, {"num_scheduler_steps": 4}, {"drafter": "ngram", "adaptive_drafts": False}])
    return options | rng.choice([{}, {"adapters": {"sea": "sea", "rhymes": "rhymes"}, "max_adapters_on_device": 1}])


class Killer:
    """Kills one rank, once, and knows when."""

    def __init__(self, rng: random.Random):
        self._draw, self.rank, self.pid, self.moment = rng.random(), 0, 0, 0.0

    def kill(self) -> None:
        pids = ranks_below(os.getpid())
        index = int(self._draw * len(pids))
        self.rank, self.pid, self.moment = index + 1, pids[index], time.monotonic()
        os.kill(self.pid, signal.SIGKILL)

    def check(self, error: BaseException) -> None:
        """What somebody was told, and how soon."""
        sentence = rf"rank {self.rank} of \d \(process {self.pid}\) was killed by SIGKILL"
        assert isinstance(error, TELLS), repr(error)
        assert re.search(sentence, str(error)), f"{error!r} does not say {sentence}"
        assert time.monotonic() - self.moment < SECONDS, f"told {time.monotonic() - self.moment:.0f} s later"


def error_of(call: Callable[[], Any]) -> BaseException | None:
    """What it raises; None if it returns."""
    try:
        call()
    except BaseException as error:  # whatever it is, `check` looks at it
        return error
    return None


def run_episode(seed: int) -> Counter[str]:
    """KILLS kills, in a process of their own. AssertionError with what was wrong."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, torch.set_num_threads, (1,)) as pool:
        return sum(pool.map(kill_one, range(seed * KILLS, (seed + 1) * KILLS)), Counter())


def kill_one(seed: int) -> Counter[str]:
    """One engine, and one kill."""
    rng = random.Random(seed)
    options, when, killer = random_options(rng), rng.choice(WHEN), Killer(rng)
    with ThreadPoolExecutor(9) as pool:
        start = pool.submit(LLM, "story", **options)
        if when == "start":
            while not (pids := ranks_below(os.getpid())) and not start.done():
                time.sleep(0.001)
            time.sleep(rng.uniform(0, LONGEST_START))
            killer.kill()
            if (error := start.exception(SECONDS)) is not None:
                killer.check(error)
                assert not ranks_below(os.getpid())
                until_ended(pids)
                return Counter({"kills": 1, "kills during a start": 1})
        llm = start.result(SECONDS * 4)
        pids = ranks_below(os.getpid()) if when != "start" else pids
        adapters = [None, *llm.adapters]
        calls = []
        if when == "work":
            for _ in range(rng.randint(1, 8)):
                prompt = np.random.default_rng(rng.randrange(99)).integers(5, 200, rng.randint(1, 40)).tolist()
                calls.append(pool.submit(llm.generate, [prompt], LONG, adapter=[rng.choice(adapters)], use_tqdm=False))
            time.sleep(rng.uniform(0, LONGEST_WORK))
            killer.kill()
        elif when in ("idle", "end"):
            llm.generate([[5, 6, 7]] * 3, SHORT, use_tqdm=False)
        if when == "idle":
            killer.kill()
        if when == "end":
            end = pool.submit(llm.shutdown)
            time.sleep(rng.uniform(0, 0.05))
            if any(map(lives, pids)) and ranks_below(os.getpid()):
                killer.kill()
            end.result(SECONDS)
        else:
            for call in calls:
                if (error := call.exception(SECONDS)) is not None:  # or it had ended before
                    killer.check(error)
            last = error_of(lambda: llm.generate([[5, 6, 7]], SHORT, use_tqdm=False))
            assert last is not None, "the engine goes on"
            killer.check(last)
            again = error_of(lambda: llm.generate([[5, 6, 7]], SHORT, use_tqdm=False))
            assert isinstance(again, EngineClosedError), repr(again)
            killer.check(again)
            llm.engine.check_integrity()
        steps = llm.engine.stats().extend_steps + llm.engine.stats().decode_steps
        llm.shutdown()
    until_ended(pids)
    if not killer.pid:  # the ranks had ended before
        return Counter()
    names = {
        "start": "after a start",
        "work": "in the middle of work",
        "idle": "while idle",
        "end": "during a shutdown",
    }
    return Counter({"kills": 1, f"kills {names[when]}": 1, "steps": steps})
