"""SuffixIndex: the longest suffix that occurred before, compared with a search that looks everywhere."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.drafting.suffix_index import SuffixIndex


def longest_match(tokens: list[int]) -> int:
    """The length of the longest suffix of `tokens` that also ends before their end."""
    for length in range(len(tokens) - 1, 0, -1):
        suffix = tokens[-length:]
        if any(tokens[end - length : end] == suffix for end in range(length, len(tokens))):
            return length
    return 0


def check_after_each_token(tokens: list[int]) -> None:
    index = SuffixIndex()
    assert (index.size, index.match_length) == (0, 0)
    for size, token in enumerate(tokens, start=1):
        index.append(token)
        assert index.size == size
        length = index.match_length
        assert length == longest_match(tokens[:size])
        if length:
            assert length <= index.follows < size, "what follows the occurrence is a token that is there already"
            assert tokens[index.follows - length : index.follows] == tokens[size - length : size]


@given(st.integers(1, 4).flatmap(lambda letters: st.lists(st.integers(0, letters - 1), max_size=40)))
def test_match_and_place_are_those_of_a_search_after_each_token(tokens: list[int]) -> None:
    check_after_each_token(tokens)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(2, 8), st.lists(st.integers(0, 5), max_size=4))
def test_repetitions_that_break_off_are_found(period: list[int], times: int, rest: list[int]) -> None:
    check_after_each_token(period * times + rest + period)


def test_of_several_occurrences_the_latest_that_was_looked_up_counts() -> None:
    index = SuffixIndex()
    for token in [1, 2, 7, 1, 2, 8, 1, 2]:
        index.append(token)
    assert (index.match_length, index.follows) == (2, 5)


@settings(max_examples=30)
@given(st.integers(1, 3).flatmap(lambda letters: st.lists(st.integers(0, letters - 1), min_size=3, max_size=300)))
def test_states_and_transitions_grow_with_the_tokens_and_not_with_their_square(tokens: list[int]) -> None:
    index = SuffixIndex()
    for token in tokens:
        index.append(token)
    states, transitions = len(index._length), sum(map(len, index._next))
    assert states <= 2 * len(tokens) - 1
    assert transitions <= 3 * len(tokens) - 4


def test_a_token_costs_the_same_however_long_the_sequence_is() -> None:
    """Counted in states visited: the links that are followed when a token is taken."""

    class CountingList(list[int]):
        reads = 0

        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            CountingList.reads += 1
            return super().__getitem__(at)

    def reads(tokens: list[int]) -> int:
        index = SuffixIndex()
        index._link, CountingList.reads = CountingList(index._link), 0
        for token in tokens:
            index.append(token)
        return CountingList.reads

    for pattern in ([0], [0, 1], [0, 0, 1], [0, 1, 0, 0, 1, 0, 1]):
        short, long = reads(pattern * 50), reads(pattern * 400)
        assert 0 < long <= 9 * short
