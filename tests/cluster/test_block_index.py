"""What an index believes, whatever replicas send: against a plain set per replica."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
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
)
from nanoinfer.cluster.block_index import BlockIndex, BlockSets, matched_blocks
from nanoinfer.cluster.pending_prefixes import PendingPrefixes


def stored(*blocks: int, parent: int | None = None, size: int = 16, medium: str = GPU) -> BlockStored:
    return BlockStored([*blocks], parent, [0] * size * len(blocks), size, None, None, medium)


def batch(seq: int, *events: BlockEvent, source: str = "s") -> EventBatch:
    return EventBatch(seq, 0.0, [*events], source)


def an_index(*replicas: str, **options: int) -> BlockIndex:
    index = BlockIndex(**options)
    for i, replica in enumerate(replicas):
        index.add(replica, 1 << i)
    return index


def matches(index: BlockIndex, *hashes: int) -> dict[int, int]:
    """Bits → leading blocks, of those that match just so many."""
    found, more = dict[int, int](), 0
    for count, bits in matched_blocks(hashes, index.sets):
        found[bits & ~more], more = count, bits
    return found


def test_a_late_snapshot_does_not_undo_what_came_after_it() -> None:
    index = an_index("a")
    for seq in range(3):
        assert index.note_events("a", batch(seq, stored(seq)))
    index.note_snapshot("a", Snapshot(1, [stored(0)], "s"))
    assert index.num_blocks("a") == 3


def test_no_replica_fills_more_than_its_share_of_memory() -> None:
    index = an_index("a", "b", max_blocks=4)
    index.note_events("a", batch(0, stored(*range(10))))
    index.note_events("b", batch(0, stored(*range(4))))
    assert (index.num_blocks("a"), index.left_out) == (4, 6)
    assert matches(index, *range(10)) == {0b11: 4}
    index.note_events("a", batch(1, BlockRemoved([2, 7])))
    index.note_events("a", batch(2, stored(2)))
    assert index.num_blocks("a") == 4


def test_another_block_size_is_refused_and_changes_nothing() -> None:
    index = an_index("a")
    with pytest.raises(ValueError, match="block_size=8"):
        index.note_events("a", batch(0, stored(1), stored(2, size=8)))
    with pytest.raises(ValueError, match="block_size=8"):
        index.note_snapshot("a", Snapshot(0, [stored(1, size=8)]))
    assert index.num_blocks("a") == 0
    assert index.note_events("a", batch(0, stored(1)))


MEDIA = (GPU, CPU, DISK)
BLOCKS = st.lists(st.integers(0, 8), max_size=4, unique=True)
EVENTS = st.one_of(
    st.builds(lambda blocks, medium: stored(*blocks, medium=medium), BLOCKS, st.sampled_from(MEDIA)),
    st.builds(BlockRemoved, BLOCKS, st.sampled_from(MEDIA)),
    st.just(AllBlocksCleared()),
)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(EVENTS, max_size=3)), max_size=25),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=25),
    st.permutations(range(9)),
)
@settings(max_examples=200)
def test_deliveries_in_any_order_come_to_what_the_replicas_hold(
    steps: Sequence[tuple[int, list[BlockEvent]]], deliveries: Sequence[tuple[int, int]], prompt: Sequence[int]
) -> None:
    """Batches are delivered in any order, repeatedly or never, with snapshots in between; then all of them in order."""
    index, held = an_index("0", "1", "2"), [{medium: set[int]() for medium in MEDIA} for _ in range(3)]
    sent: list[list[EventBatch]] = [[], [], []]
    for replica, changes in steps:
        for event in changes:
            if isinstance(event, BlockStored):
                held[replica][event.medium] |= set(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                held[replica][event.medium] -= set(event.block_hashes)
            else:
                held[replica][GPU].clear()
        sent[replica].append(batch(len(sent[replica]), *changes))
    for replica, seq in deliveries:
        if seq < len(sent[replica]) and not index.note_events(str(replica), sent[replica][seq]) and seq % 2:
            everything = [stored(*blocks, medium=medium) for medium, blocks in held[replica].items()]
            index.note_snapshot(str(replica), Snapshot(len(sent[replica]), everything, "s"))
    for replica, batches in enumerate(sent):
        for each in batches:
            assert index.note_events(str(replica), each)
    expected, masks = dict[int, int](), ({}, {})
    for replica, media in enumerate(held):
        for medium, blocks in media.items():
            assert index.num_blocks(str(replica), medium) == len(blocks)
            of_medium = masks[medium != GPU]
            of_medium |= {block: of_medium.get(block, 0) | 1 << replica for block in blocks}
        if count := next((i for i, block in enumerate(prompt) if block not in media[GPU]), len(prompt)):
            expected[1 << replica] = count
    assert (index.sets.masks, index.below.masks) == masks
    found = {bit: n for n, bits in matched_blocks(prompt, index.sets)[::-1] for bit in (1, 2, 4) if bits & bit}
    assert found == expected


@given(st.lists(st.sets(st.integers(0, 5), max_size=6), max_size=4), st.lists(st.sets(st.integers(0, 5)), max_size=4))
@settings(max_examples=100)
def test_a_block_counts_if_either_of_two_sets_has_it(first: list[set[int]], second: list[set[int]]) -> None:
    sets = BlockSets(), BlockSets()
    for each, holders in zip(sets, (first, second), strict=True):
        for replica, blocks in enumerate(holders):
            for block in blocks:
                each.add(block, 1 << replica)
    found = {bit: n for n, bits in matched_blocks(range(6), *sets)[::-1] for bit in (1, 2, 4, 8) if bits & bit}
    expected = {}
    for replica in range(4):
        have = {*(first[replica] if replica < len(first) else ()), *(second[replica] if replica < len(second) else ())}
        if count := next((i for i in range(7) if i not in have), 6):
            expected[1 << replica] = count
    assert found == expected


def chain(prompt: int) -> list[int]:
    """Five blocks of one of 32 prompts. A block's name says which blocks are before it, as a hash does."""
    return [(32 + prompt) >> shift for shift in (4, 3, 2, 1, 0)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "end", "forget", "gone", "expire"]),
            st.integers(0, 5),
            st.integers(0, 31),
            st.tuples(st.integers(0, 5), st.integers(0, 5)),
        ),
        max_size=40,
    )
)
@settings(max_examples=150)
def test_what_is_pending_is_exactly_what_somebody_brings(steps: list[tuple[str, int, int, tuple[int, int]]]) -> None:
    pending, now = PendingPrefixes(), 0.0
    brings: dict[str, tuple[int, list[int], float]] = {}
    for action, number, prompt, ends in steps:
        now, name, bit = now + 1, f"{number}", 1 << number % 3
        if action == "add":
            pending.add(name, bit, blocks := chain(prompt)[min(ends) : max(ends)], now + 5)
            brings[name] = (bit, blocks, now + 5)
        elif action == "end":
            pending.end_at(name, now + 2)
            if name in brings:
                brings[name] = (*brings[name][:2], now + 2)
        elif action == "forget":
            pending.forget(name)
            brings.pop(name, None)
        elif action == "gone":
            pending.forget_replica(bit)
            brings = {each: what for each, what in brings.items() if what[0] != bit}
        else:
            pending.expire(now)
            brings = {each: what for each, what in brings.items() if what[2] > now}
        assert len(pending) == sum(bool(blocks) for _, blocks, _ in brings.values())
        expected = dict[int, int]()
        for bit, blocks, _ in brings.values():
            for block in blocks:
                expected[block] = expected.get(block, 0) | bit
        assert pending.sets.masks == expected
    pending.expire(now + 100)
    assert len(pending) == 0
    assert pending.sets.masks == pending._counts == {}


# --- host memory and files ---------------------------------------------------------------------------------------------


def test_a_medium_that_nobody_knows_is_never_taken_for_the_device() -> None:
    index = an_index("a")
    index.note_snapshot("a", Snapshot(0, [stored(1, medium="TAPE"), stored(1, medium=DISK)], "s"))
    assert index.sets.masks == {}
    index.note_events("a", batch(0, BlockRemoved([1], "TAPE")))
    assert index.below.masks == {1: 1}
    index.note_snapshot("a", Snapshot(3, [], "s"))
    assert index.below.masks == {}


def test_each_medium_has_its_own_bound() -> None:
    index = an_index("a", max_blocks=2)
    index.note_events("a", batch(0, stored(1, 2, 3, medium=DISK), stored(1, 2)))
    assert (index.num_blocks("a"), index.num_blocks("a", DISK), index.left_out) == (2, 2, 1)
