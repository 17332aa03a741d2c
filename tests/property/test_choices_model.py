"""PrefixRouter's choices against its rule, written down replica by replica: it must choose one of the equally good."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.cache.block_events import CPU, DISK, GPU, BlockStored, EventBatch, block_hashes
from nanoinfer.cluster import PassCosts, PrefixRouter, RoutedRequest
from nanoinfer.cluster.block_index import BlockSets
from nanoinfer.cluster.prefix_router import FETCHED, PREFILL_WEIGHT, TIE
from nanoinfer.cluster.replica_queue import work_of

SIZE, CHUNK = 4, 10
COSTS = PassCosts(0.003, 0.001, 0.002, 1e-5, 1e-5, 0.002, 0.001)
PROMPTS = [[i] * 4 + [j] * 8 + [k] * 5 for i in range(2) for j in range(2) for k in range(3)]
KINDS = ("choose", "choose", "choose", "first", "end", "join", "leave", "store", "store", "wait")


def leading(hashes: list[int], held: set[int]) -> int:
    """How many of the first blocks are held."""
    return next((i for i, block in enumerate(hashes) if block not in held), len(hashes))


def blocks_of(sets: BlockSets, bit: int) -> set[int]:
    return {block for block, bits in sets.masks.items() if bits & bit}


def equally_good(router: PrefixRouter, request: RoutedRequest, most_imbalance: float) -> set[str]:
    """The rule."""
    hashes, tokens = block_hashes(request.token_ids, SIZE), len(request.token_ids)
    output = min(request.max_new_tokens, router._output_tokens)
    ahead = {name: router.queued_seconds(name, output) for name in router.replicas}
    costs, prefills = dict[str, float](), dict[str, float]()
    for name, seconds in ahead.items():
        bit = router._bits[name]
        there = blocks_of(router.index.sets, bit) | blocks_of(router.pending.sets, bit)
        expects, reaches = leading(hashes, there), leading(hashes, there | blocks_of(router.index.below, bit))
        cached = int(SIZE * (expects + FETCHED * (reaches - expects)))
        if seconds <= min(ahead.values()) + most_imbalance:
            prefills[name] = work_of(COSTS, CHUNK, tokens, cached).seconds
            costs[name] = seconds + PREFILL_WEIGHT * prefills[name]
    limit = min(costs.values()) + TIE * COSTS.prefill_seconds(tokens) + 1e-12
    best = min(prefills[name] for name, cost in costs.items() if cost <= limit)
    return {name for name, cost in costs.items() if cost <= limit and prefills[name] == best}


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 11), st.integers(0, 9)), max_size=80),
    st.sampled_from([0.02, 10.0]),
)
@settings(max_examples=120)
def test_it_chooses_as_its_rule_says(steps: list[tuple[str, int, int]], most_imbalance: float) -> None:
    follow([("join", 0, 0), *steps], most_imbalance)


@pytest.mark.parametrize("seed", range(6))
def test_it_does_so_in_a_long_life_among_many_replicas(seed: int) -> None:
    rng = Random(f"choices {seed}")
    kinds = ("choose",) * 8 + ("first",) * 8 + ("end",) * 8 + ("store",) * 6 + ("wait", "leave")
    steps = [(rng.choice(kinds), rng.randrange(12), rng.randrange(10)) for _ in range(400)]
    follow([("join", 0, which) for which in range(10)] + steps, most_imbalance=10.0)


def follow(steps: list[tuple[str, int, int]], most_imbalance: float) -> None:
    """Take the steps; check each choice."""
    now = [0.0]
    options: dict[str, Any] = {"max_imbalance_s": most_imbalance, "linger_s": 0.5, "pending_s": 2}
    router = PrefixRouter(
        COSTS, block_size=SIZE, chunk_tokens=CHUNK, max_running_requests=3, clock=lambda: now[0], **options
    )
    seqs, at = dict[str, int](), list[str]()
    for number, (action, pick, which) in enumerate(steps):
        name, prompt = f"replica {which}", PROMPTS[pick]
        some = at[pick % len(at)] if at else None
        if action == "choose" and seqs:
            request = RoutedRequest(f"{number}", prompt, 1 + pick)
            router.pending.expire(now[0])
            good = equally_good(router, request, most_imbalance)
            assert router.choose(request) in good
            at.append(request.request_id)
        elif action == "first" and some is not None:
            router.note_first_token(some, cached_tokens=which)
        elif action == "end" and some is not None:
            at.remove(some)
            router.note_end(some, output_tokens=pick)
        elif action == "join" and name not in seqs:
            router.add_replica(name)
            seqs[name] = 0
        elif action == "leave" and name in seqs:
            router.remove_replica(name)
            del seqs[name]
        elif action == "store" and name in seqs:
            hashes = block_hashes(prompt, SIZE)[: 1 + pick % 4]
            medium = (GPU, CPU, DISK)[(pick + which) % 3]
            event = BlockStored(hashes, None, prompt[: SIZE * len(hashes)], SIZE, None, None, medium)
            assert router.note_events(name, EventBatch(seqs[name], now[0], [event], name))
            seqs[name] += 1
        elif action == "wait":
            now[0] += pick / 8
