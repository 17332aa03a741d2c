"""What the page about storeys shows: hits by a naive model of three storeys, and times by the published costs."""

from collections import OrderedDict

import numpy as np
import pytest

from nanoinfer.cluster.costs import attended_pairs
from nanoinfer.cluster.published_costs import published_costs
from notebooks.course.explore import Bars
from notebooks.course.explore.working_set import BLOCK, FIRST, LONGEST, MORE, POOL, TURNS, served, turns, working_set

Key = tuple[int, int]  # conversation, and number of the block in it


class Naive:
    """Blocks by use, the oldest first; what has no room goes to the storey below."""

    def __init__(self, tokens: int, below: "Naive | None"):
        self.room, self.below, self.held = tokens // BLOCK, below, OrderedDict[Key, None]()

    def use(self, conversation: int, blocks: int) -> None:
        for number in reversed(range(blocks)):
            if (conversation, number) in self.held:
                self.held.move_to_end((conversation, number))

    def put(self, conversation: int, first: int, end: int) -> None:
        self.use(conversation, end)
        for number in range(first, end):
            if (conversation, number) in self.held:
                continue
            if len(self.held) == self.room:
                (of, left), _ = self.held.popitem(last=False)
                if self.below is not None:
                    self.below.put(of, left, left + 1)
            self.held[conversation, number] = None
        self.use(conversation, end)


def counted(conversations: int, host_for: int, files: bool) -> list[int]:
    """Blocks from the pool, host memory and files, and computed ones."""
    disk = Naive(64 * LONGEST, None) if files else None
    host = Naive(host_for * LONGEST, disk) if host_for else None
    pool = Naive(POOL, host)
    total = [0, 0, 0, 0]
    for of, tokens in turns(conversations):
        at, last = 0, len(tokens) // BLOCK - 1
        for i, storey in enumerate((pool, host, disk)):
            start = at
            while storey is not None and at < last and (of, at) in storey.held:
                at += 1
            if storey is not None and at > start:
                storey.use(of, at)
                total[i] += at - start
        total[3] += last + 1 - at
        pool.put(of, 0, last + 1)
    return total


@pytest.mark.parametrize(
    ("conversations", "host_for", "files"), [(4, 0, False), (8, 0, False), (8, 4, True), (12, 8, False), (12, 8, True)]
)
def test_hits_are_those_of_a_naive_model(conversations: int, host_for: int, files: bool) -> None:
    assert list(served(conversations, host_for, files).tokens.values()) == [
        blocks * BLOCK for blocks in counted(conversations, host_for, files)
    ]


def test_everybody_has_a_turn_before_anybody_has_the_next() -> None:
    said = turns(6)
    for turn in range(TURNS):
        lengths = {(of, len(tokens)) for of, tokens in said[6 * turn : 6 * turn + 6]}
        assert lengths == {(of, FIRST + turn * MORE) for of in range(6)}
    assert all(np.array_equal(tokens, np.arange(len(tokens)) + 1_000_000 * of) for of, tokens in said)


def test_with_a_pool_that_is_large_enough_time_is_what_computing_the_new_tokens_takes() -> None:
    costs, reused = published_costs("h100-llama-8b"), FIRST
    seconds = [costs.extend_seconds(1, FIRST, attended_pairs(0, FIRST))]
    for _ in range(TURNS - 1):
        seconds.append(costs.extend_seconds(1, MORE, attended_pairs(reused, reused + MORE)))
        reused += MORE
    assert served(2, 0, False).seconds == pytest.approx(sum(seconds) / TURNS, rel=1e-9)


def test_no_storey_makes_a_first_token_later_and_files_lose_nothing() -> None:
    for conversations in (4, 8, 12):
        times = [served(conversations, *way).seconds for way in ((0, False), (4, False), (4, True), (8, True))]
        assert times == sorted(times, reverse=True)
        assert served(conversations, 4, True).tokens["computed"] == conversations * LONGEST
    assert served(8, 0, True) == served(8, 4, True), "below the pool, files come with host memory"


@pytest.mark.slow
def test_bars_add_up_and_sentences_say_what_is_computed() -> None:
    explorable = working_set()
    for chosen, frame in explorable.frames.items():
        conversations, host, files = (control.values[i] for control, i in zip(explorable.controls, chosen, strict=True))
        bars = frame.panels[0]
        assert isinstance(bars, Bars)
        assert sum(bar.value for bar in bars.bars) == pytest.approx(100, abs=0.3)
        once = served(conversations, host, files).tokens["computed"] == conversations * LONGEST
        small = conversations * LONGEST <= POOL
        assert ("Each token is computed once" in frame.sentence) == (once and not small)
        assert ("what leaves it is gone" in frame.sentence) == (not once)
