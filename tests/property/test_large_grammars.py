"""Random grammars: those that would end the process or take for ever, and any under pressure, with and without drafts."""

import gc
import threading
import time
from collections import Counter

import numpy as np
import pytest

from nanoinfer.grammars.compiler import Compiler
from nanoinfer.grammars.grammar import Grammar, Refusal
from nanoinfer.grammars.trial import tried
from tests.helpers.fetches import Fetches
from tests.helpers.grammars import EOS, allowed, story_compiler
from tests.helpers.large_grammars import LINKS, RULES, chain_of_refs, chain_of_rules, large_grammar
from tests.helpers.waiting import HANG_S
from tests.soak.episodes import grammars

SEEDS = 400  # of the soak
STOPPED_S = 0.2  # for so long no other thread may be kept from running
DEADLINE_S = 20.0


def verdict(compiler: Compiler, kind: str, text: str, timeout_s: float = HANG_S) -> str:
    """Why a grammar is refused; empty if it can be followed for a few tokens."""
    try:
        matcher = compiler.compile(Grammar(kind, text), timeout_s).matcher(frozenset([EOS]))
    except Refusal as refusal:
        return str(refusal)
    for _ in range(4):
        ids = sorted(allowed(matcher))
        if not ids or not matcher.accept(ids[len(ids) // 2]):
            break
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_a_chain_of_refs_is_compiled_or_refused(link: str) -> None:
    compiler = Compiler(story_compiler().vocabulary)
    for length in (90, 950):
        said = verdict(compiler, "json_schema", chain_of_refs(link, length))
        assert not said or (link, length) == ("pattern", 950)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_chain_of_rules_is_compiled_or_refused(rule: str) -> None:
    compiler = Compiler(story_compiler().vocabulary)
    for length in (400, 2_000):
        assert not verdict(compiler, "grammar", chain_of_rules(rule, length))


@pytest.mark.slow
def test_a_chain_that_no_stack_is_large_enough_for_is_refused() -> None:
    compiler = Compiler(story_compiler().vocabulary)
    for _ in range(2):
        assert verdict(compiler, "grammar", chain_of_rules("alone", 13_000)).endswith("than is safe (SIGSEGV)")


@pytest.mark.soak
def test_random_grammars_up_to_ten_times_every_limit_are_compiled_or_refused_in_time() -> None:
    gaps, ended = [0.0], threading.Event()

    def watch() -> None:
        """How long this thread did not run while the process did: on a busy machine, the whole process may have to wait."""
        last, computed = time.perf_counter(), time.process_time()
        while not ended.wait(0.001):
            now, by_now = time.perf_counter(), time.process_time()
            gaps.append(min(now - last, by_now - computed))
            last, computed = now, by_now

    watcher = threading.Thread(target=watch)
    watcher.start()
    verdicts: list[Refusal | None] = []

    def trial(text: str, limits: dict[str, object]) -> Refusal | None:
        verdicts.append(tried(text, limits))
        return verdicts[-1]

    try:
        for seed in range(SEEDS):
            kind, text = large_grammar(np.random.default_rng(seed))
            compiler = Compiler(story_compiler().vocabulary, trial=trial)
            gc.collect()
            gaps.clear()
            began = time.perf_counter()
            try:
                said = verdict(compiler, kind, text, DEADLINE_S)
            except TimeoutError:
                said = "deadline"
            seconds, stopped = time.perf_counter() - began, max(gaps, default=0.0)
            print(
                f"{seed} {kind} {len(text)} {seconds:.2f} s, stopped {stopped:.3f} s, {said[:100] or 'compiled'}",
                flush=True,
            )
            assert seconds < DEADLINE_S + 2, (seed, kind, text[:200])
            assert stopped < STOPPED_S, (seed, kind, text[:200])
    finally:
        ended.set()
        watcher.join()
    assert any(each is not None for each in verdicts)
    assert None in verdicts


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_episode_follows_from_its_seed() -> None:
    models, found = grammars.Models(Fetches()), []
    for _ in range(2):
        rng = np.random.default_rng(7)
        config = grammars.random_config(rng) | {"drafter": ("grammar", "model"), "adaptive_drafts": True}
        engine, counts = grammars.run_episode(models, rng, config | {"num_scheduler_steps": 1})
        stats = engine.stats()
        found.append((counts, stats.drafted_tokens, stats.accepted_tokens, stats.retractions))
    assert found[0] == found[1]
