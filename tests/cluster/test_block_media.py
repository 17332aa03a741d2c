"""What an index and a router believe of blocks that replicas have on their devices, in host memory and in files."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from nanoinfer.cache.block_events import (
    CPU,
    DISK,
    GPU,
    AllBlocksCleared,
    BlockEvent,
    BlockRemoved,
    BlockStored,
    EventBatch,
    Snapshot,
    block_hashes,
)
from nanoinfer.cluster.block_index import BlockIndex
from nanoinfer.cluster.block_sets import exactly, matched_blocks
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policy import RoutedRequest
from nanoinfer.cluster.prefix_router import FETCHED, PREFILL_WEIGHT, PrefixRouter

PROMPT = [*range(1, 161)]  # ten blocks
HASHES = block_hashes(PROMPT, 16)


def stored(hashes: Sequence[int], medium: str = GPU) -> BlockStored:
    return BlockStored([*hashes], None, [], 16, None, None, medium)


def batch(seq: int, *events: BlockEvent) -> EventBatch:
    return EventBatch(seq, 0.0, [*events], "s")


# --- the index --------------------------------------------------------------------------------------------------------


def test_a_removal_from_one_medium_leaves_the_others_alone() -> None:
    index = BlockIndex()
    index.add("a", 1)
    index.note_events("a", batch(0, *(stored([1, 2], medium) for medium in (GPU, CPU, DISK))))
    for seq, (medium, on_device, below) in enumerate(
        [(CPU, True, True), (GPU, False, True), (CPU, False, True), (DISK, False, False)], start=1
    ):
        index.note_events("a", batch(seq, BlockRemoved([1], medium)))
        assert (1 in index.sets.masks, 1 in index.below.masks) == (on_device, below)
        assert 2 in index.sets.masks
        assert 2 in index.below.masks
    assert [index.num_blocks("a", medium) for medium in (GPU, CPU, DISK, "TAPE")] == [1, 1, 1, 0]


def test_a_cleared_tree_says_nothing_of_other_media() -> None:
    index = BlockIndex()
    index.add("a", 1)
    index.note_events("a", batch(0, stored([1]), stored([2], CPU), AllBlocksCleared()))
    assert (index.sets.masks, index.below.masks) == ({}, {2: 1})
    index.remove("a")
    assert index.below.masks == {}


def test_a_medium_that_nobody_knows_is_never_taken_for_the_device() -> None:
    index = BlockIndex()
    index.add("a", 1)
    index.note_snapshot("a", Snapshot(0, [stored([1], "TAPE"), stored([1], DISK)], "s"))
    assert index.sets.masks == {}
    index.note_events("a", batch(0, BlockRemoved([1], "TAPE")))
    assert index.below.masks == {1: 1}
    index.note_snapshot("a", Snapshot(3, [], "s"))
    assert index.below.masks == {}


def test_each_medium_has_its_own_bound() -> None:
    index = BlockIndex(max_blocks=2)
    index.add("a", 1)
    index.note_events("a", batch(0, stored([1, 2, 3], DISK), stored([1, 2])))
    assert (index.num_blocks("a"), index.num_blocks("a", DISK), index.left_out) == (2, 2, 1)


BLOCKS = st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True)
MEDIA = st.sampled_from([GPU, CPU, DISK])
EVENTS = st.one_of(
    st.builds(stored, BLOCKS, MEDIA), st.builds(BlockRemoved, BLOCKS, MEDIA), st.just(AllBlocksCleared())
)


@given(st.lists(st.tuples(st.booleans(), EVENTS), max_size=25))
def test_an_index_is_a_set_per_replica_and_medium(steps: list[tuple[bool, BlockEvent]]) -> None:
    index = BlockIndex()
    held = {name: {medium: set[int]() for medium in (GPU, CPU, DISK)} for name in "ab"}
    seqs = {"a": 0, "b": 0}
    for i, name in enumerate("ab"):
        index.add(name, 1 << i)
    for is_b, event in steps:
        name = "ab"[is_b]
        if isinstance(event, AllBlocksCleared):
            held[name][GPU].clear()
        elif isinstance(event, BlockStored):
            held[name][event.medium] |= set(event.block_hashes)
        else:
            held[name][event.medium] -= set(event.block_hashes)
        assert index.note_events(name, batch(seqs[name], event))
        seqs[name] += 1
    for sets, media in ((index.sets, {GPU}), (index.below, {CPU, DISK})):
        expected = dict[int, int]()
        for i, name in enumerate("ab"):
            for block in set().union(*(held[name][medium] for medium in media)):
                expected[block] = expected.get(block, 0) | 1 << i
        assert sets.masks == expected


def test_who_matches_so_many_blocks_and_not_more() -> None:
    index = BlockIndex()
    for bit, name in enumerate("abcd"):
        index.add(name, 1 << bit)
        index.note_events(name, batch(0, stored([[], [1], [1, 2, 3], [1, 2, 3]][bit])))
    assert exactly(matched_blocks([1, 2, 3, 4], index.sets)) == [(3, 0b1100), (1, 0b10), (0, ~0b1110)]
    assert exactly([]) == [(0, -1)]


# --- the router -------------------------------------------------------------------------------------------------------


def router(**held: dict[str, int]) -> PrefixRouter:
    """Each replica has so many leading blocks of the prompt, by medium."""
    policy = PrefixRouter(PassCosts(0.001, 0.001, 0.0001, 0.0), clock=lambda: 0.0)
    for name, media in held.items():
        policy.add_replica(name)
        policy.note_events(name, batch(0, *(stored(HASHES[:count], medium) for medium, count in media.items())))
    return policy


def choose(policy: PrefixRouter, tokens: Sequence[int] = PROMPT) -> str:
    return policy.choose(RoutedRequest("it", [*tokens], 1))


def test_blocks_below_the_device_are_better_than_none_and_worse_than_those_on_it() -> None:
    for below in (CPU, DISK):
        for names in ("ab", "ba"):  # whoever has which place
            replicas = {names[0]: {below: 10}, names[1]: {}}
            assert choose(router(**replicas)) == names[0]
            replicas = {names[0]: {below: 10}, names[1]: {GPU: 10}}
            assert choose(router(**replicas)) == names[1]


def test_a_block_below_the_device_counts_half() -> None:
    assert FETCHED == 0.5
    for below in (CPU, DISK):
        assert choose(router(a={below: 10}, b={GPU: 4})) == "a", "5 are more than 4"
        assert choose(router(a={below: 10}, b={GPU: 6})) == "b", "5 are fewer than 6"
        assert choose(router(a={GPU: 2, below: 10}, b={GPU: 5})) == "a", "2 + 8 / 2 are more than 5"
        assert choose(router(a={GPU: 2, below: 10}, b={GPU: 7})) == "b"
    assert choose(router(a={CPU: 8, DISK: 8}, b={GPU: 6})) == "b", "in two media, a block counts once"


def test_a_match_may_go_on_from_one_medium_to_the_next() -> None:
    policy = router(a={GPU: 2}, b={GPU: 4})
    policy.note_events("a", batch(1, stored(HASHES[2:5], CPU), stored(HASHES[5:], DISK)))
    assert choose(policy) == "a"
    policy.note_events("a", batch(2, BlockRemoved(HASHES[2:3], CPU)))
    policy.note_end("it")
    assert choose(policy) == "b", "behind the gap, nothing counts"


def test_a_replica_that_does_not_fetch_is_not_believed_less_for_it() -> None:
    policy = router(a={DISK: 10}, b={})
    assert choose(policy) == "a"
    policy.note_first_token("it", 0)
    assert policy.trust("a") == 1.0


def test_one_that_is_doubted_for_its_devices_blocks_is_charged_for_what_it_would_fetch() -> None:
    policy = router(a={GPU: 10}, b={})
    for _ in range(4):
        assert choose(policy) == "a" or policy.trust("a") < 0.5
        policy.note_first_token("it", 0)
        policy.note_end("it", 1)
    policy.note_events("a", batch(1, stored(HASHES, CPU)))
    policy.note_events("b", batch(1, stored(HASHES[:6], CPU)))
    assert choose(policy) == "b"


def test_what_is_fetched_is_work_too() -> None:
    """Half of a block's prefill is ahead of the next request, and no more."""
    ahead = {}
    for media in ({}, {CPU: 10}, {GPU: 9}):
        policy = router(a=media)
        choose(policy)
        ahead[str(media)] = policy.seconds_ahead("a", 1.0)
    nothing, half, nearly_all = ahead.values()
    assert nearly_all < half < nothing
    assert PREFILL_WEIGHT == 2.0
