"""Everything at once, at random, against a plain model and the tokens of each request alone; soak.py does it for longer."""

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from nanoinfer.model.loader import LoadedModel
from tests.helpers.oracles import VOCAB, Oracle, make_model
from tests.helpers.pressure import FAULTS, World, never_twice_in_a_row
from tests.soak.episodes import manual

MAX_NEW_TOKENS = 12
REQUESTS = st.fixed_dictionaries(
    {
        "stem": st.integers(0, 1),
        "length": st.sampled_from([1, 4, 8, 16, 17, 32]),
        "tail": st.sampled_from([(), (1,), (2,)]),
        "max_new_tokens": st.integers(1, MAX_NEW_TOKENS) | st.just(MAX_NEW_TOKENS),
        "seed": st.sampled_from([None, None, 1]),
        "n": st.sampled_from([1, 1, 2]),
        "stop": st.sampled_from([(), (), (3, 9)]),
        "extra_key": st.sampled_from([None, None, "lora"]),
        "prompt_logprobs": st.sampled_from([False, False, True]),
        "timeout_s": st.sampled_from([None, None, None, 1, 5, 20]),
        "processor": st.sampled_from([None, None, never_twice_in_a_row]),
    }
)
STEMS = np.random.default_rng(7).integers(0, VOCAB, size=(2, 32))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Oracle]:
    """The tiny model, and what each request comes to alone."""
    path = tmp_path_factory.mktemp("tiny")
    return make_model(path), Oracle(path, MAX_NEW_TOKENS)


def machine(model: LoadedModel, oracle: Oracle, counts: dict[str, int]) -> type[RuleBasedStateMachine]:
    """A state machine over engines of that model; adds to `counts` what has happened."""

    class Pressure(RuleBasedStateMachine):
        requests = Bundle("requests")

        @initialize(
            page_size=st.sampled_from([1, 1, 2, 4, 8]),
            rows=st.sampled_from([1, 2, 4, 8, 8, 8]),
            spare=st.integers(0, 24),
            chunk=st.none() | st.integers(0, 20),
            policy=st.sampled_from(["lpm", "fcfs", "random", "dfs-weight"]),
            eviction=st.sampled_from(["lru", "lfu", "fifo"]),
            conservativeness=st.sampled_from([0.001, 0.001, 0.001, 1.0, 11.0]),
            disable=st.sampled_from([False] * 7 + [True]),
            others=st.fixed_dictionaries(
                {
                    "max_overtakes": st.sampled_from([1, 64]),
                    "max_queue": st.sampled_from([None, None, 3, 8]),
                    "max_prefill_tokens": st.sampled_from([6, 4096]),
                    "policy_window": st.sampled_from([2, 128]),
                    "num_scheduler_steps": st.sampled_from([1, 1, 2, 3, 8]),
                    "host_cache_tokens": st.sampled_from([None, 16, 64, 1024]),
                }
            ),
        )
        def start(
            self,
            page_size: int,
            rows: int,
            spare: int,
            chunk: int | None,
            policy: str,
            eviction: str,
            conservativeness: float,
            disable: bool,
            others: dict[str, Any],
        ) -> None:
            longest = 36 + MAX_NEW_TOKENS
            others |= {"host_cache_tokens": None} if disable else {}
            self.world = World(
                model,
                oracle,
                max_running_requests=rows,
                max_total_tokens=-(-(longest + spare) // page_size) * page_size,
                max_context_len=longest,
                page_size=page_size,
                chunked_prefill_size=None if chunk is None else page_size + chunk,
                schedule_policy=policy,
                eviction_policy=eviction,
                schedule_conservativeness=conservativeness,
                disable_radix_cache=disable,
                random_seed=0,
                **others,
            )
            self.world.listen(block_size=3)

        @rule(target=requests, several=st.lists(REQUESTS, min_size=1, max_size=4))
        def add(self, several: list[dict[str, Any]]) -> Any:
            return multiple(*(self.world.add(**self.with_prompt(**request)) for request in several))

        @rule(count=st.integers(1, 4), gamble=st.booleans(), fault=st.sampled_from([*[None] * 12, *FAULTS]))
        def step(self, count: int, gamble: bool, fault: str | None) -> None:
            self.world.fault = fault
            for _ in range(count):
                if gamble:
                    self.world.forget_retractions()
                self.world.step()

        @rule(rid=requests)
        def abort(self, rid: int | None) -> None:
            if rid in self.world.requests:
                self.world.abort(rid)
            elif rid is not None:
                assert self.world.engine.abort(rid) is None

        @rule(rid=requests, resume=st.booleans())
        def pause(self, rid: int | None, resume: bool) -> None:
            if rid in self.world.requests:
                (self.world.resume if resume else self.world.pause)(rid)

        @rule()
        def flush(self) -> None:
            self.world.flush()

        def with_prompt(
            self, stem: int, length: int, tail: tuple[int, ...], seed: int | None, n: int, **fields: Any
        ) -> dict[str, Any]:
            """A request's description with the prompt spelled out."""
            prompt = [*STEMS[stem][:length].tolist(), *tail]
            return {"prompt": prompt, "seed": seed, "n": 1 if seed is None else n, **fields}

        @invariant()
        def holds(self) -> None:
            if hasattr(self, "world"):
                self.world.check()

        def teardown(self) -> None:
            if hasattr(self, "world"):
                self.world.drain()
                self.world.counts["retractions"] = self.world.engine.stats().retractions
                for name in counts:
                    counts[name] += self.world.counts[name]

    return Pressure


def test_no_order_of_events_changes_a_token_or_loses_a_slot(model: tuple[LoadedModel, Oracle]) -> None:
    settings = hypothesis.settings(max_examples=40, stateful_step_count=50)
    counts = dict.fromkeys(
        ("steps", "paused", "finished", "aborted", "timed_out", "failed", "refused", "retractions"), 0
    )
    hypothesis.stateful.run_state_machine_as_test(machine(*model, counts), settings=settings)
    if settings.derandomize:  # of examples drawn anew, nobody knows
        assert counts["steps"] > 1000
        assert all(counts.values()), counts


@pytest.mark.slow
def test_the_soak_forces_what_it_is_meant_to_force(
    model: tuple[LoadedModel, Oracle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few of its episodes, under pressure all the time."""
    monkeypatch.setattr(manual, "MAX_NEW_TOKENS", MAX_NEW_TOKENS)
    sums = dict.fromkeys(("retractions", "evicted_tokens", "cached_tokens"), 0)
    counts = dict.fromkeys(("steps", "paused", "finished", "aborted", "timed_out", "failed", "refused"), 0)
    for seed in range(8, 16):
        rng = np.random.default_rng(seed)
        config = {**manual.random_config(rng), "max_running_requests": 8, "schedule_conservativeness": 0.001}
        config |= {"max_total_tokens": 80, "page_size": (1, 4)[seed % 2], "disable_radix_cache": False, "max_queue": 6}
        config["chunked_prefill_size"] = (None, 8)[seed // 2 % 2]
        config["num_scheduler_steps"] = 1 if config["drafter"] else (1, 3, 8)[seed % 3]
        world = World(*model, **config)
        manual.run_episode(world, rng, STEMS, steps=100)
        stats = world.engine.stats()
        sums = {name: value + getattr(stats, name) for name, value in sums.items()}
        counts = {name: value + world.counts[name] for name, value in counts.items()}
    assert all(sums.values()), sums
    assert all(counts.values()), counts
